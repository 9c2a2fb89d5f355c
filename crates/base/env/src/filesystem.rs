//! Files, here or elsewhere.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use exec_wire::{
    error::{ErrorCode, RpcError},
    fs::{
        Canonicalize, Change, Copy, CreateDirectory, DirectoryEntry, FileMetadata, Find,
        FoundPaths, GetMetadata, OpenMode, ReadDirectory, ReadFile, Remove, Rename, Search,
        SearchResult, Walk, WalkResult, WriteFile,
    },
    limits,
    path_uri::PathUri,
    sandbox::Sandbox,
};
use futures_util::{
    future::BoxFuture,
    stream::{self, BoxStream, StreamExt},
};

use crate::environment::Disconnect;

/// What an operation on files comes to.
pub type FileFuture<T> = BoxFuture<'static, Result<T, FileError>>;

/// File operations. Callers cannot tell local from remote through it.
///
/// The place in line is taken by calling, not by awaiting: changes happen in the order in which they
/// were called, and whoever reads sees every change that was answered before. Dropping a future
/// leaves behind what the operation has done so far; a change that has not begun does not begin.
pub trait ExecutorFileSystem: fmt::Debug + Send + Sync {
    /// Reads a whole regular file of at most [`limits::MAX_READ_FILE_BYTES`].
    fn read_file(&self, read: ReadFile) -> FileFuture<Bytes>;

    /// Creates a file or replaces what it holds. The data member of `write` is not looked at.
    fn write_file(&self, write: WriteFile, data: Bytes) -> FileFuture<()>;

    /// Makes a directory.
    fn create_directory(&self, create: CreateDirectory) -> FileFuture<()>;

    /// Tells what a path names.
    fn metadata(&self, get: GetMetadata) -> FileFuture<FileMetadata>;

    /// Resolves every link of a path that exists.
    fn canonicalize(&self, canonicalize: Canonicalize) -> FileFuture<PathUri>;

    /// Lists a directory, in no order.
    fn read_directory(&self, read: ReadDirectory) -> FileFuture<Vec<DirectoryEntry>>;

    /// Lists a tree, breadth first.
    fn walk(&self, walk: Walk) -> FileFuture<WalkResult>;

    /// Removes a file, a link or a tree.
    fn remove(&self, remove: Remove) -> FileFuture<()>;

    /// Copies a file, a link or a tree.
    fn copy(&self, copy: Copy) -> FileFuture<()>;

    /// Gives something another name, in one step.
    fn rename(&self, rename: Rename) -> FileFuture<()>;

    /// Opens a regular file. It is closed when the last clone is dropped.
    fn open(&self, open: Open) -> FileFuture<Arc<dyn OpenFile>>;

    /// Finds the lines that match.
    fn search(&self, search: Search) -> FileFuture<SearchResult>;

    /// Finds files and directories by their names.
    fn find(&self, find: Find) -> FileFuture<FoundPaths>;

    /// Watches a path. Every change after the answer is told, or an overflow is.
    fn watch(&self, watch: WatchPath) -> FileFuture<Watcher>;

    /// Watches for missing paths to appear; `None` if the paths are not as they are said to be, or
    /// cannot be watched.
    fn watch_missing(&self, missing: MissingPaths) -> FileFuture<Option<MissingWatch>>;
}

impl dyn ExecutorFileSystem {
    /// Reads a regular file of any size, block by block.
    pub async fn read_file_stream(&self, read: ReadFile) -> Result<FileStream, FileError> {
        let open = Open {
            path: read.path,
            mode: OpenMode::Read,
            sandbox: read.sandbox,
        };
        let file = self.open(open).await?;
        let blocks = stream::try_unfold(Some((file, 0)), |state| async move {
            let Some((file, offset)) = state else {
                return Ok(None);
            };
            let block = file.read_block(offset, limits::MAX_BLOCK_BYTES).await?;
            let next = offset + block.data.len() as u64;
            let state = (!block.eof).then_some((file, next));
            Ok(Some((block.data, state)))
        });
        Ok(blocks.boxed())
    }
}

