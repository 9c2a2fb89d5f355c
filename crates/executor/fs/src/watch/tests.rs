//! Watches on real directories.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use exec_env::filesystem::{ChangeBatch, FileError, PathWatcher, WatchDepth, WatchPathRequest};
use exec_wire::{
    fs::PathChangeKind::{self, Created, Modified, Removed, Renamed},
    limits,
    path_uri::PathUri,
};
use futures_util::StreamExt;
use tempfile::TempDir;
use tokio::time::timeout;

use super::watch;

mod manual_watch;
mod roots;

/// A watched directory.
struct WatchedTree {
    /// The directory, without links.
    root: PathBuf,
    /// A sibling that is not watched.
    outside: PathBuf,
    watcher: PathWatcher,
    _both: TempDir,
}

impl WatchedTree {
    fn tree() -> Self {
        Self::with(WatchDepth::Tree, |_| {})
    }

    /// Fills the directory, then watches it.
    fn with(depth: WatchDepth, fill: impl FnOnce(&Path)) -> Self {
        let both = tempfile::tempdir().unwrap();
        let real = both.path().canonicalize().unwrap();
        let (root, outside) = (real.join("root"), real.join("outside"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&outside).unwrap();
        fill(&root);
        let watcher = start(&root, depth).unwrap();
        assert_eq!(watcher.path, PathUri::from_native(&root).unwrap());
        Self {
            root,
            outside,
            watcher,
            _both: both,
        }
    }

    async fn batch(&mut self) -> Option<ChangeBatch> {
        let next = self.watcher.changes.next();
        timeout(TEST_TIMEOUT, next)
            .await
            .expect("expected a change")
    }

    /// Collects changes, by name relative to the root, until `name` is reported. Later kinds
    /// replace earlier ones.
    async fn changes_until(&mut self, name: &str) -> BTreeMap<String, PathChangeKind> {
        let mut reported = BTreeMap::new();
        while !reported.contains_key(name) {
            let batch = self.batch().await.expect("watch ended");
            assert!(!batch.overflow);
            reported.extend(self.by_name(batch));
        }
        reported
    }

    /// Makes a final change, and returns everything reported up to it.
    async fn changes(&mut self) -> BTreeMap<String, PathChangeKind> {
        fs::write(self.root.join("last"), "").unwrap();
        let mut reported = self.changes_until("last").await;
        reported.remove("last");
        reported
    }

    fn by_name(&self, batch: ChangeBatch) -> BTreeMap<String, PathChangeKind> {
        let count = batch.changes.len();
        let by_name = batch.changes.into_iter().map(|change| {
            let path = change.path.to_native().unwrap();
            let name = path.strip_prefix(&self.root).unwrap();
            (name.to_str().unwrap().to_owned(), change.kind)
        });
        let by_name = by_name.collect::<BTreeMap<_, _>>();
        assert_eq!(by_name.len(), count, "path reported twice");
        by_name
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

fn start(path: &Path, depth: WatchDepth) -> Result<PathWatcher, FileError> {
    watch(&WatchPathRequest {
        path: PathUri::from_native(path).unwrap(),
        depth,
        sandbox: None,
    })
}

fn expected<const N: usize>(
    reported: [(&str, PathChangeKind); N],
) -> BTreeMap<String, PathChangeKind> {
    reported.map(|(name, kind)| (name.to_owned(), kind)).into()
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn every_kind_of_change_is_reported() {
    let mut watched = WatchedTree::with(WatchDepth::Tree, |root| {
        fs::create_dir_all(root.join("a/b")).unwrap();
        for name in ["a/changed", "a/b/gone", "a/b/old", "a/public"] {
            fs::write(root.join(name), "1").unwrap();
        }
    });
    fs::write(watched.path("a/b/new"), "1").unwrap();
    fs::write(watched.path("a/changed"), "2").unwrap();
    fs::remove_file(watched.path("a/b/gone")).unwrap();
    fs::rename(watched.path("a/b/old"), watched.path("a/renamed")).unwrap();
    let mut mode = fs::metadata(watched.path("a/public"))
        .unwrap()
        .permissions();
    mode.set_readonly(true);
    fs::set_permissions(watched.path("a/public"), mode).unwrap();
    let reported = watched.changes().await;
    let all = [
        ("a/b/new", Created),
        ("a/changed", Modified),
        ("a/b/gone", Removed),
        ("a/b/old", Renamed),
        ("a/renamed", Renamed),
        ("a/public", Modified),
    ];
    assert_eq!(reported, expected(all));
}

#[tokio::test]
async fn entries_scope_reports_no_descendants() {
    let mut watched = WatchedTree::with(WatchDepth::Entries, |root| {
        fs::create_dir(root.join("old")).unwrap();
    });
    fs::create_dir(watched.path("new")).unwrap();
    fs::write(watched.path("new/file"), "1").unwrap();
    fs::write(watched.path("old/file"), "1").unwrap();
    assert_eq!(watched.changes().await, expected([("new", Created)]));
}

#[tokio::test]
async fn short_lived_entry_is_reported_once_per_batch() {
    let mut watched = WatchedTree::tree();
    fs::write(watched.path("file"), "1").unwrap();
    fs::remove_file(watched.path("file")).unwrap();
    fs::write(watched.path("other.tmp"), "1").unwrap();
    fs::rename(watched.path("other.tmp"), watched.path("other")).unwrap();
    let reported = [
        ("file", Removed),
        ("other", Renamed),
        ("other.tmp", Renamed),
    ];
    assert_eq!(watched.changes().await, expected(reported));
}

#[tokio::test]
async fn non_utf8_names_are_reported() {
    let mut watched = WatchedTree::tree();
    let directory = watched.root.join(OsStr::from_bytes(b"d\xff #"));
    let file = directory.join(OsStr::from_bytes(b"f\xfe%"));
    fs::create_dir(&directory).unwrap();
    fs::write(&file, "1").unwrap();
    let mut reported = BTreeSet::new();
    while reported.len() < 2 {
        let batch = watched.batch().await.unwrap();
        reported.extend(
            batch
                .changes
                .into_iter()
                .map(|change| change.path.to_native().unwrap()),
        );
    }
    assert_eq!(reported, BTreeSet::from([directory, file]));
}

#[tokio::test]
async fn links_in_the_tree_are_reported_but_not_followed() {
    let mut watched = WatchedTree::tree();
    symlink(&watched.outside, watched.path("link")).unwrap();
    fs::write(watched.path("link/file"), "1").unwrap();
    assert_eq!(watched.changes().await, expected([("link", Created)]));
}

#[tokio::test]
async fn removed_tree_is_reported_entry_by_entry() {
    let mut watched = WatchedTree::with(WatchDepth::Tree, |root| {
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "1").unwrap();
    });
    fs::remove_dir_all(watched.path("a")).unwrap();
    let gone = [("a", Removed), ("a/b", Removed), ("a/b/file", Removed)];
    assert_eq!(watched.changes().await, expected(gone));
    fs::create_dir_all(watched.path("a/b")).unwrap();
    fs::write(watched.path("a/b/file"), "1").unwrap();
    let reported = watched.changes_until("a/b/file").await;
    assert_eq!(reported["a/b/file"], Created);
}

#[tokio::test]
async fn two_watches_of_one_directory_report_the_same() {
    let mut watched = WatchedTree::tree();
    let mut other = start(&watched.root, WatchDepth::Entries).unwrap();
    fs::write(watched.path("file"), "1").unwrap();
    let reported = watched.changes_until("file").await;
    assert_eq!(reported["file"], Created);
    let also = timeout(TEST_TIMEOUT, other.changes.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(watched.by_name(also)["file"], Created);
    drop(other);
    fs::write(watched.path("more"), "1").unwrap();
    assert_eq!(watched.changes_until("more").await["more"], Created);
}

#[tokio::test]
async fn change_is_reported_promptly() {
    let mut watched = WatchedTree::tree();
    let mut times = Vec::new();
    for number in 0..21 {
        let name = format!("{number}");
        let begin = std::time::Instant::now();
        fs::write(watched.path(&name), "1").unwrap();
        watched.changes_until(&name).await;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!("median {median:?}, worst {:?}", times[times.len() - 1]);
    assert!(median >= limits::WATCH_DEBOUNCE);
    assert!(median < Duration::from_millis(60), "median {median:?}");
}
