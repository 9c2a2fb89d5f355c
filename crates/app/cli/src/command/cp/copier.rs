//! Copies one file at a time into a partial file, and renames it.

use std::{cell::RefCell, collections::BTreeSet, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::filesystem::{ExecutorFileSystem, FileError, OpenFile};
use exec_wire::{
    fs::{CopyPath, FileMetadata, OpenMode, RenamePath, WriteFile},
    limits,
    path_uri::PathUri,
};
use futures_util::future;
use tokio::sync::Semaphore;

use crate::command::{
    cp::{
        CopyProgress,
        block_copy::{BlockSize, CopyError, copy_blocks, same_blocks},
        endpoint::{CopyEndpoint, TargetKind},
        file_metadata::{DeferredMetadata, FileModes, LinkMode},
        staged_tree::{JournalKey, StagedTree, TargetState, part_of},
        tree_scan::CopyJob,
    },
    failure::{CommandFailure, FailureKind},
    files::{FileFingerprint, MAX_RETRIES, display_path, open_file, read_file, retry_disconnected},
};

/// Files up to this size are read and written whole: two calls and a rename.
const SMALL_BYTES: u64 = limits::MAX_BLOCK_BYTES as u64;
/// Bytes compared at both ends of a partial file before it is resumed: more than can be in flight.
/// A timestamp alone does not identify the content.
const COMPARED_BYTES: u64 = 8 << 20;
/// Mode bits the owner needs to resume a partial file.
const OWNER: u32 = 0o600;
/// Limit for cleaning up after a failure.
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether partial files of an earlier run are used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ResumeMode {
    /// If they are a prefix of the source.
    Parts,
    /// Everything is copied again.
    Nothing,
}

/// Whether times are kept where writing a file does not set them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum KeepTimes {
    /// For directories and on servers, too.
    Yes,
    /// Only for local files.
    No,
}

/// Options of a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyOptions {
    /// Whether an earlier run is resumed.
    pub(super) resume: ResumeMode,
    /// How links in trees are treated.
    pub(super) links: LinkMode,
    /// Whether times are kept.
    pub(super) times: KeepTimes,
}

/// Copies files from one endpoint to another.
#[derive(Debug)]
pub(super) struct Copier<'a> {
    from: &'a CopyEndpoint,
    to: &'a CopyEndpoint,
    options: CopyOptions,
    deferred: &'a DeferredMetadata,
    progress: &'a CopyProgress,
    /// Limits large files to one at a time: one saturates the link.
    large: Semaphore,
    /// Partial files that are written in one step, and so cannot be resumed.
    unresumable: RefCell<BTreeSet<PathUri>>,
}

impl<'a> Copier<'a> {
    pub(super) fn new(
        from: &'a CopyEndpoint,
        to: &'a CopyEndpoint,
        options: CopyOptions,
        deferred: &'a DeferredMetadata,
        progress: &'a CopyProgress,
    ) -> Self {
        Self {
            from,
            to,
            options,
            deferred,
            progress,
            large: Semaphore::new(1),
            unresumable: RefCell::default(),
        }
    }

    /// Copies one file. Returns an error only if the connection is lost; reports other failures to
    /// the progress.
    pub(super) async fn copy(&self, job: CopyJob) -> Result<(), CommandFailure> {
        match self.copy_job(job).await {
            Err(failure) if failure.kind == FailureKind::Lost => return Err(failure),
            Err(failure) => self.progress.fail(failure),
            Ok(()) => {}
        }
        Ok(())
    }

