//! One watch, on the thread that hears of everything.
//!
//! Events tell what was, in order; the kernel's number of what is at a path tells what is. Both are
//! asked: a directory is where an event says, unless it can be seen elsewhere.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ffi::OsString,
    fs, mem,
    path::{Path, PathBuf},
    time::Instant,
};

use exec_wire::limits;
use rustix::{
    fs::inotify::{ReadFlags, WatchFlags},
    io::Errno,
};

use super::{
    Begun,
    directory_tree::Directories,
    pending_changes::{Gathered, Kind, Outbox},
    tree_scan::{Mode, Scan},
};
use crate::inotify::{Cookie, Descriptor, Event, Task, Watches};

/// A watch.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) scope: Scope,
    pub(super) directories: Directories,
    /// The directories above, with the name in each that leads here.
    guards: HashMap<Descriptor, OsString>,
    /// Directories to list.
    pub(super) pending: VecDeque<Scan>,
    /// Directories to list when the events have come that tell where they are now.
    pub(super) waiting: BTreeMap<Descriptor, Scan>,
    /// Where renames began whose other end has not been told yet.
    pub(super) moves: HashMap<Cookie, Moved>,
    /// Directories that left their places, and are let go unless they turn up at others.
    pub(super) detached: Vec<Descriptor>,
    pub(super) gathered: Gathered,
    /// When what is gathered is told.
    deadline: Option<Instant>,
    /// Events were lost, and not everything has been looked at since.
    pub(super) events_lost: bool,
    /// A part of the tree is not watched.
    incomplete: bool,
    /// Directories that were never at their place, since everything was settled.
    pub(super) given_up: u32,
    /// `None` after the end.
    outbox: Option<Outbox>,
    begun: Option<Begun>,
}

impl Tree {
    /// Takes hold of the root, and begins to look for what lies below. `begun` is told when all of
    /// it is watched, or that nothing is.
    pub(super) fn begin(
        root: PathBuf,
        scope: Scope,
        outbox: Outbox,
        begun: Begun,
        watches: &mut Watches<'_>,
    ) -> Option<Self> {
        let top = match scope {
            Scope::Entries | Scope::Tree => Some(root.as_path()),
            Scope::File { .. } => root.parent(),
        };
        let top = top.unwrap_or(&root).to_owned();
        let guards = guards(&top, watches);
        let held = match watches.hold(&top, INTEREST) {
            Ok(held) => held,
            Err(error) => {
                begun.tell(Err(error));
                return None;
            }
        };
        let mut tree = Self {
            root,
            scope,
            directories: Directories::new(held, top),
            guards,
            pending: VecDeque::from([Scan::new(held, Mode::Quiet)]),
            waiting: BTreeMap::new(),
            moves: HashMap::new(),
            detached: Vec::new(),
            gathered: Gathered::default(),
            deadline: None,
            events_lost: false,
            incomplete: false,
            given_up: 0,
            outbox: Some(outbox),
            begun: Some(begun),
        };
        // It may have gone before the directories above were held.
        tree.check_root(watches);
        Some(tree)
    }

    /// Gathers a change.
    pub(super) fn tell(&mut self, path: PathBuf, kind: Kind) {
        self.gathered.add(path, kind);
        self.settle_soon();
    }

    /// Says that changes were lost, and looks at everything again.
    pub(super) fn lose_track(&mut self) {
        self.gathered.lose();
        self.settle_soon();
        self.incomplete = false;
        self.events_lost = true;
        let root = self.directories.root();
        let again = |scan: &Scan| scan.directory == root && scan.mode == Mode::Verify;
        if !self.pending.iter().any(again) {
            self.pending.push_back(Scan::new(root, Mode::Verify));
        }
    }

    /// Says that changes will be lost, because not everything can be watched.
    pub(super) fn leave_out(&mut self) {
        self.incomplete = true;
        self.gathered.lose();
        self.settle_soon();
    }

    /// Forgets what was lost once everything has been looked at.
    fn note_settled(&mut self) {
        if self.is_settled() {
            self.events_lost = false;
            self.given_up = 0;
        }
    }

    /// Sees to it that what is unsettled is settled before long.
    pub(super) fn settle_soon(&mut self) {
        self.deadline
            .get_or_insert_with(|| Instant::now() + limits::WATCH_DEBOUNCE);
    }

    /// Tells that the root is gone, and ends.
    pub(super) fn end(&mut self) {
        if let Some(begun) = self.begun.take() {
            begun.tell(Err(Errno::NOENT));
        }
        if let Some(outbox) = self.outbox.take() {
            self.gathered.add(self.root.clone(), Kind::Removed);
            outbox.put(self.gathered.take());
        }
    }

