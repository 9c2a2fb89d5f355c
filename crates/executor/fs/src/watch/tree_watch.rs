//! The state of one watch, on the watch thread.
//!
//! Events describe the past, in order; the watch descriptor at a path describes the present. Both
//! are used: a directory is where an event says, unless it is found elsewhere.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ffi::{OsStr, OsString},
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
    StartReply,
    directory_scan::{DirectoryScan, ScanMode},
    directory_tree::{DirectoryPlacement, DirectoryTree},
    pending_changes::{ChangeSender, ObservedChange, PendingChanges},
};
use crate::inotify::{InotifyEvent, RenameCookie, TaskWatches, WatchDescriptor, WatchTask};

/// A watch of a file or a tree.
pub(super) struct TreeWatch {
    pub(super) root: PathBuf,
    pub(super) scope: WatchScope,
    pub(super) directories: DirectoryTree,
    /// Watched ancestors, with the name in each that leads to the root.
    ancestors: HashMap<WatchDescriptor, OsString>,
    /// Directories to list.
    pub(super) pending: VecDeque<DirectoryScan>,
    /// Directories to list once events have reported their new paths.
    pub(super) waiting: BTreeMap<WatchDescriptor, DirectoryScan>,
    /// Sources of renames without a reported target yet.
    pub(super) moves: HashMap<RenameCookie, RenameSource>,
    /// Directories that left their paths, and are forgotten unless they reappear.
    pub(super) detached: Vec<WatchDescriptor>,
    pub(super) changes: PendingChanges,
    /// When pending changes are reported.
    deadline: Option<Instant>,
    /// Whether events were lost and the tree was not fully scanned since.
    pub(super) events_lost: bool,
    /// Whether a part of the tree is not watched.
    incomplete: bool,
    /// Number of directories that were never at their path, since the tree was last settled.
    pub(super) abandoned_scans: u32,
    /// `None` after the end.
    sender: Option<ChangeSender>,
    start_reply: Option<StartReply>,
}

impl TreeWatch {
    /// Watches the root, and schedules the scan of the tree. `start_reply` is sent when everything
    /// is watched, or if the root cannot be.
    pub(super) fn begin(
        root: PathBuf,
        scope: WatchScope,
        sender: ChangeSender,
        start_reply: StartReply,
        watches: &mut TaskWatches<'_>,
    ) -> Option<Self> {
        let top = match scope {
            WatchScope::Entries | WatchScope::Tree => Some(root.as_path()),
            WatchScope::File { .. } => root.parent(),
        };
        let top = top.unwrap_or(&root).to_owned();
        let ancestors = watch_ancestors(&top, watches);
        let watched = match watches.watch(&top, WATCHED_EVENTS) {
            Ok(watched) => watched,
            Err(error) => {
                start_reply.send(Err(error));
                return None;
            }
        };
        let mut tree = Self {
            root,
            scope,
            directories: DirectoryTree::new(watched, top),
            ancestors,
            pending: VecDeque::from([DirectoryScan::new(watched, ScanMode::Quiet)]),
            waiting: BTreeMap::new(),
            moves: HashMap::new(),
            detached: Vec::new(),
            changes: PendingChanges::default(),
            deadline: None,
            events_lost: false,
            incomplete: false,
            abandoned_scans: 0,
            sender: Some(sender),
            start_reply: Some(start_reply),
        };
        // It may have been moved before its ancestors were watched.
        tree.check_root(watches);
        Some(tree)
    }

    /// Records a change.
    pub(super) fn record_change(&mut self, path: PathBuf, kind: ObservedChange) {
        self.changes.add(path, kind);
        self.schedule_flush();
    }

    /// Reports an overflow, and schedules a scan of the whole tree.
    pub(super) fn handle_lost_events(&mut self) {
        self.changes.set_overflow();
        self.schedule_flush();
        self.incomplete = false;
        self.events_lost = true;
        let root = self.directories.root();
        let is_root_scan =
            |scan: &DirectoryScan| scan.directory == root && scan.mode == ScanMode::Verify;
        if !self.pending.iter().any(is_root_scan) {
            self.pending
                .push_back(DirectoryScan::new(root, ScanMode::Verify));
        }
    }