    async fn copy_job(&self, mut job: CopyJob) -> Result<(), CommandFailure> {
        if job.target_state == TargetState::Existing {
            self.guard_link(&job).await?;
            let target_kind = TargetKind::find(self.to, job.target).await?;
            job.target = target_kind.for_file(self.to)?;
        }
        let number = JournalKey::of(&job.target, (&job.found).into());
        if self.options.times == KeepTimes::Yes && self.to.env.is_some() {
            self.deferred
                .add_time(&job.target, job.found.modified_at_ms);
        }
        if self.is_copied(&job, number).await? {
            self.progress.resumed(job.found.size);
            self.progress.file(job.found.size);
            return Ok(());
        }
        let source = self.from.display(&job.source);
        let Some(part) = part_of(&job.target, &source, (&job.found).into()) else {
            let what = format!(
                "`{}` is not a valid file name",
                self.to.display(&job.target)
            );
            return Err(CommandFailure::usage(what));
        };
        let copied = if self.from.is(self.to) && !job.found.is_symlink {
            self.copy_at_once(&part, self.copy_within(&job, &part))
                .await
        } else if job.found.size <= SMALL_BYTES {
            self.copy_at_once(&part, self.copy_small(&job, &part)).await
        } else {
            self.copy_large(&job, &part).await
        };
        copied.map_err(|failure| {
            let failure = name_target(failure, &part, &job.target);
            match &job.tree {
                Some(tree) => tree.name_target(failure),
                None => failure,
            }
        })?;
        self.progress.file(job.found.size);
        if let Some(tree) = &job.tree {
            tree.journal.record(number).await;
        }
        Ok(())
    }

    /// Refuses to write through a link that the source may have created in an earlier run.
    async fn guard_link(&self, job: &CopyJob) -> Result<(), CommandFailure> {
        if !self.from.has_unreliable_listing(self.to) {
            return Ok(());
        }
        let found = self.to.metadata(&job.target).await?;
        if found.is_some_and(|found| found.is_symlink) {
            let target = self.to.display(&job.target);
            let what = format!("`{target}` is a link; a file does not replace it");
            return Err(CommandFailure::failed(what).next("remove it first"));
        }
        Ok(())
    }

    /// Returns whether an earlier run copied the file and it still exists.
    async fn is_copied(&self, job: &CopyJob, number: JournalKey) -> Result<bool, CommandFailure> {
        if !job
            .tree
            .as_ref()
            .is_some_and(|tree| tree.journal.contains_key(number))
        {
            return Ok(false);
        }
        let found = self.to.metadata(&job.target).await?;
        Ok(found.is_some_and(|found| found.is_file && found.size == job.found.size))
    }

    /// Removes partial files that cannot be resumed, and flushes the journals.
    pub(super) async fn clean_up(&self, trees: &[Rc<StagedTree>]) {
        let parts = self.unresumable.take();
        let journaled = async {
            for tree in trees {
                tree.journal.write().await;
            }
        };
        let removed = async {
            // A copy inside the environment blocks other requests on this connection.
            let second = match self.from.is(self.to) && !parts.is_empty() {
                true => self.to.reopen().await.ok(),
                false => None,
            };
            let to = second.as_ref().unwrap_or(self.to);
            for part in &parts {
                to.remove_part(part).await;
            }
        };
        let cleaned = future::join(journaled, removed);
        drop(tokio::time::timeout(CLEAN_UP_TIMEOUT, cleaned).await);
    }

    /// Copies in a way that cannot be resumed.
    async fn copy_at_once(
        &self,
        part: &PathUri,
        copy: impl Future<Output = Result<(), CommandFailure>>,
    ) -> Result<(), CommandFailure> {
        self.unresumable.borrow_mut().insert(part.clone());
        let copied = copy.await;
        if copied.is_err() {
            self.to.remove_part(part).await;
        }
        self.unresumable.borrow_mut().remove(part);
        copied
    }

    /// Copies within one environment.
    async fn copy_within(&self, job: &CopyJob, part: &PathUri) -> Result<(), CommandFailure> {
        let copy = CopyPath {
            source_path: job.source.clone(),
            destination_path: part.clone(),
            recursive: false,
            sandbox: None,
        };
        retry_disconnected(|| self.to.files.copy(copy.clone())).await?;
        self.progress.written(job.found.size);
        self.finish(job, part).await
    }

