//! What events say of the entries of watched directories.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use rustix::fs::inotify::ReadFlags;

use super::{
    directory_tree::Placed,
    pending_changes::Kind,
    tree_scan::{Mode, Scan},
    tree_watch::{INTEREST, Moved, Presence, Scope, Tree, presence},
};
use crate::inotify::{Descriptor, Event, Watches};

impl Tree {
    /// Handles an event of an entry of a directory that is part of the tree.
    pub(super) fn handle_entry(
        &mut self,
        event: &Event<'_>,
        name: &OsStr,
        watches: &mut Watches<'_>,
    ) {
        if let Scope::File {
            name: file,
            presence,
        } = &mut self.scope
        {
            if file == name
                && let Some((kind, now)) = file_change(event.what, *presence, &self.root)
            {
                *presence = now;
                self.tell(self.root.clone(), kind);
            }
            return;
        }
        let Some(path) = self.directories.path(event.directory) else {
            return;
        };
        let entry = Entry {
            parent: event.directory,
            name,
            path: path.join(name),
        };
        let below = event.what.contains(ReadFlags::ISDIR) && self.scope == Scope::Tree;
        let gone = if event.what.contains(ReadFlags::ISDIR) {
            Kind::Left
        } else {
            Kind::Removed
        };
        if event.what.contains(ReadFlags::CREATE) {
            self.tell(entry.path.clone(), Kind::Created);
            if below {
                self.adopt(&entry, watches);
            }
        } else if event.what.intersects(CHANGED) {
            self.tell(entry.path.clone(), Kind::Modified);
            if below && self.directories.child(entry.parent, name).is_none() {
                // Perhaps it could not be read until now.
                self.adopt(&entry, watches);
            }
        } else if event.what.contains(ReadFlags::DELETE) {
            self.tell(entry.path.clone(), gone);
            self.miss(&entry, watches);
        } else if event.what.contains(ReadFlags::MOVED_FROM) {
            let gone = match presence(&entry.path) {
                // An exchange tells that one has come before it tells that the other has gone.
                Presence::There => Kind::MovedAway,
                Presence::Gone => gone,
            };
            self.tell(entry.path.clone(), gone);
            let directory = self.miss(&entry, watches);
            let path = entry.path;
            self.moves.insert(event.cookie, Moved { path, directory });
        } else if event.what.contains(ReadFlags::MOVED_TO) {
            let moved = self.moves.remove(&event.cookie);
            if let Some(moved) = &moved {
                self.gathered.found_again(&moved.path);
            }
            let mut placed = Placed::Nowhere;
            if below {
                placed = self.adopt(&entry, watches);
                if placed == Placed::Nowhere
                    && let Some(directory) = moved.as_ref().and_then(|moved| moved.directory)
                {
                    // It has been moved on already, and that is told next.
                    placed = self.put(directory, entry.parent, name, Mode::Fresh, watches);
                }
            }
            // A directory that was outside so shortly that it is still watched is not listed again:
            // the client has to look.
            let known = matches!(placed, Placed::Moved { .. } | Placed::Stayed);
            let known = known || moved.is_some();
            let kind = if known {
                Kind::MovedHere
            } else {
                Kind::Created
            };
            self.tell(entry.path, kind);
        }
    }

    /// Watches a directory that has appeared, and has it listed unless it was known elsewhere.
    fn adopt(&mut self, entry: &Entry<'_>, watches: &mut Watches<'_>) -> Placed {
        let held = watches.hold(&entry.path, INTEREST);
        if !self.is_in_place(entry.parent, watches) {
            // The path led nowhere or elsewhere: it is to be told that a directory above has moved.
            if let Ok(child) = held
                && !self.directories.contains(child)
            {
                watches.release(child);
            }
            self.scan_later(Scan::new(entry.parent, Mode::Verify), watches);
            return Placed::Nowhere;
        }
        match held {
            Ok(child) => self.put(child, entry.parent, entry.name, Mode::Fresh, watches),
            Err(error) => {
                self.not_held(error);
                Placed::Nowhere
            }
        }
    }

    /// Takes a directory from its place, unless it can be seen there: then the event is older than
    /// what is known. Returns the directory.
    fn miss(&mut self, entry: &Entry<'_>, watches: &mut Watches<'_>) -> Option<Descriptor> {
        let child = self.directories.child(entry.parent, entry.name)?;
        if watches.at(&entry.path) == Some(child) {
            return None;
        }
        self.directories.detach(entry.parent, entry.name);
        self.detached.push(child);
        self.settle_soon();
        Some(child)
    }
}

/// An entry of a watched directory.
struct Entry<'a> {
    parent: Descriptor,
    name: &'a OsStr,
    path: PathBuf,
}

/// Returns what an event means for a watched file.
fn file_change(what: ReadFlags, before: Presence, path: &Path) -> Option<(Kind, Presence)> {
    if what.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        return Some(match presence(path) {
            // It has been replaced since, or exchanged.
            Presence::There => (Kind::Modified, Presence::There),
            Presence::Gone => (Kind::Removed, Presence::Gone),
        });
    }
    if what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        let kind = match before {
            Presence::There => Kind::Modified,
            Presence::Gone => Kind::Created,
        };
        return Some((kind, Presence::There));
    }
    what.intersects(CHANGED).then_some((Kind::Modified, before))
}

const CHANGED: ReadFlags = ReadFlags::MODIFY
    .union(ReadFlags::CLOSE_WRITE)
    .union(ReadFlags::ATTRIB);
