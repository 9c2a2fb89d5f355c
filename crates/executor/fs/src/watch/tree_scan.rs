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
    directory_tree::DirectoryPlacement,
    pending_changes::PathChange,
    tree_watch::{INTEREST, TreeWatch, WatchScope, presence},
};
use crate::inotify::{TaskWatches, WatchDescriptor};

/// A directory to list.
#[derive(Debug)]
pub(super) struct DirectoryScan {
    pub(super) directory: WatchDescriptor,
    pub(super) mode: ScanMode,
    /// What is left of the list, once it has been opened.
    entries: Option<ReadDir>,
    /// How often it has not been at its place.
    attempts: u32,
}

impl DirectoryScan {
    pub(super) fn new(directory: WatchDescriptor, mode: ScanMode) -> Self {
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
pub(super) enum ScanMode {
    /// Watch the directories.
    Quiet,
    /// Compare the directories with those known, and go down to them. Tell the new ones.
    Verify,
    /// Watch the directories, and tell everything.
    Fresh,
}

impl TreeWatch {
    /// Lists a part of the next directory.
    pub(super) fn scan(&mut self, watches: &mut TaskWatches<'_>) {
        let Some(mut scan) = self.pending.pop_front() else {
            return;
        };
        let directory = scan.directory;
        if !self.directories.contains(directory) {
            return;
        }
        let path = self.directories.path(directory);
        let path = path.filter(|path| watches.descriptor_at(path) == Some(directory));
        let Some(path) = path else {
            return self.scan_later(scan, watches);
        };
        match &mut self.scope {
            WatchScope::Tree => {}
            WatchScope::Entries => return,
            WatchScope::File {
                presence: known, ..
            } => {
                *known = presence(&self.root);
                return;
            }
        }
        let listed = self.list(&path, &mut scan, watches);
        if watches.descriptor_at(&path) != Some(directory) {
            if listed.moved {
                // What has been taken from another place may belong there.
                self.handle_lost_events();
            }
            return self.scan_later(scan, watches);
        }
        match listed.left {
            ScanRemainder::Done => {}
            ScanRemainder::Partial => self.pending.push_front(scan),
            ScanRemainder::Unreadable => self.mark_incomplete(),
        }
    }

    /// Lists a directory that is not at its place when the events have come that say where it is.
    pub(super) fn scan_later(&mut self, mut scan: DirectoryScan, watches: &mut TaskWatches<'_>) {
        let directory = scan.directory;
        if directory == self.directories.root() {
            self.end();
            return;
        }
        scan.entries = None;
        scan.attempts += 1;
        if scan.attempts > MAX_ATTEMPTS {
            self.forget_directory(directory, watches);
            self.abandoned_scans += 1;
            if self.abandoned_scans > MAX_ABANDONED_SCANS {
                self.mark_incomplete();
            } else {
                self.handle_lost_events();
            }
            return;
        }
        self.schedule_flush();
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
    pub(super) fn place_directory(
        &mut self,
        directory: WatchDescriptor,
        parent: WatchDescriptor,
        name: &OsStr,
        mode: ScanMode,
        watches: &mut TaskWatches<'_>,
    ) -> DirectoryPlacement {
        let placed = self.directories.place(directory, parent, name);
        if let DirectoryPlacement::New { displaced } | DirectoryPlacement::Moved { displaced } =
            placed
            && let Some(displaced) = displaced
        {
            self.detached.push(displaced);
            self.schedule_flush();
        }
        match placed {
            DirectoryPlacement::New { .. } => {
                if self.directories.len() > limits::MAX_WATCHED_DIRECTORIES {
                    self.forget_directory(directory, watches);
                    self.mark_incomplete();
                } else {
                    self.pending.push_back(DirectoryScan::new(directory, mode));
                }
            }
            DirectoryPlacement::Moved { .. } => {
                if self.events_lost {
                    // It may come from where nobody has looked yet to where all have.
                    self.pending
                        .push_back(DirectoryScan::new(directory, ScanMode::Verify));
                }
            }
            DirectoryPlacement::Stayed => {}
            DirectoryPlacement::Nowhere => {
                if !self.directories.contains(directory) {
                    watches.unwatch(directory);
                }
            }
        }
        placed
    }

    /// Judges why a directory is not watched.
    pub(super) fn handle_watch_error(&mut self, error: Errno) {
        let gone = matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP);
        let unreadable = matches!(error, Errno::ACCESS | Errno::PERM);
        if !gone && !unreadable {
            self.mark_incomplete();
        }
    }

    fn list(
        &mut self,
        path: &Path,
        scan: &mut DirectoryScan,
        watches: &mut TaskWatches<'_>,
    ) -> ScanProgress {
        let mut listed = ScanProgress {
            left: ScanRemainder::Partial,
            moved: false,
        };
        let entries = match &mut scan.entries {
            Some(entries) => entries,
            None => {
                if scan.mode == ScanMode::Verify {
                    self.verify_children(path, scan.directory, watches);
                }
                match fs::read_dir(path) {
                    Ok(entries) => scan.entries.insert(entries),
                    Err(_) => {
                        listed.left = ScanRemainder::Unreadable;
                        return listed;
                    }
                }
            }
        };
        for _ in 0..SCAN_BATCH {
            match entries.next() {
                Some(Ok(entry)) => {
                    let placed = self.visit(&entry, path, scan.directory, scan.mode, watches);
                    listed.moved |= matches!(placed, Some(DirectoryPlacement::Moved { .. }));
                }
                Some(Err(_)) => {
                    listed.left = ScanRemainder::Unreadable;
                    break;
                }
                None => {
                    listed.left = ScanRemainder::Done;
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
        parent: WatchDescriptor,
        mode: ScanMode,
        watches: &mut TaskWatches<'_>,
    ) -> Option<DirectoryPlacement> {
        let name = entry.file_name();
        let path = path.join(&name);
        if mode == ScanMode::Fresh {
            self.record_change(path.clone(), PathChange::Created);
        }
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return None;
        }
        if mode == ScanMode::Verify && self.directories.child(parent, &name).is_some() {
            return None;
        }
        let below = match mode {
            ScanMode::Quiet => ScanMode::Quiet,
            ScanMode::Verify | ScanMode::Fresh => ScanMode::Fresh,
        };
        match watches.watch(&path, INTEREST) {
            Ok(child) => {
                let placed = self.place_directory(child, parent, &name, below, watches);
                match placed {
                    DirectoryPlacement::New { .. } if mode == ScanMode::Verify => {
                        self.record_change(path, PathChange::Created)
                    }
                    DirectoryPlacement::Moved { .. } => {
                        self.record_change(path, PathChange::MovedHere)
                    }
                    DirectoryPlacement::New { .. }
                    | DirectoryPlacement::Stayed
                    | DirectoryPlacement::Nowhere => {}
                }
                Some(placed)
            }
            Err(error) => {
                self.handle_watch_error(error);
                None
            }
        }
    }

    /// Looks whether the known directories in a directory are there, and goes down to them.
    fn verify_children(
        &mut self,
        path: &Path,
        parent: WatchDescriptor,
        watches: &mut TaskWatches<'_>,
    ) {
        for (name, child) in self.directories.children(parent) {
            if watches.descriptor_at(&path.join(&name)) == Some(child) {
                self.pending
                    .push_back(DirectoryScan::new(child, ScanMode::Verify));
            } else {
                self.directories.detach(parent, &name);
                self.detached.push(child);
                self.schedule_flush();
            }
        }
    }
}

/// What came of listing a part of a directory.
struct ScanProgress {
    left: ScanRemainder,
    /// A directory was found that was known elsewhere.
    moved: bool,
}

/// What is left of a list.
enum ScanRemainder {
    Done,
    Partial,
    Unreadable,
}

/// Entries of one list until events are read again: a millisecond's work.
const SCAN_BATCH: usize = 256;
/// How often a directory may miss its place: it does once for every rename on the way to it that
/// has not been told yet.
const MAX_ATTEMPTS: u32 = 4;
/// How many directories may miss it that often before those are taken for ones that never are at
/// theirs: on some file systems (`/proc`) a directory is another one whenever it is looked at.
const MAX_ABANDONED_SCANS: u32 = 16;
