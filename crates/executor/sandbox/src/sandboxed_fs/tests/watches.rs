use exec_env::filesystem::{
    ChangeBatch, MissingPathsRequest, PathWatcher, WatchDepth, WatchPathRequest,
};
use exec_wire::fs::PathChangeKind;
use futures_util::StreamExt;
use tokio::{sync::Semaphore, time::timeout};

use super::*;
use crate::sandboxed_fs::fs_worker::FsWorker;

async fn watch(test_fs: &TestFs, path: &Path) -> Result<PathWatcher, FileError> {
    let watch = WatchPathRequest {
        path: uri(path),
        depth: WatchDepth::Tree,
        sandbox: None,
    };
    test_fs.files.watch(test_fs.narrow(), watch).await
}

async fn next(watcher: &mut PathWatcher) -> Option<ChangeBatch> {
    timeout(TEST_TIMEOUT, watcher.changes.next()).await.unwrap()
}

#[tokio::test]
async fn watch_reports_changes_until_its_path_is_removed() {
    let test_fs = TestFs::new();
    let directory = test_fs.inside.join("directory");
    fs::create_dir(&directory).unwrap();
    let mut watcher = watch(&test_fs, &directory).await.unwrap();
    assert_eq!(watcher.path, uri(&directory));
    fs::write(directory.join("new"), "").unwrap();
    let batch = next(&mut watcher).await.unwrap();
    assert!(!batch.overflow);
    assert_eq!(batch.changes[0].path, uri(&directory.join("new")));
    fs::remove_dir_all(&directory).unwrap();
    let mut last = None;
    while let Some(batch) = next(&mut watcher).await {
        assert!(!batch.overflow);
        last = batch
            .changes
            .into_iter()
            .find(|change| change.path == watcher.path);
    }
    assert_eq!(last.unwrap().kind, PathChangeKind::Removed);
}

#[tokio::test]
async fn hidden_path_cannot_be_watched() {
    let test_fs = TestFs::new();
    let error = watch(&test_fs, &test_fs.outside).await.unwrap_err();
    assert!(matches!(error, FileError::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn watch_reports_overflow_when_its_worker_is_lost() {
    let test_fs = TestFs::new();
    let setup = setup_for(&test_fs.narrow()).unwrap();
    let mut worker = FsWorker::start(&Spawner::default(), setup).await.unwrap();
    let pid = Pid::from_raw(worker.pid().try_into().unwrap()).unwrap();
    let request = WorkerRequest::Watch {
        path: uri(&test_fs.inside),
        tree: false,
    };
    let text = serde_json::to_vec(&request).unwrap();
    worker.exchange(&text, &[], &[]).await.unwrap();
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let mut watcher = PathWatcher {
        path: uri(&test_fs.inside),
        changes: crate::sandboxed_fs::watch_changes(worker, permit),
    };
    signal(pid, Signal::KILL);
    let lost = ChangeBatch {
        changes: Vec::new(),
        overflow: true,
    };
    assert_eq!(next(&mut watcher).await, Some(lost));
    assert_eq!(next(&mut watcher).await, None);
}

#[tokio::test]
async fn dropped_watch_releases_its_permit() {
    let test_fs = TestFs::with(WorkerLimits {
        max_watches: 1,
        ..WorkerLimits::default()
    });
    let watcher = watch(&test_fs, &test_fs.inside).await.unwrap();
    let refused = watch(&test_fs, &test_fs.inside).await.unwrap_err();
    assert!(matches!(refused, FileError::Host(text) if text.contains("too many")));
    drop(watcher);
    watch(&test_fs, &test_fs.inside).await.unwrap();
}

#[tokio::test]
async fn missing_path_watch_fires_when_the_path_appears() {
    let test_fs = TestFs::new();
    let missing = |path: &Path| MissingPathsRequest {
        missing: vec![uri(path)],
        present: None,
        sandbox: None,
    };
    let path = test_fs.inside.join("later");
    let watch = test_fs
        .files
        .watch_missing(test_fs.narrow(), missing(&path));
    let appeared = watch.await.unwrap().unwrap();
    fs::write(&path, "").unwrap();
    timeout(TEST_TIMEOUT, appeared).await.unwrap();
    let watch = test_fs
        .files
        .watch_missing(test_fs.narrow(), missing(&path));
    assert!(watch.await.unwrap().is_none());
}
