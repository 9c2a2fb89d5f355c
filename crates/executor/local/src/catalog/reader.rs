//! Text of files, bounded, under a policy.

use std::sync::Arc;

use exec_env::filesystem::{ExecutorFileSystem, FileError, Open};
use exec_wire::{
    fs::{Canonicalize, FileMetadata, GetMetadata, OpenMode},
    limits,
    path_uri::PathUri,
    sandbox::Sandbox,
};

/// Reads files under one policy.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) files: Arc<dyn ExecutorFileSystem>,
    pub(super) sandbox: Option<Box<Sandbox>>,
}

/// What became of reading a file.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Read {
    /// What it holds.
    Text(String),
    /// Nothing is there, or no regular file.
    Missing,
    /// It is there and cannot be had, and why.
    Refused(String),
}

impl Reader {
    pub(super) fn new(files: &Arc<dyn ExecutorFileSystem>, sandbox: Option<Box<Sandbox>>) -> Self {
        let files = Arc::clone(files);
        Self { files, sandbox }
    }

    /// Reads a regular file of at most `most` bytes, perhaps behind links.
    pub(super) async fn text(&self, path: &PathUri, most: u64) -> Read {
        let bytes = match self.bytes(path, most).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                return Read::Refused(format!("`{path}` is larger than {most} bytes"));
            }
            Err(FileError::NotFound(_)) => return Read::Missing,
            // It may be a directory or a pipe, which is no file to read and no problem.
            Err(error) => {
                return match self.metadata(path).await {
                    Ok(found) if !found.is_file => Read::Missing,
                    Err(FileError::NotFound(_)) => Read::Missing,
                    Ok(_) | Err(_) => Read::Refused(format!("cannot read `{path}`: {error}")),
                };
            }
        };
        String::from_utf8(bytes).map_or_else(
            |error| Read::Refused(format!("`{path}` is not UTF-8: {}", error.utf8_error())),
            Read::Text,
        )
    }

    /// Reads a file; `None` if it has more than `most` bytes.
    async fn bytes(&self, path: &PathUri, most: u64) -> Result<Option<Vec<u8>>, FileError> {
        let open = Open {
            path: path.clone(),
            mode: OpenMode::Read,
            sandbox: self.sandbox.clone(),
        };
        let file = self.files.open(open).await?;
        let mut bytes = Vec::new();
        loop {
            let read = bytes.len() as u64;
            if read > most {
                return Ok(None);
            }
            let block = file.read_block(read, limits::MAX_BLOCK_BYTES).await?;
            bytes.extend_from_slice(&block.data);
            if block.eof {
                return Ok((bytes.len() as u64 <= most).then_some(bytes));
            }
        }
    }

    pub(super) async fn metadata(&self, path: &PathUri) -> Result<FileMetadata, FileError> {
        let get = GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
        };
        self.files.metadata(get).await
    }

    pub(super) async fn canonicalize(&self, path: &PathUri) -> Option<PathUri> {
        let canonicalize = Canonicalize {
            path: path.clone(),
            sandbox: self.sandbox.clone(),
        };
        self.files.canonicalize(canonicalize).await.ok()
    }
}
