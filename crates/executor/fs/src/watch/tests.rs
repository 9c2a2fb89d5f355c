//! Watches on real directories.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use exec_env::filesystem::{Changes, FileError, WatchDepth, WatchPath, Watcher};
use exec_wire::{
    fs::ChangeKind::{self, Created, Modified, Removed, Renamed},
    limits,
    path_uri::PathUri,
};
use futures_util::StreamExt;
use tempfile::TempDir;
use tokio::time::timeout;

use super::watch;

mod by_hand;
mod roots;

/// A directory that is watched.
struct Watched {
    /// The directory, without links.
    root: PathBuf,
    /// Beside it, and not watched.
    outside: PathBuf,
    watcher: Watcher,
    _both: TempDir,
}

impl Watched {
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

    async fn batch(&mut self) -> Option<Changes> {
        let next = self.watcher.changes.next();
        timeout(PATIENCE, next).await.expect("a change is told")
    }

    /// Gathers what is told until `name` is, relative to the root. Later kinds replace earlier ones.
    async fn told_until(&mut self, name: &str) -> BTreeMap<String, ChangeKind> {
        let mut told = BTreeMap::new();
        while !told.contains_key(name) {
            let batch = self.batch().await.expect("the watch goes on");
            assert!(!batch.overflow);
            told.extend(self.by_name(batch));
        }
        told
    }

    /// Makes a last change, and returns everything that was told before and with it.
    async fn told(&mut self) -> BTreeMap<String, ChangeKind> {
        fs::write(self.root.join("last"), "").unwrap();
        let mut told = self.told_until("last").await;
        told.remove("last");
        told
    }

    fn by_name(&self, batch: Changes) -> BTreeMap<String, ChangeKind> {
        let count = batch.changes.len();
        let by_name = batch.changes.into_iter().map(|change| {
            let path = change.path.to_native().unwrap();
            let name = path.strip_prefix(&self.root).unwrap();
            (name.to_str().unwrap().to_owned(), change.kind)
        });
        let by_name = by_name.collect::<BTreeMap<_, _>>();
        assert_eq!(by_name.len(), count, "each path is told once");
        by_name
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

fn start(path: &Path, depth: WatchDepth) -> Result<Watcher, FileError> {
    watch(&WatchPath {
        path: PathUri::from_native(path).unwrap(),
        depth,
        sandbox: None,
    })
}

fn expected<const N: usize>(told: [(&str, ChangeKind); N]) -> BTreeMap<String, ChangeKind> {
    told.map(|(name, kind)| (name.to_owned(), kind)).into()
}

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_change_of_every_kind_is_told() {
    let mut watched = Watched::with(WatchDepth::Tree, |root| {
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
    let told = watched.told().await;
    let all = [
        ("a/b/new", Created),
        ("a/changed", Modified),
        ("a/b/gone", Removed),
        ("a/b/old", Renamed),
        ("a/renamed", Renamed),
        ("a/public", Modified),
    ];
    assert_eq!(told, expected(all));
}

#[tokio::test]
async fn entries_are_told_without_what_lies_below() {
    let mut watched = Watched::with(WatchDepth::Entries, |root| {
        fs::create_dir(root.join("old")).unwrap();
    });
    fs::create_dir(watched.path("new")).unwrap();
    fs::write(watched.path("new/file"), "1").unwrap();
    fs::write(watched.path("old/file"), "1").unwrap();
    assert_eq!(watched.told().await, expected([("new", Created)]));
}

#[tokio::test]
async fn what_comes_and_goes_within_a_batch_is_told_once() {
    let mut watched = Watched::tree();
    fs::write(watched.path("file"), "1").unwrap();
    fs::remove_file(watched.path("file")).unwrap();
    fs::write(watched.path("other.tmp"), "1").unwrap();
    fs::rename(watched.path("other.tmp"), watched.path("other")).unwrap();
    let told = [
        ("file", Removed),
        ("other", Renamed),
        ("other.tmp", Renamed),
    ];
    assert_eq!(watched.told().await, expected(told));
}

#[tokio::test]
async fn names_that_are_not_text_are_told() {
    let mut watched = Watched::tree();
    let directory = watched.root.join(OsStr::from_bytes(b"d\xff #"));
    let file = directory.join(OsStr::from_bytes(b"f\xfe%"));
    fs::create_dir(&directory).unwrap();
    fs::write(&file, "1").unwrap();
    let mut told = BTreeSet::new();
    while told.len() < 2 {
        let batch = watched.batch().await.unwrap();
        told.extend(
            batch
                .changes
                .into_iter()
                .map(|change| change.path.to_native().unwrap()),
        );
    }
    assert_eq!(told, BTreeSet::from([directory, file]));
}

#[tokio::test]
async fn links_below_are_told_and_not_followed() {
    let mut watched = Watched::tree();
    symlink(&watched.outside, watched.path("link")).unwrap();
    fs::write(watched.path("link/file"), "1").unwrap();
    assert_eq!(watched.told().await, expected([("link", Created)]));
}

#[tokio::test]
async fn a_tree_that_is_removed_is_told_piece_by_piece() {
    let mut watched = Watched::with(WatchDepth::Tree, |root| {
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "1").unwrap();
    });
    fs::remove_dir_all(watched.path("a")).unwrap();
    let gone = [("a", Removed), ("a/b", Removed), ("a/b/file", Removed)];
    assert_eq!(watched.told().await, expected(gone));
    fs::create_dir_all(watched.path("a/b")).unwrap();
    fs::write(watched.path("a/b/file"), "1").unwrap();
    let told = watched.told_until("a/b/file").await;
    assert_eq!(told["a/b/file"], Created);
}

#[tokio::test]
async fn two_watches_of_one_directory_are_told_the_same() {
    let mut watched = Watched::tree();
    let mut other = start(&watched.root, WatchDepth::Entries).unwrap();
    fs::write(watched.path("file"), "1").unwrap();
    let told = watched.told_until("file").await;
    assert_eq!(told["file"], Created);
    let also = timeout(PATIENCE, other.changes.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(watched.by_name(also)["file"], Created);
    drop(other);
    fs::write(watched.path("more"), "1").unwrap();
    assert_eq!(watched.told_until("more").await["more"], Created);
}

#[tokio::test]
async fn a_change_is_told_soon() {
    let mut watched = Watched::tree();
    let mut times = Vec::new();
    for number in 0..21 {
        let name = format!("{number}");
        let begin = std::time::Instant::now();
        fs::write(watched.path(&name), "1").unwrap();
        watched.told_until(&name).await;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!("median {median:?}, worst {:?}", times[times.len() - 1]);
    assert!(median >= limits::WATCH_DEBOUNCE);
    assert!(median < Duration::from_millis(60), "median {median:?}");
}
