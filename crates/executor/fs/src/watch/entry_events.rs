//! What events say of the entries of watched directories.

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
    /// Handles an event of an entry of a directory that is part of the tree.
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
                // Perhaps it could not be read until now.
                self.watch_new_directory(&entry, watches);
            }
        } else if event.what.contains(ReadFlags::DELETE) {
            self.record_change(entry.path.clone(), gone);
            self.detach_entry(&entry, watches);
        } else if event.what.contains(ReadFlags::MOVED_FROM) {
            let gone = match presence(&entry.path) {
                // An exchange tells that one has come before it tells that the other has gone.
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
                    // It has been moved on already, and that is told next.
                    placed = self.place_directory(
                        directory,
                        entry.parent,
                        name,
                        ScanMode::Fresh,
                        watches,
                    );
                }
            }
            // A directory that was outside so shortly that it is still watched is not listed again:
            // the client has to look.
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

    /// Watches a directory that has appeared, and has it listed unless it was known elsewhere.
    fn watch_new_directory(
        &mut self,
        entry: &WatchedEntry<'_>,
        watches: &mut TaskWatches<'_>,
    ) -> DirectoryPlacement {
        let held = watches.watch(&entry.path, INTEREST);
        if !self.is_in_place(entry.parent, watches) {
            // The path led nowhere or elsewhere: it is to be told that a directory above has moved.
            if let Ok(child) = held
                && !self.directories.contains(child)
            {
                watches.unwatch(child);
            }
            self.scan_later(DirectoryScan::new(entry.parent, ScanMode::Verify), watches);
            return DirectoryPlacement::Nowhere;
        }
        match held {
            Ok(child) => {
                self.place_directory(child, entry.parent, entry.name, ScanMode::Fresh, watches)
            }
            Err(error) => {
                self.handle_watch_error(error);
                DirectoryPlacement::Nowhere
            }
        }
    }

    /// Takes a directory from its place, unless it can be seen there: then the event is older than
    /// what is known. Returns the directory.
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

/// Returns what an event means for a watched file.
fn file_change(
    what: ReadFlags,
    before: FilePresence,
    path: &Path,
) -> Option<(PathChange, FilePresence)> {
    if what.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        return Some(match presence(path) {
            // It has been replaced since, or exchanged.
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