    /// Reports an overflow, because a part of the tree cannot be watched.
    pub(super) fn mark_incomplete(&mut self) {
        self.incomplete = true;
        self.changes.set_overflow();
        self.schedule_flush();
    }

    /// Resets the error state once the tree is settled.
    fn note_settled(&mut self) {
        if self.is_settled() {
            self.events_lost = false;
            self.abandoned_scans = 0;
        }
    }

    /// Schedules a flush of pending changes, after the debounce time.
    pub(super) fn schedule_flush(&mut self) {
        self.deadline
            .get_or_insert_with(|| Instant::now() + limits::WATCH_DEBOUNCE);
    }

    /// Reports that the root is gone, and ends the stream.
    pub(super) fn end(&mut self) {
        if let Some(start_reply) = self.start_reply.take() {
            start_reply.send(Err(Errno::NOENT));
        }
        if let Some(sender) = self.sender.take() {
            self.changes.add(self.root.clone(), ObservedChange::Removed);
            sender.send(self.changes.take());
        }
    }

    /// Stops watching a directory and its subtree.
    pub(super) fn forget_directory(
        &mut self,
        directory: WatchDescriptor,
        watches: &mut TaskWatches<'_>,
    ) {
        for removed in self.directories.remove(directory) {
            watches.unwatch(removed);
        }
    }

    /// Returns whether a directory is at the path that events have reported.
    pub(super) fn is_at_known_path(
        &self,
        directory: WatchDescriptor,
        watches: &mut TaskWatches<'_>,
    ) -> bool {
        let path = self.directories.path(directory);
        path.is_some_and(|path| watches.descriptor_at(&path) == Some(directory))
    }

    /// Returns whether no scan is pending and no directory is detached.
    fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.waiting.is_empty() && self.detached.is_empty()
    }

    fn check_root(&mut self, watches: &mut TaskWatches<'_>) {
        if !self.is_at_known_path(self.directories.root(), watches) {
            self.end();
        }
    }

    /// Forgets directories that have not reappeared, and resumes postponed scans.
    fn settle(&mut self, watches: &mut TaskWatches<'_>) {
        self.moves.clear();
        for directory in mem::take(&mut self.detached) {
            if !self.directories.is_attached(directory) {
                self.forget_directory(directory, watches);
            }
        }
        let waiting = mem::take(&mut self.waiting).into_values();
        self.pending
            .extend(waiting.filter(|scan| self.directories.contains(scan.directory)));
    }
}

impl WatchTask for TreeWatch {
    fn handle_event(&mut self, event: &InotifyEvent<'_>, watches: &mut TaskWatches<'_>) {
        let directory = event.directory;
        if event.mask.contains(ReadFlags::IGNORED) {
            self.ancestors.remove(&directory);
            if directory == self.directories.root() {
                self.end();
            } else {
                self.forget_directory(directory, watches);
            }
            return;
        }
        if event.mask.contains(ReadFlags::UNMOUNT) {
            // Entries that the mount had hidden are visible again.
            self.handle_lost_events();
            return;
        }
        let Some(name) = event.name else {
            let changed = event.mask.contains(ReadFlags::ATTRIB);
            if changed && directory == self.directories.root() && !self.scope.is_file() {
                self.record_change(self.root.clone(), ObservedChange::Modified);
            }
            return;
        };
        let removal_events = ReadFlags::DELETE | ReadFlags::MOVED_FROM;
        if event.mask.intersects(removal_events)
            && self
                .ancestors
                .get(&directory)
                .is_some_and(|name_to_root| name_to_root == name)
        {
            self.check_root(watches);
        }
        if self.directories.contains(directory) {
            self.handle_entry(event, name, watches);
        }
    }

    fn handle_overflow(&mut self) {
        self.handle_lost_events();
    }

    fn handle_timeout(&mut self, watches: &mut TaskWatches<'_>, now: Instant) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        self.deadline = None;
        self.settle(watches);
        if self.incomplete && !self.changes.is_empty() {
            self.changes.set_overflow();
        }
        if let Some(sender) = &self.sender {
            sender.send(self.changes.take());
        }
        self.note_settled();
    }

