//! Watches a file or a directory tree. Every change is reported, or an overflow is.
//!
//! Uses inotify directly, for two reasons: a file that appears in a directory before that directory
//! is watched must be reported, and a client that does not read must cost bounded memory. Both
//! require control over the order of watching and listing, and over the queue.
//!
//! Guarantee: a client that checks each reported path, everything below created and renamed paths,
//! and everything after an overflow, knows the state of the tree.
//! - Each path is reported once in a batch, with the combined change since the last batch
//!   (`pending_changes`).
//! - A rename within the watched tree reports both paths as renamed, and nothing below them. An
//!   entry moved in is created, with everything below it; an entry moved out is removed.
//! - A directory is listed after it is watched, and its entries are reported as created. So a path
//!   may be reported as created twice, but no file is missed.
//! - While a part of the tree cannot be watched, because there are too many directories, every
//!   batch reports an overflow. Directories that the server may not read are skipped silently.
//! - When the watched directory or one of its ancestors is removed or moved, the directory is
//!   reported as removed and the stream ends. A watched file may reappear; its stream ends with its
//!   directory.
//! - Links in the tree are not followed. A directory that is mounted twice is reported at one path
//!   only.
//!
//! Elsewhere: the kernel's queue (`inotify`), which client watches what, the wire's encoding.

mod directory_scan;
mod directory_tree;
mod pending_changes;
#[cfg(test)]
mod tests;
mod tree_watch;

use std::{
    fs, io,
    path::Path,
    sync::mpsc::{self, SyncSender},
};

use exec_env::filesystem::{FileError, PathWatcher, WatchDepth, WatchPathRequest};
use futures_util::StreamExt;
use rustix::io::Errno;

use self::tree_watch::{TreeWatch, WatchScope};
use crate::{
    host_path::{host_error, native_path, uri},
    inotify,
};

/// Watches a file or directory, and blocks until everything is watched. Every later change is
/// reported, or an overflow is. The watch ends when the watcher or its stream is dropped.
///
/// # Errors
/// Fails if the path does not exist or cannot be read, or if the host allows no more watches.
pub fn watch(watch: &WatchPathRequest) -> Result<PathWatcher, FileError> {
    let path = native_path(&watch.path)?;
    let real = fs::canonicalize(&path).map_err(|error| host_error("watch", &path, error))?;
    let kind = fs::symlink_metadata(&real).map_err(|error| host_error("watch", &path, error))?;
    let uri = uri(&real)?;
    let scope = match watch.depth {
        _ if !kind.is_dir() => WatchScope::file(&real),
        WatchDepth::Entries => Some(WatchScope::Entries),
        WatchDepth::Tree => Some(WatchScope::Tree),
    };
    // Only a directory can lack a name.
    let scope = scope.ok_or_else(|| host_error("watch", &path, Errno::NOTDIR))?;
    let (reply_sender, start_reply) = mpsc::sync_channel(1);
    let (sender, batches) = pending_changes::change_channel();
    let subscription = inotify::subscribe(Box::new(move |watches| {
        let tree = TreeWatch::begin(real, scope, sender, StartReply(reply_sender), watches)?;
        Some(Box::new(tree))
    }));
    let subscription =
        subscription.map_err(|error| FileError::Host(watch_refusal(&path, &error)))?;
    start_reply
        .recv()
        .map_err(|_| {
            FileError::Host(format!(
                "cannot watch `{}`: watch thread has exited",
                path.display()
            ))
        })?
        .map_err(|error| match error {
            Errno::NOSPC => FileError::Host(watch_refusal(&path, &error.into())),
            error => host_error("watch", &path, error),
        })?;
    Ok(PathWatcher {
        path: uri,
        changes: batches.until_dropped(subscription).boxed(),
    })
}

/// Reports the start of a watch to the caller.
pub(super) struct StartReply(pub(super) SyncSender<Result<(), Errno>>);

impl StartReply {
    /// Reports that everything is watched, or why it is not.
    pub(super) fn send(self, result: Result<(), Errno>) {
        // The caller may have stopped waiting.
        self.0.send(result).ok();
    }
}

fn watch_refusal(path: &Path, error: &io::Error) -> String {
    let limit = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => " (the limit is fs.inotify.max_user_watches)",
        Some(Errno::MFILE) => " (the limit is fs.inotify.max_user_instances)",
        _ => "",
    };
    format!("cannot watch `{}`: {error}{limit}", path.display())
}
