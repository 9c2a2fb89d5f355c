//! A watch without its thread: the test delivers events, with any delay.

use std::{
    mem::MaybeUninit,
    sync::mpsc::{self, Receiver},
};

use proptest::prelude::*;
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

use super::*;
use crate::{
    inotify::{InotifyInstance, WatchTask, WatchTaskId, buffer, read},
    watch::{
        StartReply,
        pending_changes::{self, ChangeReceiver},
        tree_watch::{TreeWatch, WatchScope},
    },
};

struct ManualWatch {
    root: PathBuf,
    outside: PathBuf,
    instance: InotifyInstance,
    tree: TreeWatch,
    batches: ChangeReceiver,
    start_reply: Receiver<Result<(), Errno>>,
    buffer: Vec<MaybeUninit<u8>>,
    _both: TempDir,
}

impl ManualWatch {
    fn new() -> Self {
        let both = tempfile::tempdir().unwrap();
        let real = both.path().canonicalize().unwrap();
        let (root, outside) = (real.join("root"), real.join("outside"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&outside).unwrap();
        let mut instance = InotifyInstance::new().unwrap();
        let (sender, batches) = pending_changes::change_channel();
        let (reported, start_reply) = mpsc::sync_channel(1);
        let mut watches = instance.task_watches(ID);
        let tree = TreeWatch::begin(
            root.clone(),
            WatchScope::Tree,
            sender,
            StartReply(reported),
            &mut watches,
        );
        let mut watch = Self {
            root,
            outside,
            instance,
            tree: tree.unwrap(),
            batches,
            start_reply,
            buffer: buffer(),
            _both: both,
        };
        watch.work();
        assert_eq!(watch.start_reply.try_recv(), Ok(Ok(())));
        watch
    }

    /// Delivers all events.
    fn deliver(&mut self) {
        let queue = self.instance.queue().clone();
        read(&queue, &mut self.buffer, |event| {
            let event = event.expect("kernel queue overflowed");
            if self.instance.watchers(event.directory).contains(&ID) {
                let mut watches = self.instance.task_watches(ID);
                self.tree.handle_event(&event, &mut watches);
            }
        });
    }

    /// Discards all events.
    fn discard_events(&mut self) {
        let queue = self.instance.queue().clone();
        read(&queue, &mut self.buffer, |_| {});
        self.tree.handle_overflow();
    }

    /// Does one step of the pending work.
    fn step(&mut self) {
        self.tree.work(&mut self.instance.task_watches(ID));
    }

    fn work(&mut self) {
        while self.tree.has_work() {
            self.step();
        }
    }

    /// Ends the current batch.
    fn settle(&mut self) {
        if let Some(deadline) = self.tree.poll_timeout() {
            self.tree
                .handle_timeout(&mut self.instance.task_watches(ID), deadline);
        }
        self.instance.remove_unwatched();
    }

    /// Runs until no work is left.
    fn settle_all(&mut self) {
        while self.tree.has_work() || self.tree.poll_timeout().is_some() {
            self.deliver();
            self.work();
            self.settle();
        }
    }

    /// Runs until no work is left, and returns the reported changes.
    fn finish(&mut self) -> ChangeBatch {
        self.settle_all();
        self.batches.take().unwrap_or_default()
    }

    /// Asserts that exactly the existing directories are watched, each under its path.
    fn assert_complete(&mut self) {
        self.deliver();
        self.finish();
        let mut expected = BTreeSet::new();
        for directory in directories(&self.root) {
            let file = directory.join("probe");
            fs::write(&file, "").unwrap();
            fs::remove_file(&file).unwrap();
            fs::write(&file, "").unwrap();
            expected.insert(PathUri::from_native(&file).unwrap());
        }
        self.deliver();
        let reported = self.finish();
        assert!(!reported.overflow);
        let paths = reported.changes.iter().map(|change| change.path.clone());
        assert_eq!(paths.collect::<BTreeSet<_>>(), expected);
        assert_eq!(self.tree.directories.len(), expected.len());
    }
}

fn directories(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next).cloned() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                found.push(entry.path());
            }
        }
        next += 1;
    }
    found
}

#[test]
fn directories_created_during_event_loss_are_watched() {
    let mut watch = ManualWatch::new();
    fs::create_dir_all(watch.root.join("old/below")).unwrap();
    watch.deliver();
    watch.finish();
    fs::remove_dir_all(watch.root.join("old")).unwrap();
    fs::create_dir_all(watch.root.join("new/below")).unwrap();
    watch.discard_events();
    let reported = watch.finish();
    assert!(reported.overflow);
    watch.assert_complete();
}

