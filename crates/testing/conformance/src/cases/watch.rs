//! `fs/watch`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use exec_env::filesystem::{ChangeBatch, PathWatcher, WatchDepth};
use exec_wire::fs::{PathChange, PathChangeKind};
use futures_util::StreamExt;

use crate::{
    bounded_wait::within,
    bounded_wait::{done, not_found, unknown},
    difference::Difference,
    request::{copy, create, remove, rename, watch, write},
    scratch_dir::{ScratchDir, set_mode},
    subject::{Subject, uri},
};

/// Asserts that `fs/watch` is refused and returns true if the subject does not support it.
async fn assert_unsupported(subject: &Subject) -> bool {
    let assert_unsupported = subject.differs(Difference::NoWatch);
    if assert_unsupported {
        let scratch = ScratchDir::new();
        unknown(subject.files.watch(watch(scratch.root(), WatchDepth::Tree))).await;
    }
    assert_unsupported
}

/// Watch that records the changes it has reported.
struct RecordedWatch {
    watcher: PathWatcher,
    /// Changes since the last check.
    told: Vec<PathChange>,
    all: Vec<PathChange>,
    overflow: bool,
}

impl RecordedWatch {
    async fn new(subject: &Subject, path: &Path, depth: WatchDepth) -> Self {
        Self {
            watcher: done(subject.files.watch(watch(path, depth))).await,
            told: Vec::new(),
            all: Vec::new(),
            overflow: false,
        }
    }

    async fn next(&mut self) {
        let next = within("changes are reported", self.watcher.changes.next()).await;
        let ChangeBatch { changes, overflow } = next.expect("watch ended unexpectedly");
        assert!(!changes.is_empty() || overflow, "something is told");
        let paths: BTreeSet<_> = changes.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths.len(), changes.len(), "each path is told once");
        self.all.extend_from_slice(&changes);
        self.told.extend(changes);
        self.overflow |= overflow;
    }

    /// Waits until this change was reported. A few changes never overflow.
    async fn until(&mut self, path: &Path, kind: PathChangeKind) {
        let wanted = PathChange {
            path: uri(path),
            kind,
        };
        while !self.told.contains(&wanted) {
            self.next().await;
            assert!(!self.overflow, "nothing was lost");
        }
        self.told.clear();
    }
}

pub async fn watch_reports_changes_of_a_file(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let (file, moved) = (scratch.path("file"), scratch.path("moved"));
    let mut watched = RecordedWatch::new(subject, scratch.root(), WatchDepth::Tree).await;
    assert_eq!(watched.watcher.path, uri(scratch.root()));
    fs::write(&file, "created").unwrap();
    watched.until(&file, PathChangeKind::Created).await;
    fs::write(&file, "modified").unwrap();
    watched.until(&file, PathChangeKind::Modified).await;
    set_mode(&file, 0o600);
    watched.until(&file, PathChangeKind::Modified).await;
    fs::rename(&file, &moved).unwrap();
    watched.until(&moved, PathChangeKind::Renamed).await;
    fs::remove_file(&moved).unwrap();
    watched.until(&moved, PathChangeKind::Removed).await;
}

pub async fn watch_reports_both_names_of_a_rename(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let (old, new) = (scratch.file("old", ""), scratch.path("new"));
    let mut watched = RecordedWatch::new(subject, scratch.root(), WatchDepth::Tree).await;
    fs::rename(&old, &new).unwrap();
    let change = |path: &PathBuf| PathChange {
        path: uri(path),
        kind: PathChangeKind::Renamed,
    };
    while !(watched.told.contains(&change(&old)) && watched.told.contains(&change(&new))) {
        watched.next().await;
    }
}

pub async fn watch_reports_changes_made_through_the_environment(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let files = &subject.files;
    let mut watched = RecordedWatch::new(subject, scratch.root(), WatchDepth::Tree).await;
    let directory = scratch.path("directory");
    done(files.create_directory(create(&directory))).await;
    watched.until(&directory, PathChangeKind::Created).await;
    let (one, two, three) = (
        directory.join("one"),
        directory.join("two"),
        directory.join("three"),
    );
    done(files.write_file(write(&one), Bytes::from_static(b"x"))).await;
    watched.until(&one, PathChangeKind::Created).await;
    done(files.copy(copy(&one, &two))).await;
    watched.until(&two, PathChangeKind::Created).await;
    done(files.rename(rename(&two, &three))).await;
    watched.until(&three, PathChangeKind::Renamed).await;
    done(files.remove(remove(&directory))).await;
    watched.until(&directory, PathChangeKind::Removed).await;
}

pub async fn watch_covers_new_directories_and_their_content(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let mut watched = RecordedWatch::new(subject, scratch.root(), WatchDepth::Tree).await;
    // Immediately, before the watch can have noticed the new directories.
    let early = scratch.file("a/b/c/early", "");
    watched.until(&early, PathChangeKind::Created).await;
    let late = scratch.file("a/b/c/late", "");
    watched.until(&late, PathChangeKind::Created).await;
    // After a rename, the directory is watched under its new name.
    fs::rename(scratch.path("a"), scratch.path("z")).unwrap();
    watched
        .until(&scratch.path("z"), PathChangeKind::Renamed)
        .await;
    let later = scratch.file("z/b/c/later", "");
    watched.until(&later, PathChangeKind::Created).await;
}

