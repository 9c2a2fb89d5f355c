//! How a watch begins.

use std::{
    fs, io,
    path::Path,
    sync::mpsc::{self, SyncSender},
};

use exec_env::filesystem::{FileError, WatchDepth, WatchPath, Watcher};
use futures_util::StreamExt;
use rustix::io::Errno;

use super::{
    outbox,
    tree::{Scope, Tree},
};
use crate::{
    error::failed,
    inotify,
    native::{native, uri},
};

/// Watches a file or directory, and blocks until everything is watched: every later change is told,
/// or an overflow is. The watch ends when the watcher or its stream is dropped.
///
/// # Errors
/// Fails if the path is not there or may not be read, or if the host allows no more watches.
pub fn watch(watch: &WatchPath) -> Result<Watcher, FileError> {
    let path = native(&watch.path)?;
    let real = fs::canonicalize(&path).map_err(|error| failed("watch", &path, error))?;
    let kind = fs::symlink_metadata(&real).map_err(|error| failed("watch", &path, error))?;
    let uri = uri(&real)?;
    let scope = match watch.depth {
        _ if !kind.is_dir() => Scope::file(&real),
        WatchDepth::Entries => Some(Scope::Entries),
        WatchDepth::Tree => Some(Scope::Tree),
    };
    // Only a directory has no name.
    let scope = scope.ok_or_else(|| failed("watch", &path, Errno::NOTDIR))?;
    let (told, begun) = mpsc::sync_channel(1);
    let (outbox, batches) = outbox::pair();
    let subscription = inotify::subscribe(Box::new(move |watches| {
        let tree = Tree::begin(real, scope, outbox, Begun(told), watches)?;
        Some(Box::new(tree))
    }));
    let subscription = subscription.map_err(|error| FileError::Host(refusal(&path, &error)))?;
    begun
        .recv()
        .map_err(|_| FileError::Host(format!("cannot watch `{}`: it broke off", path.display())))?
        .map_err(|error| match error {
            Errno::NOSPC => FileError::Host(refusal(&path, &error.into())),
            error => failed("watch", &path, error),
        })?;
    Ok(Watcher {
        path: uri,
        changes: batches.until_dropped(subscription).boxed(),
    })
}

/// Who waits for the watch to begin.
pub(super) struct Begun(pub(super) SyncSender<Result<(), Errno>>);

impl Begun {
    /// Tells that everything is watched, or why it is not.
    pub(super) fn tell(self, result: Result<(), Errno>) {
        // Nobody waits if the thread that asked is gone.
        self.0.send(result).ok();
    }
}

fn refusal(path: &Path, error: &io::Error) -> String {
    let limit = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => " (the limit is fs.inotify.max_user_watches)",
        Some(Errno::MFILE) => " (the limit is fs.inotify.max_user_instances)",
        _ => "",
    };
    format!("cannot watch `{}`: {error}{limit}", path.display())
}
