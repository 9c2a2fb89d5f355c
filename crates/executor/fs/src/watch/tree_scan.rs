//! Listing directories: at the beginning, when they appear, and when events were lost.
//!
//! A directory is watched before it is listed, so what the list misses an event tells. Whether it
//! still is at its path is looked at before and after: a path that has changed hands meanwhile would
//! put directories into the wrong place.

use std::{
    collections::btree_map::Entry,
    ffi::OsStr,
    fs::{self, DirEntry, ReadDir},
    path::Path,
};

use exec_wire::limits;
use rustix::io::Errno;

use super::{
    directory_tree::Placed,
    pending_changes::Kind,
    tree_watch::{INTEREST, Scope, Tree, presence},
};
use crate::inotify::{Descriptor, Watches};

/// A directory to list.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) directory: Descriptor,
    pub(super) mode: Mode,
    /// What is left of the list, once it has been opened.
    entries: Option<ReadDir>,
    /// How often it has not been at its place.
    attempts: u32,
}

impl Scan {
    pub(super) fn new(directory: Descriptor, mode: Mode) -> Self {
        Self {
            directory,
            mode,
            entries: None,
            attempts: 0,
        }
    }
}

/// What to do with what is found; a later one does more.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Mode {
    /// Watch the directories.
    Quiet,
    /// Compare the directories with those known, and go down to them. Tell the new ones.
    Verify,
    /// Watch the directories, and tell everything.
    Fresh,
}

impl Tree {
    /// Lists a part of the next directory.
    pub(super) fn scan(&mut self, watches: &mut Watches<'_>) {
        let Some(mut scan) = self.pending.pop_front() else {
            return;
        };
        let directory = scan.directory;
        if !self.directories.contains(directory) {
            return;
        }
        let path = self.directories.path(directory);
        let path = path.filter(|path| watches.at(path) == Some(directory));
        let Some(path) = path else {
            return self.scan_later(scan, watches);
        };
        match &mut self.scope {
            Scope::Tree => {}
            Scope::Entries => return,
            Scope::File {
                presence: known, ..
            } => {
                *known = presence(&self.root);
                return;
            }
        }
        let listed = self.list(&path, &mut scan, watches);
        if watches.at(&path) != Some(directory) {
            if listed.moved {
                // What has been taken from another place may belong there.
                self.lose_track();
            }
            return self.scan_later(scan, watches);
        }
        match listed.left {
            Left::Nothing => {}
            Left::Something => self.pending.push_front(scan),
            Left::Unreadable => self.leave_out(),
        }
    }

