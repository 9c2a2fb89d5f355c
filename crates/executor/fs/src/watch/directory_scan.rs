//! Lists directories: at the start, when they appear, and after lost events.
//!
//! A directory is watched before it is listed, so an event reports anything that the listing
//! misses. Its path is checked before and after: a path that leads elsewhere meanwhile would put
//! directories in the wrong place.

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
    pending_changes::ObservedChange,
    tree_watch::{TreeWatch, WATCHED_EVENTS, WatchScope, presence},
};
use crate::inotify::{TaskWatches, WatchDescriptor};

/// A directory to list.
#[derive(Debug)]
pub(super) struct DirectoryScan {
    pub(super) directory: WatchDescriptor,
    pub(super) mode: ScanMode,
    /// The rest of the listing, once it has been opened.
    entries: Option<ReadDir>,
    /// How often the directory was not at its path.
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

/// What to do with listed entries; later modes do more.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum ScanMode {
    /// Watch the directories.
    Quiet,
    /// Compare the directories with the known ones, scan those, and report the new ones.
    Verify,
    /// Watch the directories, and report all entries.
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
            return self.postpone_scan(scan, watches);
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
        let progress = self.list(&path, &mut scan, watches);
        if watches.descriptor_at(&path) != Some(directory) {
            if progress.moved {
                // Directories that were moved here from another path may belong there.
                self.handle_lost_events();
            }
            return self.postpone_scan(scan, watches);
        }
        match progress.remainder {
            ScanRemainder::Done => {}
            ScanRemainder::Partial => self.pending.push_front(scan),
            ScanRemainder::Unreadable => self.mark_incomplete(),
        }
    }

    /// Postpones the scan of a directory that is not at its path until events report where it is.
    pub(super) fn postpone_scan(&mut self, mut scan: DirectoryScan, watches: &mut TaskWatches<'_>) {
        let directory = scan.directory;
        if directory == self.directories.root() {
            self.end();
            return;
        }
        scan.entries = None;
        scan.attempts += 1;
        if scan.attempts > MAX_SCAN_ATTEMPTS {
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

    /// Places a watched directory in the tree, and schedules a scan if it is new.
    pub(super) fn place_directory(
        &mut self,
        directory: WatchDescriptor,
        parent: WatchDescriptor,
        name: &OsStr,
        mode: ScanMode,
        watches: &mut TaskWatches<'_>,
    ) -> DirectoryPlacement {
        let placement = self.directories.place(directory, parent, name);
        if let DirectoryPlacement::New { displaced } | DirectoryPlacement::Moved { displaced } =
            placement
            && let Some(displaced) = displaced
        {
            self.detached.push(displaced);
            self.schedule_flush();
        }
        match placement {
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
                    // It may have moved from a part that was not scanned yet to one that was.
                    self.pending
                        .push_back(DirectoryScan::new(directory, ScanMode::Verify));
                }
            }
            DirectoryPlacement::Unchanged => {}
            DirectoryPlacement::Rejected => {
                if !self.directories.contains(directory) {
                    watches.unwatch(directory);
                }
            }
        }
        placement
    }

    /// Handles a failed attempt to watch a directory.
    pub(super) fn handle_watch_error(&mut self, error: Errno) {
        let is_missing = matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP);
        let is_unreadable = matches!(error, Errno::ACCESS | Errno::PERM);
        if !is_missing && !is_unreadable {
            self.mark_incomplete();
        }
    }

    fn list(
        &mut self,
        path: &Path,
        scan: &mut DirectoryScan,
        watches: &mut TaskWatches<'_>,
    ) -> ScanProgress {
        let mut progress = ScanProgress {
            remainder: ScanRemainder::Partial,
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
                        progress.remainder = ScanRemainder::Unreadable;
                        return progress;
                    }
                }
            }
        };
        for _ in 0..SCAN_BATCH {
            match entries.next() {
                Some(Ok(entry)) => {
                    let placement = self.visit(&entry, path, scan.directory, scan.mode, watches);
                    progress.moved |= matches!(placement, Some(DirectoryPlacement::Moved { .. }));
                }
                Some(Err(_)) => {
                    progress.remainder = ScanRemainder::Unreadable;
                    break;
                }
                None => {
                    progress.remainder = ScanRemainder::Done;
                    break;
                }
            }
        }
        progress
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
            self.record_change(path.clone(), ObservedChange::Created);
        }
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return None;
        }
        if mode == ScanMode::Verify && self.directories.child(parent, &name).is_some() {
            return None;
        }
        let child_mode = match mode {
            ScanMode::Quiet => ScanMode::Quiet,
            ScanMode::Verify | ScanMode::Fresh => ScanMode::Fresh,
        };
        match watches.watch(&path, WATCHED_EVENTS) {
            Ok(child) => {
                let placement = self.place_directory(child, parent, &name, child_mode, watches);
                match placement {
                    DirectoryPlacement::New { .. } if mode == ScanMode::Verify => {
                        self.record_change(path, ObservedChange::Created)
                    }
                    DirectoryPlacement::Moved { .. } => {
                        self.record_change(path, ObservedChange::MovedHere)
                    }
                    DirectoryPlacement::New { .. }
                    | DirectoryPlacement::Unchanged
                    | DirectoryPlacement::Rejected => {}
                }
                Some(placement)
            }
            Err(error) => {
                self.handle_watch_error(error);
                None
            }
        }
    }

    /// Checks whether the known subdirectories still exist, and schedules their scans.
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

/// The progress of a scan.
struct ScanProgress {
    remainder: ScanRemainder,
    /// Whether a directory was found that was known at another path.
    moved: bool,
}

/// How much of a listing remains.
enum ScanRemainder {
    Done,
    Partial,
    Unreadable,
}

/// Entries listed before events are read again: about a millisecond's work.
const SCAN_BATCH: usize = 256;
/// How often a directory may be missing from its path. It is missing once for every unreported
/// rename of an ancestor.
const MAX_SCAN_ATTEMPTS: u32 = 4;
/// How many directories may exceed `MAX_SCAN_ATTEMPTS` before they are ignored: on some file
/// systems (`/proc`) a directory gets a new inode each time it is looked up.
const MAX_ABANDONED_SCANS: u32 = 16;
