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
    host_path::native,
    inotify::{self, Descriptor, Event, Task, Watches},
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
    if !expected.iter().all(Expected::is_so) {
        return Ok(None);
    }
    let (told, answer) = mpsc::sync_channel(1);
    let (changed, change) = oneshot::channel();
    let subscription = inotify::subscribe(Box::new(move |watches| {
        let ways = Ways::begin(&expected, changed, watches);
        // Nobody waits if the thread that asked is gone.
        told.send(ways.is_some()).ok();
        Some(Box::new(ways?))
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
fn expected(paths: &MissingPaths) -> Option<Vec<Expected>> {
    let missing = paths
        .missing
        .iter()
        .map(|path| (path, Expected::Missing as Make));
    let present = paths
        .present
        .iter()
        .map(|path| (path, Expected::Present as Make));
    missing
        .chain(present)
        .map(|(path, make)| native(path).ok().map(make))
        .collect()
}

type Make = fn(PathBuf) -> Expected;

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