    /// Lists a directory that is not at its place when the events have come that say where it is.
    pub(super) fn scan_later(&mut self, mut scan: Scan, watches: &mut Watches<'_>) {
        let directory = scan.directory;
        if directory == self.directories.root() {
            self.end();
            return;
        }
        scan.entries = None;
        scan.attempts += 1;
        if scan.attempts > MAX_ATTEMPTS {
            self.let_go(directory, watches);
            self.given_up += 1;
            if self.given_up > MAX_GIVEN_UP {
                self.leave_out();
            } else {
                self.lose_track();
            }
            return;
        }
        self.settle_soon();
        match self.waiting.entry(directory) {
            Entry::Vacant(entry) => {
                entry.insert(scan);
            }
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                known.mode = known.mode.max(scan.mode);
            }
        }
    }

    /// Puts a held directory at its place, and has it listed if it is new.
    pub(super) fn put(
        &mut self,
        directory: Descriptor,
        parent: Descriptor,
        name: &OsStr,
        mode: Mode,
        watches: &mut Watches<'_>,
    ) -> Placed {
        let placed = self.directories.place(directory, parent, name);
        if let Placed::New { displaced } | Placed::Moved { displaced } = placed
            && let Some(displaced) = displaced
        {
            self.detached.push(displaced);
            self.settle_soon();
        }
        match placed {
            Placed::New { .. } => {
                if self.directories.len() > limits::MAX_WATCHED_DIRECTORIES {
                    self.let_go(directory, watches);
                    self.leave_out();
                } else {
                    self.pending.push_back(Scan::new(directory, mode));
                }
            }
            Placed::Moved { .. } => {
                if self.events_lost {
                    // It may come from where nobody has looked yet to where all have.
                    self.pending.push_back(Scan::new(directory, Mode::Verify));
                }
            }
            Placed::Stayed => {}
            Placed::Nowhere => {
                if !self.directories.contains(directory) {
                    watches.release(directory);
                }
            }
        }
        placed
    }

    /// Judges why a directory is not watched.
    pub(super) fn not_held(&mut self, error: Errno) {
        let gone = matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP);
        let unreadable = matches!(error, Errno::ACCESS | Errno::PERM);
        if !gone && !unreadable {
            self.leave_out();
        }
    }

    fn list(&mut self, path: &Path, scan: &mut Scan, watches: &mut Watches<'_>) -> Listed {
        let mut listed = Listed {
            left: Left::Something,
            moved: false,
        };
        let entries = match &mut scan.entries {
            Some(entries) => entries,
            None => {
                if scan.mode == Mode::Verify {
                    self.verify_children(path, scan.directory, watches);
                }
                match fs::read_dir(path) {
                    Ok(entries) => scan.entries.insert(entries),
                    Err(_) => {
                        listed.left = Left::Unreadable;
                        return listed;
                    }
                }
            }
        };
        for _ in 0..ENTRIES_AT_ONCE {
            match entries.next() {
                Some(Ok(entry)) => {
                    let placed = self.visit(&entry, path, scan.directory, scan.mode, watches);
                    listed.moved |= matches!(placed, Some(Placed::Moved { .. }));
                }
                Some(Err(_)) => {
                    listed.left = Left::Unreadable;
                    break;
                }
                None => {
                    listed.left = Left::Nothing;
                    break;
                }
            }
        }
        listed
    }

    fn visit(
        &mut self,
        entry: &DirEntry,
        path: &Path,
        parent: Descriptor,
        mode: Mode,
        watches: &mut Watches<'_>,
    ) -> Option<Placed> {
        let name = entry.file_name();
        let path = path.join(&name);
        if mode == Mode::Fresh {
            self.tell(path.clone(), Kind::Created);
        }
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return None;
        }
        if mode == Mode::Verify && self.directories.child(parent, &name).is_some() {
            return None;
        }
        let below = match mode {
            Mode::Quiet => Mode::Quiet,
            Mode::Verify | Mode::Fresh => Mode::Fresh,
        };
        match watches.hold(&path, INTEREST) {
            Ok(child) => {
                let placed = self.put(child, parent, &name, below, watches);
                match placed {
                    Placed::New { .. } if mode == Mode::Verify => self.tell(path, Kind::Created),
                    Placed::Moved { .. } => self.tell(path, Kind::MovedHere),
                    Placed::New { .. } | Placed::Stayed | Placed::Nowhere => {}
                }
                Some(placed)
            }
            Err(error) => {
                self.not_held(error);
                None
            }
        }
    }

    /// Looks whether the known directories in a directory are there, and goes down to them.
    fn verify_children(&mut self, path: &Path, parent: Descriptor, watches: &mut Watches<'_>) {
        for (name, child) in self.directories.children(parent) {
            if watches.at(&path.join(&name)) == Some(child) {
                self.pending.push_back(Scan::new(child, Mode::Verify));
            } else {
                self.directories.detach(parent, &name);
                self.detached.push(child);
                self.settle_soon();
            }
        }
    }
}

/// What came of listing a part of a directory.
struct Listed {
    left: Left,
    /// A directory was found that was known elsewhere.
    moved: bool,
}

/// What is left of a list.
enum Left {
    Nothing,
    Something,
    Unreadable,
}

/// Entries of one list until events are read again: a millisecond's work.
const ENTRIES_AT_ONCE: usize = 256;
/// How often a directory may miss its place: it does once for every rename on the way to it that
/// has not been told yet.
const MAX_ATTEMPTS: u32 = 4;
/// How many directories may miss it that often before those are taken for ones that never are at
/// theirs: on some file systems (`/proc`) a directory is another one whenever it is looked at.
const MAX_GIVEN_UP: u32 = 16;