    fn work(&mut self, watches: &mut TaskWatches<'_>) {
        self.scan(watches);
        if self.pending.is_empty()
            && self.waiting.is_empty()
            && let Some(start_reply) = self.start_reply.take()
        {
            start_reply.send(Ok(()));
        }
        self.note_settled();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    fn has_work(&self) -> bool {
        !self.pending.is_empty()
    }

    fn has_ended(&self) -> bool {
        self.sender.is_none()
    }
}

/// The extent of a watch.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum WatchScope {
    /// The entries of a directory.
    Entries,
    /// Everything below a directory.
    Tree,
    /// One file, as an entry of its directory, because editors replace files.
    File {
        name: OsString,
        presence: FilePresence,
    },
}

impl WatchScope {
    /// Returns the scope of an existing file. `None`: it has no name.
    pub(super) fn file(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_owned();
        let presence = FilePresence::Present;
        Some(Self::File { name, presence })
    }

    fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

/// Whether a file exists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FilePresence {
    Present,
    Missing,
}

/// Returns whether a path exists now, even as a dangling link.
pub(super) fn presence(path: &Path) -> FilePresence {
    match fs::symlink_metadata(path) {
        Ok(_) => FilePresence::Present,
        Err(_) => FilePresence::Missing,
    }
}

/// The source of a rename.
#[derive(Debug)]
pub(super) struct RenameSource {
    pub(super) path: PathBuf,
    /// The renamed directory, if it is watched.
    pub(super) directory: Option<WatchDescriptor>,
}

/// Watches the ancestors of a directory. Skips unreadable ones, so moving those goes unnoticed.
fn watch_ancestors(
    top: &Path,
    watches: &mut TaskWatches<'_>,
) -> HashMap<WatchDescriptor, OsString> {
    let mut ancestors = HashMap::new();
    for child in top.ancestors() {
        let (Some(above), Some(name)) = (child.parent(), child.file_name()) else {
            break;
        };
        if let Ok(watched) = watches.watch(above, WatchFlags::DELETE | WatchFlags::MOVED_FROM) {
            ancestors.insert(watched, name.to_owned());
        }
    }
    ancestors
}

/// Events of every directory in a tree. Writes through a memory mapping are reported only when the
/// file is closed.
pub(super) const WATCHED_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO);

impl TreeWatch {
    /// Handles an event of an entry in a directory of the tree.
    pub(super) fn handle_entry(
        &mut self,
        event: &InotifyEvent<'_>,
        name: &OsStr,
        watches: &mut TaskWatches<'_>,
    ) {
        if let WatchScope::File {
            name: file,
            presence,
        } = &mut self.scope
        {
            if file == name
                && let Some((kind, now)) = file_change(event.mask, *presence, &self.root)
            {
                *presence = now;
                self.record_change(self.root.clone(), kind);
            }
            return;
        }
        let Some(path) = self.directories.path(event.directory) else {
            return;
        };
        let entry = WatchedEntry {
            parent: event.directory,
            name,
            path: path.join(name),
        };
        let is_tree_directory =
            event.mask.contains(ReadFlags::ISDIR) && self.scope == WatchScope::Tree;
        let removal = if event.mask.contains(ReadFlags::ISDIR) {
            ObservedChange::DirectoryRemoved
        } else {
            ObservedChange::Removed
        };
        if event.mask.contains(ReadFlags::CREATE) {
            self.record_change(entry.path.clone(), ObservedChange::Created);
            if is_tree_directory {
                self.watch_new_directory(&entry, watches);
            }
        } else if event.mask.intersects(MODIFY_EVENTS) {
            self.record_change(entry.path.clone(), ObservedChange::Modified);
            if is_tree_directory && self.directories.child(entry.parent, name).is_none() {
                // It may have become readable just now.
                self.watch_new_directory(&entry, watches);
            }
        } else if event.mask.contains(ReadFlags::DELETE) {
            self.record_change(entry.path.clone(), removal);
            self.detach_entry(&entry, watches);
        } else if event.mask.contains(ReadFlags::MOVED_FROM) {
            let removal = match presence(&entry.path) {
                // For an exchange, the kernel reports the arrival of one entry before the departure
                // of the other.
                FilePresence::Present => ObservedChange::MovedAway,
                FilePresence::Missing => removal,
            };
            self.record_change(entry.path.clone(), removal);
            let directory = self.detach_entry(&entry, watches);
            let path = entry.path;
            self.moves
                .insert(event.cookie, RenameSource { path, directory });
        } else if event.mask.contains(ReadFlags::MOVED_TO) {
            let moved = self.moves.remove(&event.cookie);
            if let Some(moved) = &moved {
                self.changes.mark_moved(&moved.path);
            }
            let mut placement = DirectoryPlacement::Rejected;
            if is_tree_directory {
                placement = self.watch_new_directory(&entry, watches);
                if placement == DirectoryPlacement::Rejected
                    && let Some(directory) = moved.as_ref().and_then(|moved| moved.directory)
                {
                    // It has been moved again already; the next events report that.
                    placement = self.place_directory(
                        directory,
                        entry.parent,
                        name,
                        ScanMode::Fresh,
                        watches,
                    );
                }
            }
            // A directory that was outside only briefly is still watched and is not listed again,
            // so the client has to check it.
            let known = matches!(
                placement,
                DirectoryPlacement::Moved { .. } | DirectoryPlacement::Unchanged
            );
            let known = known || moved.is_some();
            let kind = if known {
                ObservedChange::MovedHere
            } else {
                ObservedChange::Created
            };
            self.record_change(entry.path, kind);
        }
    }

