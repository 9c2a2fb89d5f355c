//! Watches for paths that are not there.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_env::filesystem::{MissingPaths, MissingWatch};
use exec_wire::{limits, path_uri::PathUri};
use futures_util::FutureExt;
use tempfile::TempDir;
use tokio::time::timeout;

use super::watch_missing;

/// A directory to look for things in.
struct EntryLocation {
    root: PathBuf,
    _kept: TempDir,
}

impl EntryLocation {
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

    fn watch(&self, missing: &[&str], present: Option<&str>) -> Option<MissingWatch> {
        let paths = MissingPaths {
            missing: missing.iter().map(|name| self.uri(name)).collect(),
            present: present.map(|name| self.uri(name)),
            sandbox: None,
        };
        watch_missing(&paths).unwrap()
    }

    /// Watches, then does several things: the last must be told, and none of the others may be.
    async fn assert_last_is_told(
        &self,
        missing: &[&str],
        present: Option<&str>,
        changes: &[&dyn Fn(&Self)],
    ) {
        let (last, others) = changes.split_last().unwrap();
        let mut watch = self.watch(missing, present).expect("it can be watched");
        for change in others {
            change(self);
            self.settle().await;
            assert!(watch.as_mut().now_or_never().is_none(), "told too early");
        }
        last(self);
        timeout(PATIENCE, watch).await.expect("it is told");
    }

    /// Waits until everything that has happened has been heard of: events have one order.
    async fn settle(&self) {
        let beside = Self::new();
        let watch = beside.watch(&["it"], None).unwrap();
        create(&beside.path("it"));
        timeout(PATIENCE, watch).await.expect("it is told");
    }
}

fn create(path: &Path) {
    fs::write(path, "1").unwrap();
}

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_path_that_appears_is_told_and_its_siblings_are_not() {
    let place = EntryLocation::new();
    create(&place.path("old"));
    let changes: [&dyn Fn(&EntryLocation); 5] = [
        &|place| create(&place.path("sibling")),
        &|place| fs::create_dir(place.path("directory")).unwrap(),
        &|place| create(&place.path("old")),
        &|place| fs::remove_file(place.path("old")).unwrap(),
        &|place| create(&place.path("it")),
    ];
    place
        .assert_last_is_told(&["other", "it"], None, &changes)
        .await;
}

#[tokio::test]
async fn a_missing_directory_above_is_told() {
    let place = EntryLocation::new();
    let changes: [&dyn Fn(&EntryLocation); 2] = [&|place| create(&place.path("b")), &|place| {
        fs::create_dir(place.path("a")).unwrap()
    }];
    place.assert_last_is_told(&["a/b/it"], None, &changes).await;
}

#[tokio::test]
async fn a_path_that_is_renamed_into_its_place_is_told() {
    let place = EntryLocation::new();
    create(&place.path("before"));
    let rename: &dyn Fn(&EntryLocation) =
        &|place| fs::rename(place.path("before"), place.path("it")).unwrap();
    place.assert_last_is_told(&["it"], None, &[rename]).await;
}

#[tokio::test]
async fn a_link_to_nowhere_that_appears_is_told() {
    let place = EntryLocation::new();
    let link: &dyn Fn(&EntryLocation) = &|place| symlink("nowhere", place.path("it")).unwrap();
    place.assert_last_is_told(&["it"], None, &[link]).await;
}

#[tokio::test]
async fn a_directory_above_that_is_moved_is_told() {
    let place = EntryLocation::new();
    fs::create_dir_all(place.path("a/b")).unwrap();
    let rename: &dyn Fn(&EntryLocation) =
        &|place| fs::rename(place.path("a"), place.path("z")).unwrap();
    place
        .assert_last_is_told(&["a/b/it"], None, &[rename])
        .await;
}

#[tokio::test]
async fn a_directory_above_that_is_removed_is_told() {
    let place = EntryLocation::new();
    fs::create_dir_all(place.path("a/b")).unwrap();
    let in_use = fs::File::open(place.path("a/b")).unwrap();
    let remove: &dyn Fn(&EntryLocation) = &|place| fs::remove_dir(place.path("a/b")).unwrap();
    place
        .assert_last_is_told(&["a/b/it"], None, &[remove])
        .await;
    drop(in_use);
}

#[tokio::test]
async fn a_present_directory_is_told_when_it_goes_and_not_when_it_fills() {
    let place = EntryLocation::new();
    fs::create_dir(place.path("d")).unwrap();
    let changes: [&dyn Fn(&EntryLocation); 3] = [
        &|place| create(&place.path("d/file")),
        &|place| fs::create_dir(place.path("d/directory")).unwrap(),
        &|place| fs::rename(place.path("d"), place.path("e")).unwrap(),
    ];
    place
        .assert_last_is_told(&["it"], Some("d"), &changes)
        .await;
}

#[tokio::test]
async fn a_present_file_is_told_when_it_is_removed_or_written() {
    let place = EntryLocation::new();
    create(&place.path("file"));
    let write: &dyn Fn(&EntryLocation) = &|place| fs::write(place.path("file"), "2").unwrap();
    place
        .assert_last_is_told(&["it"], Some("file"), &[write])
        .await;
    let remove: &dyn Fn(&EntryLocation) = &|place| fs::remove_file(place.path("file")).unwrap();
    place
        .assert_last_is_told(&["it"], Some("file"), &[remove])
        .await;
}

#[test]
fn paths_that_are_not_as_said_are_not_watched() {
    let place = EntryLocation::new();
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
        let paths = MissingPaths {
            missing: vec![PathUri::parse(text).unwrap()],
            present: None,
            sandbox: None,
        };
        assert!(watch_missing(&paths).unwrap().is_none(), "{text}");
    }
}
