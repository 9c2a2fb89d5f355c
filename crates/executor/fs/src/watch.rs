//! Watching a file or a directory: every change is told, or it is said that some were not.
//!
//! Written on inotify itself, because a file must be told that appears in a directory younger than
//! its watch, and because a client that does not read must cost bounded memory: both need the order
//! of watching and listing, and the queue, in one hand.
//!
//! What a client can rely on: if it looks at each path it is told, below those that are created or
//! renamed, and at everything after an overflow, it knows the tree.
//! - Each path is told once in a batch, with what became of it since the last one ([`gathered`]).
//! - A rename inside what is watched tells both paths as renamed, and nothing of what lies below.
//!   What comes from outside is created, with all that lies below; what goes outside is removed.
//! - A directory that is found late is listed after it is watched, and what it holds is told as
//!   created. So a path may be told as created twice, but no file is missed.
//! - While a part of the tree cannot be watched, because there are too many directories, every batch
//!   says overflow. Directories that the server may not read are left out in silence.
//! - When a watched directory is removed or goes elsewhere, also with a directory above it, it is
//!   told as removed and the changes end. A watched file may come back; its changes end with its
//!   directory.
//! - Links below are not followed. One directory that is mounted at two places is told at one.
//!
//! Not here: the kernel's queue (`inotify`), which client watches what, the wire's encoding.

mod directory_tree;
mod entry_events;
mod pending_changes;
#[cfg(test)]
mod tests;
mod tree_scan;
mod tree_watch;

use std::{
    fs, io,
    path::Path,
    sync::mpsc::{self, SyncSender},
};

use exec_env::filesystem::{FileError, WatchDepth, WatchPath, Watcher};
use futures_util::StreamExt;
use rustix::io::Errno;

use self::tree_watch::{TreeWatch, WatchScope};
use crate::{
    host_path::{host_error, native_path, uri},
    inotify,
};

/// Watches a file or directory, and blocks until everything is watched: every later change is told,
/// or an overflow is. The watch ends when the watcher or its stream is dropped.
///
/// # Errors
/// Fails if the path is not there or may not be read, or if the host allows no more watches.
pub fn watch(watch: &WatchPath) -> Result<Watcher, FileError> {
    let path = native_path(&watch.path)?;
    let real = fs::canonicalize(&path).map_err(|error| host_error("watch", &path, error))?;
    let kind = fs::symlink_metadata(&real).map_err(|error| host_error("watch", &path, error))?;
    let uri = uri(&real)?;
    let scope = match watch.depth {
        _ if !kind.is_dir() => WatchScope::file(&real),
        WatchDepth::Entries => Some(WatchScope::Entries),
        WatchDepth::Tree => Some(WatchScope::Tree),
    };
    // Only a directory has no name.
    let scope = scope.ok_or_else(|| host_error("watch", &path, Errno::NOTDIR))?;
    let (told, start_reply) = mpsc::sync_channel(1);
    let (sender, batches) = pending_changes::pair();
    let subscription = inotify::subscribe(Box::new(move |watches| {
        let tree = TreeWatch::begin(real, scope, sender, StartReply(told), watches)?;
        Some(Box::new(tree))
    }));
    let subscription = subscription.map_err(|error| FileError::Host(refusal(&path, &error)))?;
    start_reply
        .recv()
        .map_err(|_| FileError::Host(format!("cannot watch `{}`: it broke off", path.display())))?
        .map_err(|error| match error {
            Errno::NOSPC => FileError::Host(refusal(&path, &error.into())),
            error => host_error("watch", &path, error),
        })?;
    Ok(Watcher {
        path: uri,
        changes: batches.until_dropped(subscription).boxed(),
    })
}

/// Who waits for the watch to begin.
pub(super) struct StartReply(pub(super) SyncSender<Result<(), Errno>>);

impl StartReply {
    /// Tells that everything is watched, or why it is not.
    pub(super) fn send(self, result: Result<(), Errno>) {
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