    /// Lets a directory go, with all that lies below.
    pub(super) fn let_go(&mut self, directory: Descriptor, watches: &mut Watches<'_>) {
        for gone in self.directories.remove(directory) {
            watches.release(gone);
        }
    }

    /// Tells whether a directory is where the events have said.
    pub(super) fn is_in_place(&self, directory: Descriptor, watches: &mut Watches<'_>) -> bool {
        let path = self.directories.path(directory);
        path.is_some_and(|path| watches.at(&path) == Some(directory))
    }

    /// Tells whether everything is known to be where it is.
    fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.waiting.is_empty() && self.detached.is_empty()
    }

    fn check_root(&mut self, watches: &mut Watches<'_>) {
        if !self.is_in_place(self.directories.root(), watches) {
            self.end();
        }
    }

    /// Gives up on what has not turned up, and goes on with what waited for it.
    fn settle(&mut self, watches: &mut Watches<'_>) {
        self.moves.clear();
        for directory in mem::take(&mut self.detached) {
            if !self.directories.is_attached(directory) {
                self.let_go(directory, watches);
            }
        }
        let waiting = mem::take(&mut self.waiting).into_values();
        self.pending
            .extend(waiting.filter(|scan| self.directories.contains(scan.directory)));
    }
}

impl Task for Tree {
    fn handle_event(&mut self, event: &Event<'_>, watches: &mut Watches<'_>) {
        let directory = event.directory;
        if event.what.contains(ReadFlags::IGNORED) {
            self.guards.remove(&directory);
            if directory == self.directories.root() {
                self.end();
            } else {
                self.let_go(directory, watches);
            }
            return;
        }
        if event.what.contains(ReadFlags::UNMOUNT) {
            // What was hidden below is seen again.
            self.lose_track();
            return;
        }
        let Some(name) = event.name else {
            let changed = event.what.contains(ReadFlags::ATTRIB);
            if changed && directory == self.directories.root() && !self.scope.is_file() {
                self.tell(self.root.clone(), Kind::Modified);
            }
            return;
        };
        let left = ReadFlags::DELETE | ReadFlags::MOVED_FROM;
        if event.what.intersects(left)
            && self
                .guards
                .get(&directory)
                .is_some_and(|on_the_way| on_the_way == name)
        {
            self.check_root(watches);
        }
        if self.directories.contains(directory) {
            self.handle_entry(event, name, watches);
        }
    }

    fn handle_overflow(&mut self) {
        self.lose_track();
    }

    fn handle_timeout(&mut self, watches: &mut Watches<'_>, now: Instant) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        self.deadline = None;
        self.settle(watches);
        if self.incomplete && !self.gathered.is_empty() {
            self.gathered.lose();
        }
        if let Some(outbox) = &self.outbox {
            outbox.put(self.gathered.take());
        }
        self.note_settled();
    }

    fn work(&mut self, watches: &mut Watches<'_>) {
        self.scan(watches);
        if self.pending.is_empty()
            && self.waiting.is_empty()
            && let Some(begun) = self.begun.take()
        {
            begun.tell(Ok(()));
        }
        self.note_settled();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    fn has_work(&self) -> bool {
        !self.pending.is_empty()
    }

    fn is_over(&self) -> bool {
        self.outbox.is_none()
    }
}

/// How much is watched.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Scope {
    /// The entries of a directory.
    Entries,
    /// Everything below a directory.
    Tree,
    /// One file: an entry of its directory, because editors replace files by others.
    File { name: OsString, presence: Presence },
}

impl Scope {
    /// Returns the scope of a file that is there; `None` if it has no name.
    pub(super) fn file(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_owned();
        let presence = Presence::There;
        Some(Self::File { name, presence })
    }

    fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

/// Whether a file is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Presence {
    There,
    Gone,
}

/// Returns whether something is at a path now, be it a link to nowhere.
pub(super) fn presence(path: &Path) -> Presence {
    match fs::symlink_metadata(path) {
        Ok(_) => Presence::There,
        Err(_) => Presence::Gone,
    }
}

/// Where a rename began.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) path: PathBuf,
    /// What was renamed, if it is a directory that is watched.
    pub(super) directory: Option<Descriptor>,
}

/// Watches the way to a directory. Those that may not be read are left out: whoever moves them goes
/// unnoticed.
fn guards(top: &Path, watches: &mut Watches<'_>) -> HashMap<Descriptor, OsString> {
    let mut guards = HashMap::new();
    for below in top.ancestors() {
        let (Some(above), Some(name)) = (below.parent(), below.file_name()) else {
            break;
        };
        if let Ok(held) = watches.hold(above, WatchFlags::DELETE | WatchFlags::MOVED_FROM) {
            guards.insert(held, name.to_owned());
        }
    }
    guards
}

/// What is asked of every directory of a tree. A file that is mapped into memory changes without a
/// sign until it is closed.
pub(super) const INTEREST: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO);
