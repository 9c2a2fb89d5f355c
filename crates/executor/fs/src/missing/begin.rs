//! How a watch for missing paths begins.

use std::{path::PathBuf, sync::mpsc};

use exec_env::filesystem::{FileError, MissingPaths, MissingWatch};
use exec_wire::limits;
use tokio::sync::oneshot;

use super::way::{Expected, Ways};
use crate::{inotify, native::native};

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
