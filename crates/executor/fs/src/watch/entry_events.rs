//! Handles events of entries in watched directories.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use rustix::fs::inotify::ReadFlags;

use super::{
    directory_tree::DirectoryPlacement,
    pending_changes::PathChange,
    tree_scan::{DirectoryScan, ScanMode},
    tree_watch::{FilePresence, INTEREST, RenameSource, TreeWatch, WatchScope, presence},
};
use crate::inotify::{InotifyEvent, TaskWatches, WatchDescriptor};

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
                && let Some((kind, now)) = file_change(event.what, *presence, &self.root)
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
        let below = event.what.contains(ReadFlags::ISDIR) && self.scope == WatchScope::Tree;
        let gone = if event.what.contains(ReadFlags::ISDIR) {
            PathChange::Left
        } else {
            PathChange::Removed
        };
        if event.what.contains(ReadFlags::CREATE) {
            self.record_change(entry.path.clone(), PathChange::Created);
            if below {
                self.watch_new_directory(&entry, watches);
            }
        } else if event.what.intersects(CHANGED) {
            self.record_change(entry.path.clone(), PathChange::Modified);
            if below && self.directories.child(entry.parent, name).is_none() {
                // It may have become readable just now.
                self.watch_new_directory(&entry, watches);
            }
        } else if event.what.contains(ReadFlags::DELETE) {
            self.record_change(entry.path.clone(), gone);
            self.detach_entry(&entry, watches);
        } else if event.what.contains(ReadFlags::MOVED_FROM) {
            let gone = match presence(&entry.path) {
                // For an exchange, the kernel reports the arrival of one entry before the departure
                // of the other.
                FilePresence::There => PathChange::MovedAway,
                FilePresence::Gone => gone,
            };
            self.record_change(entry.path.clone(), gone);
            let directory = self.detach_entry(&entry, watches);
            let path = entry.path;
            self.moves
                .insert(event.cookie, RenameSource { path, directory });
        } else if event.what.contains(ReadFlags::MOVED_TO) {
            let moved = self.moves.remove(&event.cookie);
            if let Some(moved) = &moved {
                self.changes.mark_moved(&moved.path);
            }
            let mut placed = DirectoryPlacement::Nowhere;
            if below {
                placed = self.watch_new_directory(&entry, watches);
                if placed == DirectoryPlacement::Nowhere
                    && let Some(directory) = moved.as_ref().and_then(|moved| moved.directory)
                {
                    // It has been moved again already; the next events report that.
                    placed = self.place_directory(
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
                placed,
                DirectoryPlacement::Moved { .. } | DirectoryPlacement::Stayed
            );
            let known = known || moved.is_some();
            let kind = if known {
                PathChange::MovedHere
            } else {
                PathChange::Created
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
        let watched = watches.watch(&entry.path, INTEREST);
        if !self.is_in_place(entry.parent, watches) {
            // The path no longer leads there: an event about a moved ancestor will follow.
            if let Ok(child) = watched
                && !self.directories.contains(child)
            {
                watches.unwatch(child);
            }
            self.scan_later(DirectoryScan::new(entry.parent, ScanMode::Verify), watches);
            return DirectoryPlacement::Nowhere;
        }
        match watched {
            Ok(child) => {
                self.place_directory(child, entry.parent, entry.name, ScanMode::Fresh, watches)
            }
            Err(error) => {
                self.handle_watch_error(error);
                DirectoryPlacement::Nowhere
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
    what: ReadFlags,
    before: FilePresence,
    path: &Path,
) -> Option<(PathChange, FilePresence)> {
    if what.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        return Some(match presence(path) {
            // It has been replaced or exchanged since.
            FilePresence::There => (PathChange::Modified, FilePresence::There),
            FilePresence::Gone => (PathChange::Removed, FilePresence::Gone),
        });
    }
    if what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        let kind = match before {
            FilePresence::There => PathChange::Modified,
            FilePresence::Gone => PathChange::Created,
        };
        return Some((kind, FilePresence::There));
    }
    what.intersects(CHANGED)
        .then_some((PathChange::Modified, before))
}

const CHANGED: ReadFlags = ReadFlags::MODIFY
    .union(ReadFlags::CLOSE_WRITE)
    .union(ReadFlags::ATTRIB);
