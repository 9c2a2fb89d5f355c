//! Text files: those that an agent can read and change.

use bytes::Bytes;
use exec_wire::{
    fs::{GetMetadata, ReadFile, WriteFile},
    path_uri::PathUri,
};

use crate::mcp::{answer::Complaint, work::Work};

/// Largest file that is changed as text: it is held several times.
pub(super) const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Permission bits, if the environment tells them.
pub(super) type Mode = Option<u32>;

/// Reads a whole file as text. Complains if it is too large, or no text.
pub(super) async fn read_text(work: &Work, path: &PathUri) -> Result<String, Complaint> {
    Ok(read_text_and_mode(work, path).await?.0)
}

/// Reads a whole file as text, and who may use it. Complains if it is too large, or no text.
pub(super) async fn read_text_and_mode(
    work: &Work,
    path: &PathUri,
) -> Result<(String, Mode), Complaint> {
    let metadata = work.files().metadata(GetMetadata {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: work.sandbox(),
    });
    let shown = work.show(path);
    let metadata = metadata.await?;
    let size = metadata.size;
    if size > MAX_TEXT_BYTES {
        return Err(Complaint(format!(
            "`{shown}` is too large to be edited as text: {size} bytes, at most {MAX_TEXT_BYTES}"
        )));
    }
    let read = work.files().read_file(ReadFile {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: work.sandbox(),
    });
    let text = String::from_utf8(Vec::from(read.await?))
        .map_err(|_| Complaint(format!("`{shown}` is not UTF-8 text")))?;
    Ok((text, metadata.mode))
}

/// Writes a whole file, which keeps its mode. Readers see the old content or the new.
pub(super) async fn write_text(work: &Work, path: &PathUri, text: &str) -> Result<(), Complaint> {
    write_text_with_mode(work, path, text, None).await
}

/// Writes a whole file, and lets it have this mode.
pub(super) async fn write_text_with_mode(
    work: &Work,
    path: &PathUri,
    text: &str,
    mode: Mode,
) -> Result<(), Complaint> {
    let write = WriteFile {
        path: path.clone(),
        data_base64: None,
        follow_symlinks: None,
        create_parents: true,
        atomic: true,
        mode,
        sandbox: work.sandbox(),
    };
    let data = Bytes::copy_from_slice(text.as_bytes());
    Ok(work.files().write_file(write, data).await?)
}