/// A file, block by block.
pub type FileStream = BoxStream<'static, Result<Bytes, FileError>>;

/// What to open.
#[derive(Clone, Debug)]
pub struct Open {
    /// The file.
    pub path: PathUri,
    /// What for.
    pub mode: OpenMode,
    /// The policy under which it is opened.
    pub sandbox: Option<Box<Sandbox>>,
}

/// An open file. There is no cursor.
pub trait OpenFile: fmt::Debug + Send + Sync {
    /// Reads `length` bytes, or what there is, from `offset` on.
    fn read_block(&self, offset: u64, length: usize) -> FileFuture<FileBlock>;

    /// Writes everything at `offset`.
    fn write_block(&self, offset: u64, data: Bytes) -> FileFuture<()>;
}

/// A part of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileBlock {
    /// The bytes.
    pub data: Bytes,
    /// The file had fewer bytes than were wanted.
    pub eof: bool,
}

/// What to watch.
#[derive(Clone, Debug)]
pub struct WatchPath {
    /// A file or directory that exists.
    pub path: PathUri,
    /// How much below a directory.
    pub depth: WatchDepth,
    /// The policy under which it is watched.
    pub sandbox: Option<Box<Sandbox>>,
}

/// How much below a directory is watched.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WatchDepth {
    /// Its own entries.
    Entries,
    /// Everything.
    Tree,
}

/// A watch. It ends when it is dropped.
pub struct Watcher {
    /// The watched path, without links.
    pub path: PathUri,
    /// The changes, gathered.
    pub changes: BoxStream<'static, Changes>,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Changes that were gathered for a moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changes {
    /// Each path once.
    pub changes: Vec<Change>,
    /// Changes were lost.
    pub overflow: bool,
}

/// Paths to watch for.
#[derive(Clone, Debug)]
pub struct MissingPaths {
    /// Paths that do not exist.
    pub missing: Vec<PathUri>,
    /// A path that does.
    pub present: Option<PathUri>,
    /// The policy under which they are looked at.
    pub sandbox: Option<Box<Sandbox>>,
}

/// Resolves when something has changed. The watch ends when it is dropped.
pub type MissingWatch = BoxFuture<'static, ()>;

/// Why something could not be done to a file. The variant is the wire's code, so that it is the
/// same wherever the file is; the text names the path and what the host said.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Caller: nothing is there.
    #[error("{0}")]
    NotFound(String),
    /// Caller: it may not be done, or not to this kind of file.
    #[error("{0}")]
    Invalid(String),
    /// Caller: the request asks for what cannot be.
    #[error("{0}")]
    Refused(String),
    /// Host: the operating system failed it.
    #[error("{0}")]
    Host(String),
    /// Peer: the remote end refused in a way of its own.
    #[error(transparent)]
    Remote(RpcError),
    /// Transport: the remote end is gone.
    #[error(transparent)]
    Disconnected(#[from] Disconnect),
}

impl From<FileError> for RpcError {
    fn from(error: FileError) -> Self {
        let code = match error {
            FileError::NotFound(_) => ErrorCode::NOT_FOUND,
            FileError::Invalid(_) => ErrorCode::INVALID_REQUEST,
            FileError::Refused(_) => ErrorCode::INVALID_PARAMS,
            FileError::Host(_) | FileError::Disconnected(_) => ErrorCode::INTERNAL,
            FileError::Remote(error) => return error,
        };
        Self::new(code, error.to_string())
    }
}

impl From<RpcError> for FileError {
    fn from(error: RpcError) -> Self {
        match error.code {
            ErrorCode::NOT_FOUND => Self::NotFound(error.message),
            ErrorCode::INVALID_REQUEST => Self::Invalid(error.message),
            ErrorCode::INVALID_PARAMS => Self::Refused(error.message),
            ErrorCode::INTERNAL => Self::Host(error.message),
            _ => Self::Remote(error),
        }
    }
}