    async fn copy_small(&self, job: &CopyJob, part: &PathUri) -> Result<(), CommandFailure> {
        let data = read_file(&*self.from.files, &job.source).await?;
        let length = data.len() as u64;
        let write = whole_file_write(part, job.found.mode.map(|mode| mode & 0o777));
        let mut written =
            retry_disconnected(|| write_with_mode(&*self.to.files, &write, &data)).await;
        if let (Err(FileError::Invalid(_)), Some(_)) = (&written, write.mode) {
            // Before a disconnect it may have received a mode without write permission.
            self.to.remove_part(part).await;
            written = retry_disconnected(|| write_with_mode(&*self.to.files, &write, &data)).await;
        }
        written?;
        self.progress.written(length);
        self.finish(job, part).await
    }

    async fn copy_large(&self, job: &CopyJob, part: &PathUri) -> Result<(), CommandFailure> {
        // The semaphore is never closed.
        let _permit = self.large.acquire().await;
        self.progress.begin(&name_of(&job.target));
        let mut copied_bytes = self.resumable(job, part).await?;
        self.progress.resumed(copied_bytes);
        let mut failures = 0;
        loop {
            let before = copied_bytes;
            let blocks = match failures {
                0 => BlockSize::Large,
                _ => BlockSize::Small,
            };
            let error = match self
                .continue_part(job, part, &mut copied_bytes, blocks)
                .await
            {
                Ok(()) => break,
                Err(error) => error,
            };
            failures = if copied_bytes > before {
                0
            } else {
                failures + 1
            };
            if !error.is_cut() || failures > MAX_RETRIES {
                return Err(self.copy_failure(job, part, error).await);
            }
        }
        if !self.is_unchanged(job).await? {
            return Err(self.copy_failure(job, part, CopyError::Shorter).await);
        }
        let mode_set = match job.found.mode {
            Some(mode) if self.to.env.is_some() && mode & OWNER != OWNER => {
                FileModes::new(self.to).apply_modes(part, mode).await
            }
            Some(_) | None => Ok(()),
        };
        self.finish(job, part).await?;
        mode_set
    }

    /// Returns how many bytes of an existing partial file can be reused.
    async fn resumable(&self, job: &CopyJob, part: &PathUri) -> Result<u64, FileError> {
        if self.options.resume == ResumeMode::Nothing {
            return Ok(0);
        }
        let length = match self.to.metadata(part).await? {
            Some(found) if found.is_file && found.size <= job.found.size => found.size,
            Some(_) | None => return Ok(0),
        };
        let end = length.saturating_sub(COMPARED_BYTES);
        let beginning = end.min(COMPARED_BYTES);
        let mut retries_left = MAX_RETRIES;
        loop {
            let compared = async {
                let source = open_file(&*self.from.files, &job.source, OpenMode::Read).await?;
                let target = open_file(&*self.to.files, part, OpenMode::Read).await?;
                Ok(same_blocks(&source, &target, 0, beginning).await?
                    && same_blocks(&source, &target, end, length).await?)
            };
            return match compared.await {
                Ok(true) => Ok(length),
                Ok(false) => Ok(0),
                Err(FileError::Disconnected(_)) if retries_left > 0 => {
                    retries_left -= 1;
                    continue;
                }
                Err(error @ FileError::Disconnected(_)) => Err(error),
                // An unreadable partial file is written again.
                Err(_) => Ok(0),
            };
        }
    }

    /// Opens both files and copies the remaining range.
    async fn continue_part(
        &self,
        job: &CopyJob,
        part: &PathUri,
        copied_bytes: &mut u64,
        blocks: BlockSize,
    ) -> Result<(), CopyError> {
        let source = open_file(&*self.from.files, &job.source, OpenMode::Read).await;
        let source = source.map_err(CopyError::Source)?;
        let target = self
            .open_part(job, part, copied_bytes)
            .await
            .map_err(CopyError::Target)?;
        let missing = (*copied_bytes, job.found.size);
        copy_blocks(&source, &target, missing, blocks, |length| {
            *copied_bytes += length;
            self.progress.written(length);
        })
        .await
    }

