//! The ways to paths, and what happens on them.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    fs::{self, FileType},
    io,
    path::{Path, PathBuf},
    time::Instant,
};

use rustix::fs::inotify::{ReadFlags, WatchFlags};
use tokio::sync::oneshot;

use crate::inotify::{Descriptor, Event, Task, Watches};

/// A path, and what is said of it.
#[derive(Debug)]
pub(super) enum Expected {
    /// It is not there.
    Missing(PathBuf),
    /// It is there.
    Present(PathBuf),
}

impl Expected {
    /// Tells whether it is so, at this moment. A link is there wherever it leads.
    pub(super) fn is_so(&self) -> bool {
        match self {
            Self::Missing(path) => kind(path).is_ok_and(|kind| kind.is_none()),
            Self::Present(path) => kind(path).is_ok_and(|kind| kind.is_some()),
        }
    }
}

/// Watches the ways to several paths, until something has happened on one.
#[derive(Debug)]
pub(super) struct Ways {
    /// The names that matter in each directory.
    names: HashMap<Descriptor, BTreeSet<OsString>>,
    /// `None` when it has been told.
    changed: Option<oneshot::Sender<()>>,
}

impl Ways {
    /// Watches the ways to all paths; `None` if one is not as it should be, or cannot be watched.
    pub(super) fn begin(
        paths: &[Expected],
        changed: oneshot::Sender<()>,
        watches: &mut Watches<'_>,
    ) -> Option<Self> {
        let mut ways = Self {
            names: HashMap::new(),
            changed: Some(changed),
        };
        for expected in paths {
            ways.watch(expected, watches)?;
        }
        Some(ways)
    }

    fn watch(&mut self, expected: &Expected, watches: &mut Watches<'_>) -> Option<()> {
        let (path, last) = match expected {
            Expected::Missing(path) => (path, ENTRIES),
            Expected::Present(path) => (path, ENTRIES.union(WatchFlags::MODIFY)),
        };
        let mut names = path.strip_prefix("/").ok()?.iter().peekable();
        let mut here = PathBuf::from("/");
        while let Some(name) = names.next() {
            let is_last = names.peek().is_none();
            let what = if is_last { last } else { ENTRIES };
            let held = watches.hold(&here, what).ok()?;
            self.names.entry(held).or_default().insert(name.to_owned());
            here.push(name);
            match (kind(&here).ok()?, expected) {
                (None, Expected::Missing(_)) => return Some(()),
                (None, Expected::Present(_)) => return None,
                (Some(kind), _) if kind.is_dir() => {}
                (Some(kind), Expected::Present(_)) if is_last && !kind.is_symlink() => {}
                (Some(_), _) => return None,
            }
        }
        match expected {
            Expected::Missing(_) => None,
            Expected::Present(_) => Some(()),
        }
    }

    fn tell(&mut self) {
        if let Some(changed) = self.changed.take() {
            // Nobody hears it if the watch is being dropped.
            changed.send(()).ok();
        }
    }

    fn matters(&self, directory: Descriptor, name: Option<&OsStr>) -> bool {
        let names = self.names.get(&directory);
        names.is_some_and(|names| name.is_some_and(|name| names.contains(name)))
    }
}

impl Task for Ways {
    fn handle_event(&mut self, event: &Event<'_>, _watches: &mut Watches<'_>) {
        let gone = ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        if event.what.intersects(gone) || self.matters(event.directory, event.name) {
            self.tell();
        }
    }

    fn handle_overflow(&mut self) {
        self.tell();
    }

    fn handle_timeout(&mut self, _watches: &mut Watches<'_>, _now: Instant) {}

    fn work(&mut self, _watches: &mut Watches<'_>) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn has_work(&self) -> bool {
        false
    }

    fn is_over(&self) -> bool {
        self.changed.is_none()
    }
}

/// Returns what is at a path; `None` if nothing is. A directory above that is none is an error.
fn kind(path: &Path) -> io::Result<Option<FileType>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata.file_type())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

const ENTRIES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB);
