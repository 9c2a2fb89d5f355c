//! File operations on a local or remote host.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use exec_wire::{
    error::{ErrorCode, RpcError},
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, CreateSymlink, DirectoryListing, FileMetadata,
        FindPaths, FoundPaths, GetMetadata, OpenMode, PathChange, ReadDirectory, ReadFile,
        RemovePath, RenamePath, SearchResult, SearchText, SetMetadata, WalkResult, WalkTree,
        WriteFile,
    },
    limits,
    path_uri::PathUri,
    sandbox::SandboxPolicy,
};
use futures_util::{
    future::BoxFuture,
    stream::{self, BoxStream, StreamExt},
};

use crate::environment::DisconnectReason;

/// Future of a file operation.
pub type FileFuture<T> = BoxFuture<'static, Result<T, FileError>>;

/// File operations, on this host or a remote one.
///
/// An operation takes its place in the order when the method is called, not when the future is
/// awaited. Changes happen in the order of the calls, and a read sees every change that completed
/// before it. Dropping a future may leave a partial change behind; a change that has not started
/// does not start.
pub trait ExecutorFileSystem: fmt::Debug + Send + Sync {
    /// Reads a whole regular file of at most [`limits::MAX_READ_FILE_BYTES`].
    fn read_file(&self, read: ReadFile) -> FileFuture<Bytes>;

    /// Creates a file or replaces its contents. Ignores the data member of `write`.
    fn write_file(&self, write: WriteFile, data: Bytes) -> FileFuture<()>;

    /// Creates a directory.
    fn create_directory(&self, create: CreateDirectory) -> FileFuture<()>;

    /// Returns the metadata of a path.
    fn metadata(&self, get: GetMetadata) -> FileFuture<FileMetadata>;

    /// Sets the mode and the modification time of a path.
    fn set_metadata(&self, set: SetMetadata) -> FileFuture<()>;

    /// Resolves every symbolic link of an existing path.
    fn canonicalize(&self, canonicalize: CanonicalizePath) -> FileFuture<PathUri>;

    /// Lists a directory, unordered, or one page of it.
    fn read_directory(&self, read: ReadDirectory) -> FileFuture<DirectoryListing>;

    /// Lists a tree, breadth first.
    fn walk(&self, walk: WalkTree) -> FileFuture<WalkResult>;

    /// Removes a file, a link or a tree.
    fn remove(&self, remove: RemovePath) -> FileFuture<()>;

    /// Copies a file, a link or a tree.
    fn copy(&self, copy: CopyPath) -> FileFuture<()>;

    /// Renames atomically.
    fn rename(&self, rename: RenamePath) -> FileFuture<()>;

    /// Creates a symbolic link.
    fn create_symlink(&self, create: CreateSymlink) -> FileFuture<()>;

    /// Opens a regular file. Dropping the last clone closes it.
    fn open(&self, open: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>>;

    /// Finds matching lines.
    fn search(&self, search: SearchText) -> FileFuture<SearchResult>;

    /// Finds files and directories by name.
    fn find(&self, find: FindPaths) -> FileFuture<FoundPaths>;

    /// Watches a path. Reports every change after the response, or an overflow.
    fn watch(&self, watch: WatchPathRequest) -> FileFuture<PathWatcher>;

    /// Watches for missing paths to appear. Returns `None` if the paths are not in the stated
    /// condition, or cannot be watched.
    fn watch_missing(&self, missing: MissingPathsRequest) -> FileFuture<Option<MissingPathsWatch>>;
}

impl dyn ExecutorFileSystem {
    /// Reads a regular file of any size, block by block.
    pub async fn read_file_stream(&self, read: ReadFile) -> Result<FileStream, FileError> {
        let open = OpenFileRequest {
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

/// Parameters of [`ExecutorFileSystem::open`].
#[derive(Clone, Debug)]
pub struct OpenFileRequest {
    /// The file.
    pub path: PathUri,
    /// Access mode.
    pub mode: OpenMode,
    /// Sandbox policy of the access.
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// An open file without a cursor.
pub trait OpenFile: fmt::Debug + Send + Sync {
    /// Reads up to `length` bytes from `offset` on.
    fn read_block(&self, offset: u64, length: usize) -> FileFuture<FileBlock>;

    /// Writes all of `data` at `offset`.
    fn write_block(&self, offset: u64, data: Bytes) -> FileFuture<()>;
}

/// A block of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileBlock {
    /// The bytes.
    pub data: Bytes,
    /// The block ends at the end of the file.
    pub eof: bool,
}

/// Parameters of [`ExecutorFileSystem::watch`].
#[derive(Clone, Debug)]
pub struct WatchPathRequest {
    /// An existing file or directory.
    pub path: PathUri,
    /// Depth below a directory.
    pub depth: WatchDepth,
    /// Sandbox policy of the watch.
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Depth of a watch below a directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WatchDepth {
    /// Direct entries only.
    Entries,
    /// The whole tree.
    Tree,
}

/// A watch. Dropping it ends it.
pub struct PathWatcher {
    /// The watched path with links resolved.
    pub path: PathUri,
    /// Batches of changes.
    pub changes: BoxStream<'static, ChangeBatch>,
}

impl fmt::Debug for PathWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Changes that were batched over a short interval.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ChangeBatch {
    /// Changes, at most one per path.
    pub changes: Vec<PathChange>,
    /// Some changes were lost.
    pub overflow: bool,
}

/// Parameters of [`ExecutorFileSystem::watch_missing`].
#[derive(Clone, Debug)]
pub struct MissingPathsRequest {
    /// Paths that do not exist.
    pub missing: Vec<PathUri>,
    /// A path that exists.
    pub present: Option<PathUri>,
    /// Sandbox policy of the watch.
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Resolves when one of the paths has changed. Dropping it ends the watch.
pub type MissingPathsWatch = BoxFuture<'static, ()>;

/// Why a file operation failed. The variant matches the wire's error code, so it is the same for
/// local and remote files. The text names the path and the host's error.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Caller: the path does not exist.
    #[error("{0}")]
    NotFound(String),
    /// Caller: the operation is not permitted, or not possible on this kind of file.
    #[error("{0}")]
    Invalid(String),
    /// Caller: the request is invalid.
    #[error("{0}")]
    Refused(String),
    /// Host: the operating system reported an error.
    #[error("{0}")]
    Host(String),
    /// Peer: the server returned any other error.
    #[error(transparent)]
    Remote(RpcError),
    /// Transport: the session is lost.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
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
