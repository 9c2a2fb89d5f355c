//! Whole files: those that an agent can read and change.

use bytes::Bytes;
use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{GetMetadata, ReadFile, WriteFile},
    path_uri::PathUri,
};
use tokio::sync::OwnedMutexGuard;

use crate::mcp::{answer::Complaint, work::Work};

/// Largest file that is changed as text, or kept to be put back: it is held several times.
pub(super) const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Permission bits, if the environment tells them.
pub(super) type Mode = Option<u32>;

/// What a file holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Content {
    /// All of it.
    Whole(Bytes),
    /// So many bytes, which are more than is read.
    TooLarge(u64),
}

impl Content {
    /// Returns it as text. Complains if it is too large, or no text.
    pub(super) fn text(&self, shown: &str) -> Result<&str, Complaint> {
        match self {
            Self::Whole(data) => {
                str::from_utf8(data).map_err(|_| Complaint(format!("`{shown}` is not UTF-8 text")))
            }
            Self::TooLarge(size) => Err(Complaint(format!(
                "`{shown}` is too large to be edited as text: {size} bytes, at most {MAX_TEXT_BYTES}"
            ))),
        }
    }
}

/// Reads a file, and who may use it.
pub(super) async fn read(work: &Work, path: &PathUri) -> Result<(Content, Mode), Complaint> {
    let metadata = work.files().metadata(GetMetadata {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: work.sandbox(),
    });
    let metadata = metadata.await?;
    if metadata.is_file && metadata.size > MAX_TEXT_BYTES {
        return Ok((Content::TooLarge(metadata.size), metadata.mode));
    }
    let read = work.files().read_file(ReadFile {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: work.sandbox(),
    });
    Ok((Content::Whole(read.await?), metadata.mode))
}

/// Reads a whole file as text. Complains if it is too large, or no text.
pub(super) async fn read_text(work: &Work, path: &PathUri) -> Result<String, Complaint> {
    let (content, _) = read(work, path).await?;
    Ok(content.text(&work.show(path))?.to_owned())
}

/// Writes a whole file, which keeps its mode. Readers see the old content or the new. A call that is
/// cancelled meanwhile goes on with it, and only then gives its turn away.
pub(super) async fn write_text(
    work: &Work,
    path: &PathUri,
    text: String,
    turn: OwnedMutexGuard<()>,
) -> Result<(), Complaint> {
    // In a task, which whoever waits no longer does not end: the host may be at it all the same, and would
    // replace what the next one has written.
    let (task_work, task_path) = (work.clone(), path.clone());
    let written = tokio::spawn(async move {
        let _turn = turn;
        write(&task_work, &task_path, Bytes::from(text), None).await
    });
    written
        .await
        .map_err(|error| Complaint(format!("the file was not written: {error}")))?
        .map_err(|error| work.not_changed(path, &error))
}

/// Writes a whole file, and lets it have this mode. The error's kind tells whether it may be written all the
/// same.
pub(super) async fn write(
    work: &Work,
    path: &PathUri,
    data: Bytes,
    mode: Mode,
) -> Result<(), FileError> {
    let write = WriteFile {
        path: path.clone(),
        data_base64: None,
        follow_symlinks: None,
        create_parents: true,
        atomic: true,
        mode,
        sandbox: work.sandbox(),
    };
    work.files().write_file(write, data).await
}