    async fn open_part(
        &self,
        job: &CopyJob,
        part: &PathUri,
        copied_bytes: &mut u64,
    ) -> Result<Arc<dyn OpenFile>, FileError> {
        if *copied_bytes > 0 {
            match open_file(&*self.to.files, part, OpenMode::Update).await {
                // Older servers write files only from their beginning.
                Err(FileError::Refused(_)) => *copied_bytes = 0,
                opened => return opened,
            }
        }
        // It must stay writable and readable for the owner until it is complete.
        let mode = job.found.mode.map(|mode| mode & 0o777 | OWNER);
        let (empty, data) = (whole_file_write(part, mode), Bytes::new());
        retry_disconnected(|| write_with_mode(&*self.to.files, &empty, &data)).await?;
        open_file(&*self.to.files, part, OpenMode::Replace).await
    }

    async fn is_unchanged(&self, job: &CopyJob) -> Result<bool, CommandFailure> {
        let now = self.from.metadata(&job.source).await?;
        let before = FileFingerprint::from(&job.found);
        Ok(now.is_some_and(|now| FileFingerprint::from(&now) == before))
    }

    /// Explains why a file was not copied. Keeps the partial file if the next run can resume it.
    async fn copy_failure(
        &self,
        job: &CopyJob,
        part: &PathUri,
        error: CopyError,
    ) -> CommandFailure {
        match error {
            CopyError::Source(error) | CopyError::Target(error @ FileError::Disconnected(_)) => {
                error.into()
            }
            CopyError::Target(error) => {
                // A block after the failed one may have been written.
                self.to.remove_part(part).await;
                CommandFailure::from(error)
            }
            CopyError::Shorter => {
                self.to.remove_part(part).await;
                let source = self.from.display(&job.source);
                let what = format!("`{source}` changed while it was copied");
                CommandFailure::failed(what).next("copy it again when nothing writes to it")
            }
        }
    }

    /// Renames the complete partial file to its target.
    async fn finish(&self, job: &CopyJob, part: &PathUri) -> Result<(), CommandFailure> {
        if self.to.env.is_none() {
            let mode = job.found.mode.map(|mode| mode & 0o777);
            let time = Some(job.found.modified_at_ms);
            // Content without its time or mode is better than none.
            drop(self.to.set_metadata(part, mode, time).await);
        }
        let rename = RenamePath {
            source_path: part.clone(),
            destination_path: job.target.clone(),
            overwrite: true,
            sandbox: None,
        };
        let is_source = |found: &FileMetadata| found.size == job.found.size;
        if let Err(error) = self.to.rename(rename, is_source).await {
            if !matches!(error, FileError::Disconnected(_)) {
                self.to.remove_part(part).await;
            }
            return Err(CommandFailure::from(error));
        }
        Ok(())
    }
}

/// Replaces the partial file's path in a message with the target's, which the user knows.
pub(super) fn name_target(
    failure: CommandFailure,
    part: &PathUri,
    target: &PathUri,
) -> CommandFailure {
    let (part, target) = (display_path(part), display_path(target));
    CommandFailure {
        what: failure.what.replace(&part, &target),
        ..failure
    }
}

fn name_of(path: &PathUri) -> String {
    let name = path.file_name().unwrap_or_default();
    String::from_utf8_lossy(&name).into_owned()
}

fn whole_file_write(path: &PathUri, mode: Option<u32>) -> WriteFile {
    WriteFile {
        path: path.clone(),
        data_base64: None,
        follow_symlinks: None,
        create_parents: false,
        atomic: false,
        mode,
        sandbox: None,
    }
}

/// Writes a whole file, without the mode if the server cannot set it.
async fn write_with_mode(
    files: &dyn ExecutorFileSystem,
    write: &WriteFile,
    data: &Bytes,
) -> Result<(), FileError> {
    match files.write_file(write.clone(), data.clone()).await {
        Err(FileError::Refused(_)) if write.mode.is_some() => {
            let plain = WriteFile {
                mode: None,
                ..write.clone()
            };
            files.write_file(plain, data.clone()).await
        }
        outcome => outcome,
    }
}
