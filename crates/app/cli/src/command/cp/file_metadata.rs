//! Metadata of copied files: symbolic links, modification times and modes.
//!
//! `fs/writeFile` sets the mode of a small file. Directories and files written in blocks are created
//! with owner access and receive their mode when complete.
//!
//! Invariants: links are created after everything else is copied, so nothing is written through
//! them; nothing is written into a directory that more users can access than its source.

use std::{
    cell::{Cell, RefCell},
    cmp::Reverse,
};

use exec_env::filesystem::FileError;
use exec_wire::{error::ErrorCode, fs::CreateSymlink, path_uri::PathUri};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::command::{
    cp::{endpoint::CopyEndpoint, staged_tree::TargetState},
    failure::{CommandFailure, FailureKind},
    files::retry_disconnected,
};

/// Links and times set concurrently.
const CONCURRENT_CHANGES: usize = 32;

/// How links in a tree are treated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LinkMode {
    /// Copied as links.
    Keep,
    /// Replaced by what they point to.
    Follow,
}

/// Links to create and times to set after everything else is copied.
#[derive(Debug, Default)]
pub(super) struct DeferredMetadata {
    links: RefCell<Vec<(PathUri, Vec<u8>)>>,
    times: RefCell<Vec<(PathUri, i64)>>,
}

impl DeferredMetadata {
    /// Adds a link.
    pub(super) fn add_link(&self, path: PathUri, target: Vec<u8>) {
        self.links.borrow_mut().push((path, target));
    }

    /// Adds a modification time, in milliseconds since the Unix epoch.
    pub(super) fn add_time(&self, path: &PathUri, modified_at_ms: i64) {
        self.times.borrow_mut().push((path.clone(), modified_at_ms));
    }

    /// Creates the links. Returns their number, and failures.
    pub(super) async fn make_links(&self, to: &CopyEndpoint) -> (usize, Vec<CommandFailure>) {
        let links = self.links.take();
        let count = links.len();
        let failures: Vec<_> = stream::iter(links)
            .map(|(path, target)| async move {
                let create = CreateSymlink {
                    overwrite: true,
                    ..CreateSymlink::new(path, target)
                };
                let created = retry_disconnected(|| to.files.create_symlink(create.clone())).await;
                created.err().map(|error| {
                    let what = format!("create link `{}`", to.display(&create.path));
                    let failure = change_failure(&what, error);
                    match failure.kind == FailureKind::Lost {
                        true => failure,
                        false => failure.next("`cp -L` copies the link targets instead"),
                    }
                })
            })
            .buffered(CONCURRENT_CHANGES)
            .filter_map(std::future::ready)
            .collect()
            .await;
        (count - failures.len(), failures)
    }

    /// Sets the times.
    pub(super) async fn set_times(&self, to: &CopyEndpoint) -> Result<(), CommandFailure> {
        let times = stream::iter(self.times.take()).map(Ok);
        times
            .try_for_each_concurrent(CONCURRENT_CHANGES, |(path, time)| async move {
                let set = to.set_metadata(&path, None, Some(time)).await;
                set.map_err(|error| {
                    change_failure(&format!("set the time of `{}`", to.display(&path)), error)
                })
            })
            .await
    }
}

/// Explains why a change failed.
fn change_failure(what: &str, error: FileError) -> CommandFailure {
    let is_unsupported = matches!(
        &error,
        FileError::Remote(error) if error.code == ErrorCode::METHOD_NOT_FOUND
    );
    let failure = CommandFailure::from(error);
    let why = match is_unsupported {
        _ if failure.kind == FailureKind::Lost => return failure,
        true => "its server does not support it",
        false => &failure.what,
    };
    CommandFailure::failed(format!("cannot {what}: {why}"))
}

/// All permission bits.
const PERMISSION_BITS: u32 = 0o777;
/// Mode bits the owner needs to fill a directory.
const OWNER_BITS: u32 = 0o700;

/// Sets modes on one endpoint.
#[derive(Debug)]
pub(super) struct FileModes<'a> {
    to: &'a CopyEndpoint,
    /// Default mode of new directories there.
    default_mode: Cell<Option<u32>>,
    /// Modes to set after everything is copied.
    deferred: RefCell<Vec<(PathUri, u32)>>,
}

impl<'a> FileModes<'a> {
    pub(super) fn new(to: &'a CopyEndpoint) -> Self {
        Self {
            to,
            default_mode: Cell::default(),
            deferred: RefCell::default(),
        }
    }

    /// Gives a new directory the mode of its source. The owner keeps write access until
    /// [`apply_deferred`](Self::apply_deferred).
    pub(super) async fn restrict_directory(
        &self,
        directory: &PathUri,
        source_mode: Option<u32>,
        target_state: TargetState,
    ) -> Result<(), CommandFailure> {
        let current = self.current_mode(directory, target_state).await?;
        let (Some(source_mode), Some(current)) = (source_mode, current) else {
            return Ok(());
        };
        // A group that the directory inherited stays.
        let final_mode = source_mode & PERMISSION_BITS | current & !PERMISSION_BITS;
        let needed = final_mode | OWNER_BITS;
        if current != needed {
            self.set(directory, needed).await?;
        }
        if needed != final_mode {
            let deferred = (directory.clone(), final_mode);
            self.deferred.borrow_mut().push(deferred);
        }
        Ok(())
    }

    /// Sets the final modes of complete directories.
    pub(super) async fn apply_deferred(&self) -> Result<(), CommandFailure> {
        let mut deferred = self.deferred.take();
        // Deepest first: a parent may lose owner access.
        deferred.sort_by_key(|(path, _)| Reverse(path.as_str().matches('/').count()));
        for (path, mode) in &deferred {
            self.set(path, *mode).await?;
        }
        Ok(())
    }

    /// Sets the mode of a file that was written in blocks.
    pub(super) async fn apply_modes(
        &self,
        file: &PathUri,
        mode: u32,
    ) -> Result<(), CommandFailure> {
        self.set(file, mode & PERMISSION_BITS).await
    }

    /// Returns the mode of a directory; `None` if the server does not report it.
    async fn current_mode(
        &self,
        directory: &PathUri,
        target_state: TargetState,
    ) -> Result<Option<u32>, CommandFailure> {
        if let (TargetState::New, Some(default_mode)) = (target_state, self.default_mode.get()) {
            return Ok(Some(default_mode));
        }
        let found = self.to.metadata(directory).await?;
        let mode = found.and_then(|found| found.mode);
        if target_state == TargetState::New {
            self.default_mode.set(mode);
        }
        Ok(mode)
    }

    async fn set(&self, path: &PathUri, mode: u32) -> Result<(), CommandFailure> {
        let set = self.to.set_metadata(path, Some(mode), None).await;
        set.map_err(|error| {
            let what = format!("set mode {mode:03o} of `{}`", self.to.display(path));
            change_failure(&what, error)
        })
    }
}
