//! A watch without its thread: events come when the test hands them over, as late as it likes.

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

struct ByHand {
    root: PathBuf,
    outside: PathBuf,
    instance: InotifyInstance,
    tree: TreeWatch,
    batches: ChangeReceiver,
    start_reply: Receiver<Result<(), Errno>>,
    buffer: Vec<MaybeUninit<u8>>,
    _both: TempDir,
}

impl ByHand {
    fn new() -> Self {
        let both = tempfile::tempdir().unwrap();
        let real = both.path().canonicalize().unwrap();
        let (root, outside) = (real.join("root"), real.join("outside"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&outside).unwrap();
        let mut instance = InotifyInstance::new().unwrap();
        let (sender, batches) = pending_changes::pair();
        let (told, start_reply) = mpsc::sync_channel(1);
        let mut watches = instance.of(ID);
        let tree = TreeWatch::begin(
            root.clone(),
            WatchScope::Tree,
            sender,
            StartReply(told),
            &mut watches,
        );
        let mut by_hand = Self {
            root,
            outside,
            instance,
            tree: tree.unwrap(),
            batches,
            start_reply,
            buffer: buffer(),
            _both: both,
        };
        by_hand.work();
        assert_eq!(by_hand.start_reply.try_recv(), Ok(Ok(())));
        by_hand
    }

    /// Hands over all events.
    fn deliver(&mut self) {
        let queue = self.instance.queue().clone();
        read(&queue, &mut self.buffer, |event| {
            let event = event.expect("the kernel's queue is long enough");
            if self.instance.holders(event.directory).contains(&ID) {
                let mut watches = self.instance.of(ID);
                self.tree.handle_event(&event, &mut watches);
            }
        });
    }

    /// Throws all events away.
    fn set_overflow(&mut self) {
        let queue = self.instance.queue().clone();
        read(&queue, &mut self.buffer, |_| {});
        self.tree.handle_overflow();
    }

    /// Does one step of what there is to do.
    fn step(&mut self) {
        self.tree.work(&mut self.instance.of(ID));
    }

    fn work(&mut self) {
        while self.tree.has_work() {
            self.step();
        }
    }

    /// Ends the gathering of a batch.
    fn settle(&mut self) {
        if let Some(deadline) = self.tree.poll_timeout() {
            self.tree
                .handle_timeout(&mut self.instance.of(ID), deadline);
        }
        self.instance.reap();
    }

    /// Goes on until nothing is left to do.
    fn settle_all(&mut self) {
        while self.tree.has_work() || self.tree.poll_timeout().is_some() {
            self.deliver();
            self.work();
            self.settle();
        }
    }

    /// Goes on until nothing is left to do, and returns what was told.
    fn finish(&mut self) -> Changes {
        self.settle_all();
        self.batches.take().unwrap_or_default()
    }

    /// Asserts that exactly the directories that exist are watched, each by its path.
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
        let told = self.finish();
        assert!(!told.overflow);
        let paths = told.changes.iter().map(|change| change.path.clone());
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
fn directories_made_while_events_were_lost_are_watched() {
    let mut by_hand = ByHand::new();
    fs::create_dir_all(by_hand.root.join("old/below")).unwrap();
    by_hand.deliver();
    by_hand.finish();
    fs::remove_dir_all(by_hand.root.join("old")).unwrap();
    fs::create_dir_all(by_hand.root.join("new/below")).unwrap();
    by_hand.set_overflow();
    let told = by_hand.finish();
    assert!(told.overflow);
    by_hand.assert_complete();
}

#[test]
fn a_directory_is_listed_although_one_above_was_renamed_unheard() {
    let mut by_hand = ByHand::new();
    fs::create_dir(by_hand.root.join("a")).unwrap();
    by_hand.deliver();
    by_hand.work();
    fs::create_dir(by_hand.root.join("a/b")).unwrap();
    by_hand.deliver();
    fs::write(by_hand.root.join("a/b/file"), "").unwrap();
    fs::rename(by_hand.root.join("a"), by_hand.root.join("z")).unwrap();
    by_hand.work();
    let told = by_hand.finish();
    assert!(!told.overflow);
    let file = PathUri::from_native(&by_hand.root.join("z/b/file")).unwrap();
    assert!(told.changes.iter().any(|change| change.path == file));
    by_hand.assert_complete();
}

const ID: WatchTaskId = WatchTaskId(1);

/// A client that looks at every path it is told, below those that are new there, and at everything
/// after an overflow.
#[derive(Default)]
struct Client {
    known: BTreeSet<PathBuf>,
    /// What it would know without looking below what is created.
    told: BTreeSet<PathBuf>,
}

impl Client {
    fn hear(&mut self, by_hand: &ByHand) {
        let told = by_hand.batches.take().unwrap_or_default();
        for change in told.changes {
            let path = change.path.to_native().unwrap();
            if change.kind == Renamed {
                self.told.extend(everything(&path));
            }
            self.told.insert(path.clone());
            if change.kind == Modified && fs::symlink_metadata(&path).is_ok() {
                self.known.insert(path);
            } else {
                self.known.retain(|known| !known.starts_with(&path));
                self.known.extend(everything(&path));
            }
        }
        if told.overflow {
            self.known = everything(&by_hand.root);
            self.known.remove(&by_hand.root);
            self.told.extend(self.known.iter().cloned());
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

/// Something that happens to a tree, or in the watch of it. Names are few, so that they meet.
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

/// Up to three names of one letter each.
type Name = Vec<u8>;

impl Step {
    /// Does it, or fails to.
    fn take(&self, by_hand: &mut ByHand) {
        let path = |name: &Name| {
            let names = name.iter().map(|&letter| char::from(letter).to_string());
            by_hand.root.join(names.collect::<PathBuf>())
        };
        let beside = by_hand.outside.join("it");
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
            Self::Deliver => by_hand.deliver(),
            Self::Work => by_hand.step(),
            Self::Settle => by_hand.settle(),
            Self::Lose => by_hand.set_overflow(),
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
        let mut by_hand = ByHand::new();
        let mut client = Client::default();
        for step in steps {
            step.take(&mut by_hand);
            client.hear(&by_hand);
        }
        by_hand.deliver();
        by_hand.settle_all();
        client.hear(&by_hand);
        let mut expected = everything(&by_hand.root);
        expected.remove(&by_hand.root);
        assert_eq!(client.known, expected);
        let untold = expected.difference(&client.told);
        assert_eq!(untold.count(), 0);
        by_hand.assert_complete();
    }
}