#[test]
fn directory_is_listed_despite_unreported_ancestor_rename() {
    let mut watch = ManualWatch::new();
    fs::create_dir(watch.root.join("a")).unwrap();
    watch.deliver();
    watch.work();
    fs::create_dir(watch.root.join("a/b")).unwrap();
    watch.deliver();
    fs::write(watch.root.join("a/b/file"), "").unwrap();
    fs::rename(watch.root.join("a"), watch.root.join("z")).unwrap();
    watch.work();
    let reported = watch.finish();
    assert!(!reported.overflow);
    let file = PathUri::from_native(&watch.root.join("z/b/file")).unwrap();
    assert!(reported.changes.iter().any(|change| change.path == file));
    watch.assert_complete();
}

const ID: WatchTaskId = WatchTaskId(1);

/// A client that checks every reported path, everything below new ones, and everything after an
/// overflow.
#[derive(Default)]
struct Client {
    known: BTreeSet<PathBuf>,
    /// The paths it would know without checking below created ones.
    reported: BTreeSet<PathBuf>,
}

impl Client {
    fn hear(&mut self, watch: &ManualWatch) {
        let reported = watch.batches.take().unwrap_or_default();
        for change in reported.changes {
            let path = change.path.to_native().unwrap();
            if change.kind == Renamed {
                self.reported.extend(everything(&path));
            }
            self.reported.insert(path.clone());
            if change.kind == Modified && fs::symlink_metadata(&path).is_ok() {
                self.known.insert(path);
            } else {
                self.known.retain(|known| !known.starts_with(&path));
                self.known.extend(everything(&path));
            }
        }
        if reported.overflow {
            self.known = everything(&watch.root);
            self.known.remove(&watch.root);
            self.reported.extend(self.known.iter().cloned());
        }
    }
}

/// Returns all paths from `root` down.
fn everything(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    if fs::symlink_metadata(root).is_ok() {
        found.insert(root.to_owned());
    }
    for entry in fs::read_dir(root).into_iter().flatten() {
        found.extend(everything(&entry.unwrap().path()));
    }
    found
}

/// An operation on the tree or on its watch. There are few names, so that they collide.
#[derive(Clone, Debug)]
enum Step {
    Make(Name),
    Write(Name),
    Remove(Name),
    Rename(Name, Name),
    Exchange(Name, Name),
    MoveOut(Name),
    MoveIn(Name),
    Deliver,
    Work,
    Settle,
    Lose,
}

/// Up to three components of one letter each.
type Name = Vec<u8>;

impl Step {
    /// Applies the operation; it may fail.
    fn take(&self, watch: &mut ManualWatch) {
        let path = |name: &Name| {
            let names = name.iter().map(|&letter| char::from(letter).to_string());
            watch.root.join(names.collect::<PathBuf>())
        };
        let beside = watch.outside.join("it");
        match self {
            Self::Make(name) => drop(fs::create_dir_all(path(name))),
            Self::Write(name) => drop(fs::write(path(name).join("file"), "")),
            Self::Remove(name) => drop(fs::remove_dir_all(path(name))),
            Self::Rename(from, to) => drop(fs::rename(path(from), path(to))),
            Self::Exchange(from, to) => {
                let exchange = RenameFlags::EXCHANGE;
                renameat_with(CWD, path(from), CWD, path(to), exchange).ok();
            }
            Self::MoveOut(name) => drop(fs::rename(path(name), beside)),
            Self::MoveIn(name) => drop(fs::rename(beside, path(name))),
            Self::Deliver => watch.deliver(),
            Self::Work => watch.step(),
            Self::Settle => watch.settle(),
            Self::Lose => watch.discard_events(),
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || prop::collection::vec(prop::sample::select(b"abc".as_slice()), 1..4);
    let step = prop_oneof![
        6 => name().prop_map(Step::Make),
        4 => name().prop_map(Step::Write),
        2 => name().prop_map(Step::Remove),
        4 => (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => (name(), name()).prop_map(|(from, to)| Step::Exchange(from, to)),
        1 => name().prop_map(Step::MoveOut),
        1 => name().prop_map(Step::MoveIn),
        3 => Just(Step::Deliver),
        4 => Just(Step::Work),
        1 => Just(Step::Settle),
        1 => Just(Step::Lose),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn whatever_happens_the_client_knows_and_the_directories_are_watched(steps in steps()) {
        let mut watch = ManualWatch::new();
        let mut client = Client::default();
        for step in steps {
            step.take(&mut watch);
            client.hear(&watch);
        }
        watch.deliver();
        watch.settle_all();
        client.hear(&watch);
        let mut expected = everything(&watch.root);
        expected.remove(&watch.root);
        assert_eq!(client.known, expected);
        let untold = expected.difference(&client.reported);
        assert_eq!(untold.count(), 0);
        watch.assert_complete();
    }
}
