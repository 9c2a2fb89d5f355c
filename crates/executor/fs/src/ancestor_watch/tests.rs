//! Watches for missing paths.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_env::filesystem::{MissingPathsRequest, MissingPathsWatch};
use exec_wire::{limits, path_uri::PathUri};
use futures_util::FutureExt;
use tempfile::TempDir;
use tokio::time::timeout;

use super::watch_missing;

/// A directory for the watched paths.
struct WatchedPaths {
    root: PathBuf,
    _kept: TempDir,
}

impl WatchedPaths {
    fn new() -> Self {
        let kept = tempfile::tempdir().unwrap();
        Self {
            root: kept.path().canonicalize().unwrap(),
            _kept: kept,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn uri(&self, name: &str) -> PathUri {
        PathUri::from_native(&self.path(name)).unwrap()
    }

    fn watch(&self, missing: &[&str], present: Option<&str>) -> Option<MissingPathsWatch> {
        let paths = MissingPathsRequest {
            missing: missing.iter().map(|name| self.uri(name)).collect(),
            present: present.map(|name| self.uri(name)),
            sandbox: None,
        };
        watch_missing(&paths).unwrap()
    }

    /// Watches, then makes several changes: only the last one must be reported.
    async fn assert_only_last_is_reported(
        &self,
        missing: &[&str],
        present: Option<&str>,
        changes: &[&dyn Fn(&Self)],
    ) {
        let (last, others) = changes.split_last().unwrap();
        let mut watch = self.watch(missing, present).expect("paths can be watched");
        for change in others {
            change(self);
            self.settle().await;
            assert!(
                watch.as_mut().now_or_never().is_none(),
                "reported too early"
            );
        }
        last(self);
        timeout(TEST_TIMEOUT, watch)
            .await
            .expect("change is reported");
    }

    /// Waits until all earlier events were processed; events are ordered.
    async fn settle(&self) {
        let beside = Self::new();
        let watch = beside.watch(&["it"], None).unwrap();
        create(&beside.path("it"));
        timeout(TEST_TIMEOUT, watch)
            .await
            .expect("change is reported");
    }
}

fn create(path: &Path) {
    fs::write(path, "1").unwrap();
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn appearing_path_is_reported_but_not_its_siblings() {
    let place = WatchedPaths::new();
    create(&place.path("old"));
    let changes: [&dyn Fn(&WatchedPaths); 5] = [
        &|place| create(&place.path("sibling")),
        &|place| fs::create_dir(place.path("directory")).unwrap(),
        &|place| create(&place.path("old")),
        &|place| fs::remove_file(place.path("old")).unwrap(),
        &|place| create(&place.path("it")),
    ];
    place
        .assert_only_last_is_reported(&["other", "it"], None, &changes)
        .await;
}

#[tokio::test]
async fn appearing_ancestor_is_reported() {
    let place = WatchedPaths::new();
    let changes: [&dyn Fn(&WatchedPaths); 2] = [&|place| create(&place.path("b")), &|place| {
        fs::create_dir(place.path("a")).unwrap()
    }];
    place
        .assert_only_last_is_reported(&["a/b/it"], None, &changes)
        .await;
}

#[tokio::test]
async fn path_that_appears_by_rename_is_reported() {
    let place = WatchedPaths::new();
    create(&place.path("before"));
    let rename: &dyn Fn(&WatchedPaths) =
        &|place| fs::rename(place.path("before"), place.path("it")).unwrap();
    place
        .assert_only_last_is_reported(&["it"], None, &[rename])
        .await;
}

#[tokio::test]
async fn appearing_dangling_link_is_reported() {
    let place = WatchedPaths::new();
    let link: &dyn Fn(&WatchedPaths) = &|place| symlink("nowhere", place.path("it")).unwrap();
    place
        .assert_only_last_is_reported(&["it"], None, &[link])
        .await;
}

#[tokio::test]
async fn moved_ancestor_is_reported() {
    let place = WatchedPaths::new();
    fs::create_dir_all(place.path("a/b")).unwrap();
    let rename: &dyn Fn(&WatchedPaths) =
        &|place| fs::rename(place.path("a"), place.path("z")).unwrap();
    place
        .assert_only_last_is_reported(&["a/b/it"], None, &[rename])
        .await;
}

#[tokio::test]
async fn removed_ancestor_is_reported() {
    let place = WatchedPaths::new();
    fs::create_dir_all(place.path("a/b")).unwrap();
    let in_use = fs::File::open(place.path("a/b")).unwrap();
    let remove: &dyn Fn(&WatchedPaths) = &|place| fs::remove_dir(place.path("a/b")).unwrap();
    place
        .assert_only_last_is_reported(&["a/b/it"], None, &[remove])
        .await;
    drop(in_use);
}

#[tokio::test]
async fn present_directory_is_reported_when_removed_but_not_when_filled() {
    let place = WatchedPaths::new();
    fs::create_dir(place.path("d")).unwrap();
    let changes: [&dyn Fn(&WatchedPaths); 3] = [
        &|place| create(&place.path("d/file")),
        &|place| fs::create_dir(place.path("d/directory")).unwrap(),
        &|place| fs::rename(place.path("d"), place.path("e")).unwrap(),
    ];
    place
        .assert_only_last_is_reported(&["it"], Some("d"), &changes)
        .await;
}

#[tokio::test]
async fn present_file_is_reported_when_removed_or_written() {
    let place = WatchedPaths::new();
    create(&place.path("file"));
    let write: &dyn Fn(&WatchedPaths) = &|place| fs::write(place.path("file"), "2").unwrap();
    place
        .assert_only_last_is_reported(&["it"], Some("file"), &[write])
        .await;
    let remove: &dyn Fn(&WatchedPaths) = &|place| fs::remove_file(place.path("file")).unwrap();
    place
        .assert_only_last_is_reported(&["it"], Some("file"), &[remove])
        .await;
}

#[test]
fn paths_in_another_state_are_not_watched() {
    let place = WatchedPaths::new();
    create(&place.path("file"));
    fs::create_dir(place.path("directory")).unwrap();
    symlink("nowhere", place.path("dangling")).unwrap();
    symlink("directory", place.path("link")).unwrap();
    let too_many = vec!["it"; limits::MAX_MISSING_PATHS + 1];
    let cases: [(&[&str], Option<&str>); 11] = [
        (&[], None),
        (&too_many, None),
        (&["file"], None),
        (&["it", "directory"], None),
        (&["file/it"], None),
        (&["dangling"], None),
        (&["dangling/it"], None),
        (&["link/it"], None),
        (&["it"], Some("gone")),
        (&["it"], Some("link")),
        (&["it"], Some("dangling")),
    ];
    for (missing, present) in cases {
        assert!(
            place.watch(missing, present).is_none(),
            "{missing:?} {present:?}"
        );
    }
    let as_many_as_may_be = vec!["it"; limits::MAX_MISSING_PATHS];
    assert!(place.watch(&as_many_as_may_be, Some("file")).is_some());
}

#[test]
fn paths_of_another_host_are_not_watched() {
    for text in ["file:///C:/it", "file:///%00/bad/path/L2EAYg"] {
        let paths = MissingPathsRequest {
            missing: vec![PathUri::parse(text).unwrap()],
            present: None,
            sandbox: None,
        };
        assert!(watch_missing(&paths).unwrap().is_none(), "{text}");
    }
}
