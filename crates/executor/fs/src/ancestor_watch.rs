//! Watching for missing paths to appear, so that a client can remember that they are missing.
//!
//! In every directory on the way to a path the next name is watched, and only then looked at: a
//! change either is seen or is told. A path that leads through a link is not watched, as with the
//! stock server, because the way would fork.
//!
//! A change of what lies on the way is told as well: its removal, its rename, and new permissions,
//! which can hide and show what is below.
//! Not here: how many watches a client may have, and when a new one ends the last.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    fs::{self, FileType},
    io,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Instant,
};

use exec_env::filesystem::{FileError, MissingPaths, MissingWatch};
use exec_wire::limits;
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use tokio::sync::oneshot;

use crate::{
    host_path::native_path,
    inotify::{self, InotifyEvent, TaskWatches, WatchDescriptor, WatchTask},
};

/// Watches for one of several missing paths, or of the missing directories above them, to appear,
/// and for the one that is there to change its name or its content or to disappear; changes inside
/// it are not told. The watch ends when the future is dropped.
///
/// Returns `None` if the paths are too many or none, are not as they are said to be, or cannot be
/// watched. The client then has to look again each time.
///
/// # Errors
/// There are none: what cannot be watched is not.
pub fn watch_missing(paths: &MissingPaths) -> Result<Option<MissingWatch>, FileError> {
    if paths.missing.is_empty() || paths.missing.len() > limits::MAX_MISSING_PATHS {
        return Ok(None);
    }
    let Some(expected) = expected(paths) else {
        return Ok(None);
    };
    // A first look from here: a file system that hangs then holds up only who asked.
    if !expected.iter().all(PathExpectation::holds) {
        return Ok(None);
    }
    let (told, answer) = mpsc::sync_channel(1);
    let (changed, change) = oneshot::channel();
    let subscription = inotify::subscribe(Box::new(move |watches| {
        let watch = AncestorWatch::begin(&expected, changed, watches);
        // Nobody waits if the thread that asked is gone.
        told.send(watch.is_some()).ok();
        Some(Box::new(watch?))
    }));
    let Ok(subscription) = subscription else {
        return Ok(None);
    };
    if answer.recv() != Ok(true) {
        return Ok(None);
    }
    Ok(Some(Box::pin(async move {
        // An error says that the thread is gone; then nobody knows, and the client looks.
        change.await.ok();
        drop(subscription);
    })))
}

/// Returns the paths on this host, unless one cannot be.
fn expected(paths: &MissingPaths) -> Option<Vec<PathExpectation>> {
    let missing = paths
        .missing
        .iter()
        .map(|path| (path, PathExpectation::Missing as MakeExpectation));
    let present = paths
        .present
        .iter()
        .map(|path| (path, PathExpectation::Present as MakeExpectation));
    missing
        .chain(present)
        .map(|(path, make)| native_path(path).ok().map(make))
        .collect()
}

type MakeExpectation = fn(PathBuf) -> PathExpectation;

/// A path, and what is said of it.
#[derive(Debug)]
pub(super) enum PathExpectation {
    /// It is not there.
    Missing(PathBuf),
    /// It is there.
    Present(PathBuf),
}

impl PathExpectation {
    /// Tells whether it is so, at this moment. A link is there wherever it leads.
    pub(super) fn holds(&self) -> bool {
        match self {
            Self::Missing(path) => kind(path).is_ok_and(|kind| kind.is_none()),
            Self::Present(path) => kind(path).is_ok_and(|kind| kind.is_some()),
        }
    }
}

/// Watches the ways to several paths, until something has happened on one.
#[derive(Debug)]
pub(super) struct AncestorWatch {
    /// The names that matter in each directory.
    names: HashMap<WatchDescriptor, BTreeSet<OsString>>,
    /// `None` when it has been told.
    changed: Option<oneshot::Sender<()>>,
}

impl AncestorWatch {
    /// Watches the ways to all paths; `None` if one is not as it should be, or cannot be watched.
    pub(super) fn begin(
        paths: &[PathExpectation],
        changed: oneshot::Sender<()>,
        watches: &mut TaskWatches<'_>,
    ) -> Option<Self> {
        let mut watch = Self {
            names: HashMap::new(),
            changed: Some(changed),
        };
        for expected in paths {
            watch.watch(expected, watches)?;
        }
        Some(watch)
    }

    fn watch(&mut self, expected: &PathExpectation, watches: &mut TaskWatches<'_>) -> Option<()> {
        let (path, last) = match expected {
            PathExpectation::Missing(path) => (path, ENTRY_EVENTS),
            PathExpectation::Present(path) => (path, ENTRY_EVENTS.union(WatchFlags::MODIFY)),
        };
        let mut names = path.strip_prefix("/").ok()?.iter().peekable();
        let mut here = PathBuf::from("/");
        while let Some(name) = names.next() {
            let is_last = names.peek().is_none();
            let what = if is_last { last } else { ENTRY_EVENTS };
            let held = watches.watch(&here, what).ok()?;
            self.names.entry(held).or_default().insert(name.to_owned());
            here.push(name);
            match (kind(&here).ok()?, expected) {
                (None, PathExpectation::Missing(_)) => return Some(()),
                (None, PathExpectation::Present(_)) => return None,
                (Some(kind), _) if kind.is_dir() => {}
                (Some(kind), PathExpectation::Present(_)) if is_last && !kind.is_symlink() => {}
                (Some(_), _) => return None,
            }
        }
        match expected {
            PathExpectation::Missing(_) => None,
            PathExpectation::Present(_) => Some(()),
        }
    }

    fn notify_changed(&mut self) {
        if let Some(changed) = self.changed.take() {
            // Nobody hears it if the watch is being dropped.
            changed.send(()).ok();
        }
    }

    fn matters(&self, directory: WatchDescriptor, name: Option<&OsStr>) -> bool {
        let names = self.names.get(&directory);
        names.is_some_and(|names| name.is_some_and(|name| names.contains(name)))
    }
}

impl WatchTask for AncestorWatch {
    fn handle_event(&mut self, event: &InotifyEvent<'_>, _watches: &mut TaskWatches<'_>) {
        let gone = ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        if event.what.intersects(gone) || self.matters(event.directory, event.name) {
            self.notify_changed();
        }
    }

    fn handle_overflow(&mut self) {
        self.notify_changed();
    }

    fn handle_timeout(&mut self, _watches: &mut TaskWatches<'_>, _now: Instant) {}

    fn work(&mut self, _watches: &mut TaskWatches<'_>) {}

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

const ENTRY_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB);