    /// Watches a directory that has appeared, and schedules a scan unless it was known elsewhere.
    fn watch_new_directory(
        &mut self,
        entry: &WatchedEntry<'_>,
        watches: &mut TaskWatches<'_>,
    ) -> DirectoryPlacement {
        let watched = watches.watch(&entry.path, WATCHED_EVENTS);
        if !self.is_at_known_path(entry.parent, watches) {
            // The path no longer leads there: an event about a moved ancestor will follow.
            if let Ok(child) = watched
                && !self.directories.contains(child)
            {
                watches.unwatch(child);
            }
            self.postpone_scan(DirectoryScan::new(entry.parent, ScanMode::Verify), watches);
            return DirectoryPlacement::Rejected;
        }
        match watched {
            Ok(child) => {
                self.place_directory(child, entry.parent, entry.name, ScanMode::Fresh, watches)
            }
            Err(error) => {
                self.handle_watch_error(error);
                DirectoryPlacement::Rejected
            }
        }
    }

    /// Detaches a directory, unless it is still at its path: then the event is outdated. Returns
    /// the directory.
    fn detach_entry(
        &mut self,
        entry: &WatchedEntry<'_>,
        watches: &mut TaskWatches<'_>,
    ) -> Option<WatchDescriptor> {
        let child = self.directories.child(entry.parent, entry.name)?;
        if watches.descriptor_at(&entry.path) == Some(child) {
            return None;
        }
        self.directories.detach(entry.parent, entry.name);
        self.detached.push(child);
        self.schedule_flush();
        Some(child)
    }
}

/// An entry of a watched directory.
struct WatchedEntry<'a> {
    parent: WatchDescriptor,
    name: &'a OsStr,
    path: PathBuf,
}

/// Returns the change that an event means for a watched file.
fn file_change(
    mask: ReadFlags,
    before: FilePresence,
    path: &Path,
) -> Option<(ObservedChange, FilePresence)> {
    if mask.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        return Some(match presence(path) {
            // It has been replaced or exchanged since.
            FilePresence::Present => (ObservedChange::Modified, FilePresence::Present),
            FilePresence::Missing => (ObservedChange::Removed, FilePresence::Missing),
        });
    }
    if mask.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        let kind = match before {
            FilePresence::Present => ObservedChange::Modified,
            FilePresence::Missing => ObservedChange::Created,
        };
        return Some((kind, FilePresence::Present));
    }
    mask.intersects(MODIFY_EVENTS)
        .then_some((ObservedChange::Modified, before))
}

const MODIFY_EVENTS: ReadFlags = ReadFlags::MODIFY
    .union(ReadFlags::CLOSE_WRITE)
    .union(ReadFlags::ATTRIB);
