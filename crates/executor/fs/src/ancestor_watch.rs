//! Watches for missing paths to appear, so that a client can cache that they are missing.
//!
//! Every directory on the path is watched for the next component, and checked only afterwards, so a
//! change is either seen or reported. As in the stock server, a path through a symbolic link is not
//! watched, because there would be two paths to watch.
//!
//! Changes of the ancestors are reported, too: removal, rename, and new permissions, which can hide
//! or show their contents. Elsewhere: how many watches a client may have, and when a new one
//! replaces the last.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    fs::{self, FileType},
    io,
    path::{Path, PathBuf},
    sync::mpsc,
};

use exec_env::filesystem::{FileError, MissingPathsRequest, MissingPathsWatch};
use exec_wire::limits;
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use tokio::sync::oneshot;

use crate::{
    host_path::native_path,
    inotify::{self, InotifyEvent, TaskWatches, WatchDescriptor, WatchTask},
};

/// Watches for one of several missing paths, or their missing ancestors, to appear, and for the
/// present paths to be renamed, modified or removed. Changes inside a present directory are not
/// reported. Dropping the future ends the watch.
///
/// Returns `None` if there are no paths or too many, if they are not in the stated state, or if
/// they cannot be watched. The client then has to check each time.
///
/// # Errors
/// Never fails: paths that cannot be watched yield `None`.
pub fn watch_missing(paths: &MissingPathsRequest) -> Result<Option<MissingPathsWatch>, FileError> {
    if paths.missing.is_empty() || paths.missing.len() > limits::MAX_MISSING_PATHS {
        return Ok(None);
    }
    let Some(expected) = expected(paths) else {
        return Ok(None);
    };
    // Checked on this thread first, so that a hanging file system blocks only the caller.
    if !expected.iter().all(PathExpectation::holds) {
        return Ok(None);
    }
    let (reply_sender, reply) = mpsc::sync_channel(1);
    let (changed, change) = oneshot::channel();
    let subscription = inotify::subscribe(Box::new(move |watches| {
        let watch = AncestorWatch::begin(&expected, changed, watches);
        // The caller may have stopped waiting.
        reply_sender.send(watch.is_some()).ok();
        Some(Box::new(watch?))
    }));
    let Ok(subscription) = subscription else {
        return Ok(None);
    };
    if reply.recv() != Ok(true) {
        return Ok(None);
    }
    Ok(Some(Box::pin(async move {
        // An error means that the watch thread is gone; the client then checks again.
        change.await.ok();
        drop(subscription);
    })))
}

/// Returns the paths on this host. `None`: one is invalid.
fn expected(paths: &MissingPathsRequest) -> Option<Vec<PathExpectation>> {
    let native = |path| native_path(path).ok();
    let missing = paths.missing.iter().map(native);
    let present = paths.present.iter().map(native);
    let missing = missing.map(|path| path.map(PathExpectation::Missing));
    let present = present.map(|path| path.map(PathExpectation::Present));
    missing.chain(present).collect()
}

/// A path and its expected state.
#[derive(Debug)]
pub(super) enum PathExpectation {
    /// The path does not exist.
    Missing(PathBuf),
    /// The path exists.
    Present(PathBuf),
}

impl PathExpectation {
    /// Returns whether the path is in the expected state now. A dangling link exists.
    pub(super) fn holds(&self) -> bool {
        match self {
            Self::Missing(path) => kind(path).is_ok_and(|kind| kind.is_none()),
            Self::Present(path) => kind(path).is_ok_and(|kind| kind.is_some()),
        }
    }
}

/// Watches the ancestors of several paths until one of them changes.
#[derive(Debug)]
pub(super) struct AncestorWatch {
    /// The relevant names in each directory.
    names: HashMap<WatchDescriptor, BTreeSet<OsString>>,
    /// `None` once the change was reported.
    changed: Option<oneshot::Sender<()>>,
}

impl AncestorWatch {
    /// Watches the ancestors of all paths. `None`: one is not in the expected state, or cannot be
    /// watched.
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
        let mut directory = PathBuf::from("/");
        while let Some(name) = names.next() {
            let is_last = names.peek().is_none();
            let mask = if is_last { last } else { ENTRY_EVENTS };
            let watched = watches.watch(&directory, mask).ok()?;
            self.names
                .entry(watched)
                .or_default()
                .insert(name.to_owned());
            directory.push(name);
            match (kind(&directory).ok()?, expected) {
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
            // The receiver is gone if the watch is being dropped.
            changed.send(()).ok();
        }
    }

    fn is_relevant(&self, directory: WatchDescriptor, name: Option<&OsStr>) -> bool {
        let names = self.names.get(&directory);
        names.is_some_and(|names| name.is_some_and(|name| names.contains(name)))
    }
}

impl WatchTask for AncestorWatch {
    fn handle_event(&mut self, event: &InotifyEvent<'_>, _watches: &mut TaskWatches<'_>) {
        let watch_ended = ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        if event.mask.intersects(watch_ended) || self.is_relevant(event.directory, event.name) {
            self.notify_changed();
        }
    }

    fn handle_overflow(&mut self) {
        self.notify_changed();
    }

    fn has_ended(&self) -> bool {
        self.changed.is_none()
    }
}

/// Returns the type of a path; `None` if it does not exist. Fails if an ancestor is not a
/// directory.
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
