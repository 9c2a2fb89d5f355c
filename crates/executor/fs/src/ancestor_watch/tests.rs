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
    _directory: TempDir,
}

impl WatchedPaths {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            root: directory.path().canonicalize().unwrap(),
            _directory: directory,
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
    let paths = WatchedPaths::new();
    create(&paths.path("old"));
    let changes: [&dyn Fn(&WatchedPaths); 5] = [
        &|paths| create(&paths.path("sibling")),
        &|paths| fs::create_dir(paths.path("directory")).unwrap(),
        &|paths| create(&paths.path("old")),
        &|paths| fs::remove_file(paths.path("old")).unwrap(),
        &|paths| create(&paths.path("it")),
    ];
    paths
        .assert_only_last_is_reported(&["other", "it"], None, &changes)
        .await;
}

#[tokio::test]
async fn appearing_ancestor_is_reported() {
    let paths = WatchedPaths::new();
    let changes: [&dyn Fn(&WatchedPaths); 2] = [&|paths| create(&paths.path("b")), &|paths| {
        fs::create_dir(paths.path("a")).unwrap()
    }];
    paths
        .assert_only_last_is_reported(&["a/b/it"], None, &changes)
        .await;
}

#[tokio::test]
async fn path_that_appears_by_rename_is_reported() {
    let paths = WatchedPaths::new();
    create(&paths.path("before"));
    let rename: &dyn Fn(&WatchedPaths) =
        &|paths| fs::rename(paths.path("before"), paths.path("it")).unwrap();
    paths
        .assert_only_last_is_reported(&["it"], None, &[rename])
        .await;
}

#[tokio::test]
async fn appearing_dangling_link_is_reported() {
    let paths = WatchedPaths::new();
    let link: &dyn Fn(&WatchedPaths) = &|paths| symlink("nowhere", paths.path("it")).unwrap();
    paths
        .assert_only_last_is_reported(&["it"], None, &[link])
        .await;
}

#[tokio::test]
async fn moved_ancestor_is_reported() {
    let paths = WatchedPaths::new();
    fs::create_dir_all(paths.path("a/b")).unwrap();
    let rename: &dyn Fn(&WatchedPaths) =
        &|paths| fs::rename(paths.path("a"), paths.path("z")).unwrap();
    paths
        .assert_only_last_is_reported(&["a/b/it"], None, &[rename])
        .await;
}

#[tokio::test]
async fn removed_ancestor_is_reported() {
    let paths = WatchedPaths::new();
    fs::create_dir_all(paths.path("a/b")).unwrap();
    let in_use = fs::File::open(paths.path("a/b")).unwrap();
    let remove: &dyn Fn(&WatchedPaths) = &|paths| fs::remove_dir(paths.path("a/b")).unwrap();
    paths
        .assert_only_last_is_reported(&["a/b/it"], None, &[remove])
        .await;
    drop(in_use);
}

#[tokio::test]
async fn present_directory_is_reported_when_removed_but_not_when_filled() {
    let paths = WatchedPaths::new();
    fs::create_dir(paths.path("d")).unwrap();
    let changes: [&dyn Fn(&WatchedPaths); 3] = [
        &|paths| create(&paths.path("d/file")),
        &|paths| fs::create_dir(paths.path("d/directory")).unwrap(),
        &|paths| fs::rename(paths.path("d"), paths.path("e")).unwrap(),
    ];
    paths
        .assert_only_last_is_reported(&["it"], Some("d"), &changes)
        .await;
}

#[tokio::test]
async fn present_file_is_reported_when_removed_or_written() {
    let paths = WatchedPaths::new();
    create(&paths.path("file"));
    let write: &dyn Fn(&WatchedPaths) = &|paths| fs::write(paths.path("file"), "2").unwrap();
    paths
        .assert_only_last_is_reported(&["it"], Some("file"), &[write])
        .await;
    let remove: &dyn Fn(&WatchedPaths) = &|paths| fs::remove_file(paths.path("file")).unwrap();
    paths
        .assert_only_last_is_reported(&["it"], Some("file"), &[remove])
        .await;
}

#[test]
fn paths_in_another_state_are_not_watched() {
    let paths = WatchedPaths::new();
    create(&paths.path("file"));
    fs::create_dir(paths.path("directory")).unwrap();
    symlink("nowhere", paths.path("dangling")).unwrap();
    symlink("directory", paths.path("link")).unwrap();
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
            paths.watch(missing, present).is_none(),
            "{missing:?} {present:?}"
        );
    }
    let as_many_as_may_be = vec!["it"; limits::MAX_MISSING_PATHS];
    assert!(paths.watch(&as_many_as_may_be, Some("file")).is_some());
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
