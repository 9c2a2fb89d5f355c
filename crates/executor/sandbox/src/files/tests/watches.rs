use exec_env::filesystem::{Changes, MissingPaths, WatchDepth, WatchPath, Watcher};
use exec_wire::fs::ChangeKind;
use futures_util::StreamExt;
use tokio::{sync::Semaphore, time::timeout};

use super::*;
use crate::files::fs_worker::Hand;

async fn watch(scene: &Scene, path: &Path) -> Result<Watcher, FileError> {
    let watch = WatchPath {
        path: uri(path),
        depth: WatchDepth::Tree,
        sandbox: None,
    };
    scene.files.watch(scene.narrow(), watch).await
}

async fn next(watcher: &mut Watcher) -> Option<Changes> {
    timeout(PATIENCE, watcher.changes.next()).await.unwrap()
}

#[tokio::test]
async fn changes_are_told_until_what_is_watched_is_gone() {
    let scene = Scene::new();
    let directory = scene.inside.join("directory");
    fs::create_dir(&directory).unwrap();
    let mut watcher = watch(&scene, &directory).await.unwrap();
    assert_eq!(watcher.path, uri(&directory));
    fs::write(directory.join("new"), "").unwrap();
    let told = next(&mut watcher).await.unwrap();
    assert!(!told.overflow);
    assert_eq!(told.changes[0].path, uri(&directory.join("new")));
    fs::remove_dir_all(&directory).unwrap();
    let mut last = None;
    while let Some(told) = next(&mut watcher).await {
        assert!(!told.overflow);
        last = told
            .changes
            .into_iter()
            .find(|change| change.path == watcher.path);
    }
    assert_eq!(last.unwrap().kind, ChangeKind::Removed);
}

#[tokio::test]
async fn what_is_hidden_cannot_be_watched() {
    let scene = Scene::new();
    let error = watch(&scene, &scene.outside).await.unwrap_err();
    assert!(matches!(error, FileError::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn a_watch_whose_hand_is_lost_says_that_changes_are() {
    let scene = Scene::new();
    let enclosure = enclose(&scene.narrow()).unwrap();
    let mut hand = Hand::start(&Spawner::default(), enclosure).await.unwrap();
    let pid = Pid::from_raw(hand.pid().try_into().unwrap()).unwrap();
    let request = Request::Watch {
        path: uri(&scene.inside),
        tree: false,
    };
    let text = serde_json::to_vec(&request).unwrap();
    hand.exchange(&text, &[]).await.unwrap();
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let mut watcher = Watcher {
        path: uri(&scene.inside),
        changes: crate::files::changes(hand, permit),
    };
    signal(pid, Signal::KILL);
    let lost = Changes {
        changes: Vec::new(),
        overflow: true,
    };
    assert_eq!(next(&mut watcher).await, Some(lost));
    assert_eq!(next(&mut watcher).await, None);
}

#[tokio::test]
async fn a_watch_ends_when_nobody_listens() {
    let scene = Scene::with(Bounds {
        watches: 1,
        ..Bounds::default()
    });
    let watcher = watch(&scene, &scene.inside).await.unwrap();
    let refused = watch(&scene, &scene.inside).await.unwrap_err();
    assert!(matches!(refused, FileError::Host(text) if text.contains("too many")));
    drop(watcher);
    watch(&scene, &scene.inside).await.unwrap();
}

#[tokio::test]
async fn a_missing_path_is_told_when_it_appears() {
    let scene = Scene::new();
    let missing = |path: &Path| MissingPaths {
        missing: vec![uri(path)],
        present: None,
        sandbox: None,
    };
    let path = scene.inside.join("later");
    let begun = scene.files.watch_missing(scene.narrow(), missing(&path));
    let appeared = begun.await.unwrap().unwrap();
    fs::write(&path, "").unwrap();
    timeout(PATIENCE, appeared).await.unwrap();
    let begun = scene.files.watch_missing(scene.narrow(), missing(&path));
    assert!(begun.await.unwrap().is_none());
}
