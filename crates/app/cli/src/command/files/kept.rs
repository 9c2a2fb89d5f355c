//! Whether a file is still the one it was.

use exec_env::filesystem::{ExecutorFileSystem, FileError};
use exec_wire::{
    fs::{FileMetadata, GetMetadata},
    path_uri::PathUri,
};

use super::cut::persist;

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Identity {
    /// Bytes.
    pub(crate) size: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) modified_at_ms: i64,
}

impl From<FileMetadata> for Identity {
    fn from(found: FileMetadata) -> Self {
        Self {
            size: found.size,
            modified_at_ms: found.modified_at_ms,
        }
    }
}

/// Looks at a path, and through a link; `None` if nothing is there.
pub(crate) async fn look(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<Option<FileMetadata>, FileError> {
    let get = GetMetadata {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
    };
    match persist(|| files.metadata(get.clone())).await {
        Ok(found) => Ok(Some(found)),
        Err(FileError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
