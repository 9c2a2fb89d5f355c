//! Shared parts of the file commands: error messages, metadata lookup, retries after a disconnect,
//! and paths for display and as bytes.

mod entries;
#[cfg(test)]
mod tests;

use std::{
    ffi::OsStr,
    os::unix::ffi::{OsStrExt, OsStringExt},
    sync::Arc,
};

use bytes::Bytes;
use exec_env::filesystem::{ExecutorFileSystem, FileError, OpenFile, OpenFileRequest};
use exec_wire::{
    fs::{CanonicalizePath, FileMetadata, GetMetadata, OpenMode, ReadFile},
    path_uri::PathUri,
};

use crate::command::failure::{CommandFailure, FailureKind};

pub(crate) use self::entries::{DirectoryListing, ListedEntry, ListedEntryKind, entries};

/// Maximum retries of a request after lost connections. The client waits for a connection each
/// time.
pub(crate) const MAX_RETRIES: u32 = 8;

/// Repeats an idempotent request while the connection is lost during it.
pub(crate) async fn retry_disconnected<T, F>(mut request: impl FnMut() -> F) -> Result<T, FileError>
where
    F: Future<Output = Result<T, FileError>>,
{
    let mut retries_left = MAX_RETRIES;
    loop {
        match request().await {
            Err(FileError::Disconnected(_)) if retries_left > 0 => retries_left -= 1,
            outcome => return outcome,
        }
    }
}

impl From<FileError> for CommandFailure {
    /// Converts a file error. The text names the file; OS error numbers are removed.
    fn from(error: FileError) -> Self {
        let text = one_line(&error.to_string());
        let failure = |kind| Self::new(kind, plain(&text));
        match error {
            FileError::NotFound(_) => failure(FailureKind::NotFound),
            FileError::Disconnected(_) => {
                failure(FailureKind::Lost).next("run the same command again to resume")
            }
            FileError::Refused(_) => failure(FailureKind::Usage),
            FileError::Invalid(_) | FileError::Host(_) | FileError::Remote(_) | _ => {
                failure(FailureKind::Failed)
            }
        }
    }
}

/// Joins the lines of a text: pattern errors have several.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Removes the trailing OS error number, which follows its text.
fn plain(text: &str) -> &str {
    match text.rsplit_once(" (os error ") {
        Some((plain, number)) if number.trim_end_matches(')').parse::<u32>().is_ok() => plain,
        _ => text,
    }
}

/// Identifies the state of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FileFingerprint {
    /// Size in bytes.
    pub(crate) size: u64,
    /// Modification time in milliseconds since the Unix epoch.
    pub(crate) modified_at_ms: i64,
}

impl From<&FileMetadata> for FileFingerprint {
    fn from(found: &FileMetadata) -> Self {
        Self {
            size: found.size,
            modified_at_ms: found.modified_at_ms,
        }
    }
}

/// Returns metadata, following links; `None` if the path does not exist.
pub(crate) async fn metadata_if_exists(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<Option<FileMetadata>, FileError> {
    let get = GetMetadata {
        path: path.clone(),
        follow_symlinks: None,
        details: false,
        sandbox: None,
    };
    match retry_disconnected(|| files.metadata(get.clone())).await {
        Ok(found) => Ok(Some(found)),
        Err(FileError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a whole file.
pub(crate) async fn read_file(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<Bytes, FileError> {
    let read = ReadFile {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
    };
    retry_disconnected(|| files.read_file(read.clone())).await
}

/// Opens a file.
pub(crate) async fn open_file(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
    mode: OpenMode,
) -> Result<Arc<dyn OpenFile>, FileError> {
    let open = OpenFileRequest {
        path: path.clone(),
        mode,
        sandbox: None,
    };
    retry_disconnected(|| files.open(open.clone())).await
}

/// Resolves every link of a path.
pub(crate) async fn canonicalize(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<PathUri, FileError> {
    let canonicalize = CanonicalizePath {
        path: path.clone(),
        sandbox: None,
    };
    retry_disconnected(|| files.canonicalize(canonicalize.clone())).await
}

/// Returns whether a path at which nothing was found is a dangling link.
pub(crate) async fn is_dangling_link(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<bool, FileError> {
    // Only the last component matters: others may be valid links.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(false);
    };
    let parent = match canonicalize(files, &parent).await {
        Ok(parent) => parent,
        Err(error @ FileError::Disconnected(_)) => return Err(error),
        Err(_) => return Ok(false),
    };
    let Some(path) = child_path(&parent, &name) else {
        return Ok(false);
    };
    let get = GetMetadata {
        path,
        follow_symlinks: Some(false),
        details: false,
        sandbox: None,
    };
    match retry_disconnected(|| files.metadata(get.clone())).await {
        // The server rejects links that it does not follow.
        Err(FileError::Invalid(_)) => Ok(true),
        Err(error @ FileError::Disconnected(_)) => Err(error),
        Ok(_) | Err(_) => Ok(false),
    }
}

/// Returns the native form of a path; the URI if the host is of another kind.
pub(crate) fn display_path(path: &PathUri) -> String {
    match path.to_native() {
        Ok(native) => native.to_string_lossy().into_owned(),
        Err(_) => path.as_str().to_owned(),
    }
}

/// Returns the native form as bytes, for programs.
pub(crate) fn path_bytes(path: &PathUri) -> Vec<u8> {
    match path.to_native() {
        Ok(native) => native.into_os_string().into_vec(),
        Err(_) => path.as_str().as_bytes().to_vec(),
    }
}

/// Returns a path below `root` relative to how the user typed the root.
pub(crate) fn display_relative(typed: &str, root: &PathUri, path: &PathUri) -> String {
    let bytes = relative_path_bytes(typed.as_bytes(), root, path);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the same path as bytes.
pub(crate) fn relative_path_bytes(typed: &[u8], root: &PathUri, path: &PathUri) -> Vec<u8> {
    let (root_path, path) = (path_bytes(root), path_bytes(path));
    let relative = path
        .strip_prefix(&root_path[..])
        .filter(|_| root_path != b"/");
    match relative.and_then(|relative| relative.strip_prefix(b"/")) {
        Some(relative) if typed == b"." => relative.to_vec(),
        Some(relative) => {
            let end = typed.iter().rposition(|&byte| byte != b'/');
            let typed = &typed[..end.map_or(0, |end| end + 1)];
            [typed, b"/", relative].concat()
        }
        None => path,
    }
}

/// Returns the path of a directory entry; `None` if `name` is not a valid file name.
pub(crate) fn child_path(directory: &PathUri, name: &[u8]) -> Option<PathUri> {
    if !is_file_name(name) {
        return None;
    }
    directory.child(OsStr::from_bytes(name)).or_else(|| {
        let name = std::str::from_utf8(name).ok()?;
        // On such hosts these characters separate components, too.
        let is_valid = !name.contains(['\\', ':']);
        directory.join(name).ok().filter(|_| is_valid)
    })
}

/// Returns whether `name` is a valid file name. Names from a server need this check.
pub(crate) fn is_file_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}
