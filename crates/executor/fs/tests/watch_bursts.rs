//! Bursts of changes: everything is reported, or an overflow is. Runs in its own process, because
//! all watches of a process share the kernel's queue, and an overflow affects all of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_env::filesystem::{ChangeBatch, PathWatcher, WatchDepth, WatchPathRequest};
use exec_fs::watch;
use exec_wire::{
    fs::PathChangeKind::{Created, Modified},
    limits,
    path_uri::PathUri,
};
use futures_util::StreamExt;
use tempfile::TempDir;
use tokio::{task::spawn_blocking, time::timeout};

#[tokio::test]
async fn every_file_of_a_burst_in_new_directories_is_reported() {
    let (root, _kept) = directory();
    let mut watcher = start(&root);
    let mut writing = Some(spawn_blocking(move || make_files(&root)));
    let (mut files, mut reported) = (BTreeSet::new(), BTreeSet::new());
    let mut overflow = false;
    while writing.is_some() || (!overflow && !files.is_subset(&reported)) {
        let batch = batch(&mut watcher).await;
        overflow |= batch.overflow;
        for change in batch.changes {
            assert!(matches!(change.kind, Created | Modified), "{change:?}");
            reported.insert(change.path);
        }
        if let Some(done) = writing.take_if(|writing| writing.is_finished()) {
            files = done.await.unwrap();
        }
    }
    // Even after lost events, the directories are watched.
    for file in files.iter().step_by(FILES) {
        fs::write(file.to_native().unwrap(), "2").unwrap();
        while !reports(&batch(&mut watcher).await, file) {}
    }
}

#[tokio::test]
async fn unread_burst_is_reported_afterwards() {
    let (root, _kept) = directory();
    let mut watcher = start(&root);
    let files = make_files(&root);
    let mut reported = BTreeSet::new();
    let mut overflow = false;
    while !overflow && !files.is_subset(&reported) {
        let batch = batch(&mut watcher).await;
        overflow |= batch.overflow;
        reported.extend(batch.changes.into_iter().map(|change| change.path));
    }
}

#[tokio::test]
async fn too_many_pending_changes_set_overflow() {
    let (root, _kept) = directory();
    let mut watcher = start(&root);
    for number in 0..limits::MAX_GATHERED_CHANGES + 100 {
        fs::write(root.join(format!("{number}")), "").unwrap();
    }
    // Watches are served in the order of their start, so the first one was served by then.
    let (other, _kept_too) = directory();
    let mut second = start(&other);
    fs::write(other.join("file"), "").unwrap();
    batch(&mut second).await;
    let batch = batch(&mut watcher).await;
    assert!(batch.overflow);
    assert!(batch.changes.len() <= limits::MAX_GATHERED_CHANGES);
}

#[tokio::test]
async fn watch_starts_in_a_growing_tree() {
    let (root, _kept) = directory();
    let growing = root.clone();
    let writing = spawn_blocking(move || make_files(&growing));
    let mut watcher = start(&root);
    let files = writing.await.unwrap();
    // Files created before the watch started need not be reported; later ones must be.
    for file in files.iter().step_by(FILES) {
        let after = file.to_native().unwrap().with_file_name("after");
        fs::write(&after, "").unwrap();
        let after = PathUri::from_native(&after).unwrap();
        loop {
            let batch = batch(&mut watcher).await;
            if batch.overflow || reports(&batch, &after) {
                break;
            }
        }
    }
}

/// Creates 10 000 files in new nested directories.
fn make_files(root: &Path) -> BTreeSet<PathUri> {
    let mut files = BTreeSet::new();
    for number in 0..100 {
        let directory = root.join(format!("{}/{}/{number}", number % 3, number % 10));
        fs::create_dir_all(&directory).unwrap();
        for number in 0..FILES {
            let file = directory.join(format!("{number}"));
            fs::write(&file, "").unwrap();
            files.insert(PathUri::from_native(&file).unwrap());
        }
    }
    files
}

fn directory() -> (PathBuf, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (directory.path().canonicalize().unwrap(), directory)
}

fn start(root: &Path) -> PathWatcher {
    let path = PathUri::from_native(root).unwrap();
    let (depth, sandbox) = (WatchDepth::Tree, None);
    watch(&WatchPathRequest {
        path,
        depth,
        sandbox,
    })
    .unwrap()
}

async fn batch(watcher: &mut PathWatcher) -> ChangeBatch {
    let batch = timeout(TEST_TIMEOUT, watcher.changes.next()).await;
    batch.unwrap().unwrap()
}

fn reports(batch: &ChangeBatch, path: &PathUri) -> bool {
    batch.changes.iter().any(|change| change.path == *path)
}

/// Files in one directory.
const FILES: usize = 100;
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