pub async fn watch_reports_moves_into_and_out_of_the_tree(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.file("outside/tree/deep/file", "");
    let root = scratch.directory("root");
    let mut watched = RecordedWatch::new(subject, &root, WatchDepth::Tree).await;
    let (outside, tree) = (scratch.path("outside/tree"), root.join("tree"));
    fs::rename(&outside, &tree).unwrap();
    watched.until(&tree, PathChangeKind::Created).await;
    let new = scratch.file("root/tree/deep/new", "");
    watched.until(&new, PathChangeKind::Created).await;
    fs::rename(&tree, &outside).unwrap();
    watched.until(&tree, PathChangeKind::Removed).await;
    // Its new location is not watched.
    scratch.file("outside/tree/deep/late", "");
    let last = scratch.file("root/last", "");
    watched.until(&last, PathChangeKind::Created).await;
    let elsewhere = |change: &PathChange| change.path.as_str().ends_with("late");
    assert!(!watched.all.iter().any(elsewhere), "{:?}", watched.all);
}

pub async fn non_recursive_watch_covers_only_direct_entries(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let directory = scratch.directory("directory");
    let mut watched = RecordedWatch::new(subject, scratch.root(), WatchDepth::Entries).await;
    scratch.file("directory/below", "");
    scratch.file("new/below", "");
    let last = scratch.file("last", "");
    watched.until(&last, PathChangeKind::Created).await;
    let below = |change: &PathChange| {
        let path = change.path.to_native().unwrap();
        path.parent() != Some(scratch.root()) && path != scratch.root()
    };
    assert!(!watched.all.iter().any(below), "{:?}", watched.all);
    fs::remove_dir_all(directory).unwrap();
    watched
        .until(&scratch.path("directory"), PathChangeKind::Removed)
        .await;
}

pub async fn single_file_can_be_watched(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let file = scratch.file("file", "");
    let mut watched = RecordedWatch::new(subject, &file, WatchDepth::Tree).await;
    assert_eq!(watched.watcher.path, uri(&file));
    scratch.file("other", "");
    fs::write(&file, "modified").unwrap();
    watched.next().await;
    let modified = PathChange {
        path: uri(&file),
        kind: PathChangeKind::Modified,
    };
    assert_eq!(watched.told, [modified]);
    watched.told.clear();
    fs::remove_file(&file).unwrap();
    watched.until(&file, PathChangeKind::Removed).await;
}

pub async fn watch_through_a_symlink_reports_real_paths(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let real = scratch.directory("real");
    let link = scratch.link("link", "real");
    let mut watched = RecordedWatch::new(subject, &link, WatchDepth::Tree).await;
    assert_eq!(watched.watcher.path, uri(&real));
    let file = scratch.file("real/file", "");
    watched.until(&file, PathChangeKind::Created).await;
}

/// Waits until all these names or an overflow were reported.
async fn all_or_overflow(scratch: &ScratchDir, watched: &mut RecordedWatch, names: &[String]) {
    let text = |name: &String| uri(&scratch.path(name)).as_str().to_owned();
    let mut missing: BTreeSet<_> = names.iter().map(text).collect();
    while !missing.is_empty() && !watched.overflow {
        watched.next().await;
        for change in watched.told.drain(..) {
            missing.remove(change.path.as_str());
        }
    }
}

pub async fn burst_is_reported_completely_or_as_overflow(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let mut watched = RecordedWatch::new(subject, scratch.root(), WatchDepth::Tree).await;
    let names: Vec<_> = (0..2000).map(|number| number.to_string()).collect();
    for name in &names {
        scratch.file(name, "x");
    }
    all_or_overflow(&scratch, &mut watched, &names).await;
}

pub async fn stalled_watcher_is_told_about_lost_changes(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let mut watched = RecordedWatch::new(subject, scratch.root(), WatchDepth::Tree).await;
    let names: Vec<_> = (0..20_000).map(|number| number.to_string()).collect();
    for names in names.chunks(1000) {
        scratch.hard_linked_files(names.to_vec());
        // Other calls still work, which also gives the watch time to overflow.
        let other = scratch.path("other");
        done(subject.files.create_directory(create(&other))).await;
    }
    all_or_overflow(&scratch, &mut watched, &names).await;
    // Changes after the overflow are reported again.
    watched.overflow = false;
    let after = scratch.file("after", "");
    let told = |change: &PathChange| change.path == uri(&after);
    while !watched.told.iter().any(told) && !watched.overflow {
        watched.next().await;
    }
}

pub async fn two_watches_of_one_directory_both_report(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let mut one = RecordedWatch::new(subject, scratch.root(), WatchDepth::Tree).await;
    let mut two = RecordedWatch::new(subject, scratch.root(), WatchDepth::Entries).await;
    let file = scratch.file("file", "");
    one.until(&file, PathChangeKind::Created).await;
    two.until(&file, PathChangeKind::Created).await;
    drop(one);
    let other = scratch.file("other", "");
    two.until(&other, PathChangeKind::Created).await;
}

pub async fn dropping_a_watch_ends_it(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    // More than the limit of a connection, unless watches end.
    for _ in 0..100 {
        drop(RecordedWatch::new(subject, scratch.root(), WatchDepth::Tree).await);
    }
    let mut watched = RecordedWatch::new(subject, scratch.root(), WatchDepth::Tree).await;
    let file = scratch.file("file", "");
    watched.until(&file, PathChangeKind::Created).await;
}

pub async fn watch_reports_removal_of_its_root(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let mut watched = RecordedWatch::new(subject, &root, WatchDepth::Tree).await;
    fs::remove_dir(&root).unwrap();
    watched.until(&root, PathChangeKind::Removed).await;
    let end = within("watch ends", watched.watcher.changes.next()).await;
    assert_eq!(end, None);
}

pub async fn missing_path_cannot_be_watched(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let none = scratch.path("none");
    for depth in [WatchDepth::Tree, WatchDepth::Entries] {
        let text = not_found(subject.files.watch(watch(&none, depth))).await;
        assert!(text.contains(none.to_str().unwrap()), "{text}");
    }
}
