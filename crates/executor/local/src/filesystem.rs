//! File system of this machine for async callers.
//!
//! Reads that the kernel serves from memory complete at once on the caller's thread. Everything
//! else runs on the blocking pool, or in an fs worker if a policy restricts it. Changes of one
//! session run in call order through one write queue. Elsewhere: the operations themselves
//! (`exec-fs`) and fs workers (`exec-sandbox`).

mod content_memory;
mod direct_fs;
#[cfg(test)]
mod tests;
mod write_queue;

use std::sync::Arc;

use bytes::Bytes;
use exec_env::filesystem::{
    ExecutorFileSystem, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch, OpenFile,
    OpenFileRequest, PathWatcher, WatchPathRequest,
};
use exec_fs::{BlockFile, CancelFlag};
use exec_sandbox::{
    CachedPlan, FileIntent, SandboxFactory,
    policy::{reads_everything, writes_everything},
    sandboxed_fs::{SandboxedFs, SandboxedRead, WorkerRequest},
};
use exec_wire::{
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, DirectoryEntry, FileMetadata, FindPaths,
        FoundPaths, GetMetadata, OpenMode, ReadDirectory, ReadFile, RemovePath, RenamePath,
        SearchResult, SearchText, WalkResult, WalkTree, WriteFile,
    },
    path_uri::PathUri,
    sandbox::{SandboxPolicy, WindowsSandboxLevel},
};
use futures_util::future::FutureExt;
use tokio::runtime::Handle;

use self::{content_memory::ContentMemory, direct_fs::DirectFs};
use crate::backend::LocalBackend;

/// File system of this machine. Each clone has its own write queue, so each session gets a clone.
#[derive(Debug)]
pub struct LocalFileSystem {
    direct: DirectFs,
    enforcement: PolicyEnforcement,
}

impl Default for LocalFileSystem {
    fn default() -> Self {
        Self {
            direct: DirectFs::new(ContentMemory::unbounded()),
            enforcement: PolicyEnforcement::default(),
        }
    }
}

impl Clone for LocalFileSystem {
    fn clone(&self) -> Self {
        Self {
            direct: self.direct.for_new_session(),
            enforcement: self.enforcement.clone(),
        }
    }
}

impl LocalFileSystem {
    /// Creates a file system for a server. Reads wait while unsent content of a session exceeds
    /// [`exec_wire::limits::FILE_WINDOW_BYTES`] (backpressure).
    pub fn for_server() -> Self {
        Self {
            direct: DirectFs::new(ContentMemory::bounded(Arc::default())),
            enforcement: PolicyEnforcement::default(),
        }
    }

    /// Enforces sandbox policies with the sandboxes of `backend`. Otherwise restrictive policies
    /// are rejected.
    pub fn with_policies(self, backend: &LocalBackend) -> Self {
        let sandboxes = backend.sandboxes().clone();
        let files = SandboxedFs::new(backend.spawner.clone(), sandboxes.clone());
        Self {
            enforcement: PolicyEnforcement::Enforced { sandboxes, files },
            ..self
        }
    }

    /// Runs a read operation.
    fn read<R: Send + 'static, T: Send + 'static>(
        &self,
        sandbox: Option<Box<SandboxPolicy>>,
        request: R,
        direct: fn(&DirectFs, R) -> FileFuture<T>,
        sandboxed: fn(SandboxedOperation, DirectFs, R) -> FileFuture<T>,
    ) -> FileFuture<T> {
        let Some(sandbox) = sandbox else {
            return direct(&self.direct, request);
        };
        let (direct_fs, enforcement) = (self.direct.clone(), self.enforcement.clone());
        async move {
            match enforcement.resolve(&sandbox, FileIntent::Read).await? {
                FsPlacement::Direct => direct(&direct_fs, request).await,
                FsPlacement::Sandboxed(operation) => sandboxed(operation, direct_fs, request).await,
            }
        }
        .boxed()
    }

    /// Runs a change through the write queue.
    fn change<R: Send + 'static>(
        &self,
        sandbox: Option<Box<SandboxPolicy>>,
        request: R,
        direct: fn(&R, &CancelFlag) -> Result<(), FileError>,
        into_worker_request: fn(R) -> (WorkerRequest, Bytes),
    ) -> FileFuture<()> {
        let enforcement = self.enforcement.clone();
        self.direct.enqueue(move |stop| {
            let Some(sandbox) = sandbox else {
                return direct(&request, stop);
            };
            match enforcement.resolve_blocking(&sandbox, FileIntent::Change)? {
                FsPlacement::Direct => direct(&request, stop),
                FsPlacement::Sandboxed(operation) => {
                    let (request, data) = into_worker_request(request);
                    operation.change_blocking(request, data)
                }
            }
        })
    }
}

impl ExecutorFileSystem for LocalFileSystem {
    fn read_file(&self, mut read: ReadFile) -> FileFuture<Bytes> {
        let sandbox = read.sandbox.take();
        self.read(
            sandbox,
            read,
            DirectFs::read_file,
            SandboxedOperation::read_file,
        )
    }

    fn write_file(&self, mut write: WriteFile, data: Bytes) -> FileFuture<()> {
        self.change(
            write.sandbox.take(),
            (write, data),
            |(write, data), _| exec_fs::write_file(write, data),
            |(write, data)| (WorkerRequest::WriteFile(write), data),
        )
    }

    fn create_directory(&self, mut create: CreateDirectory) -> FileFuture<()> {
        self.change(
            create.sandbox.take(),
            create,
            |create, _| exec_fs::create_directory(create),
            |create| (WorkerRequest::CreateDirectory(create), Bytes::new()),
        )
    }

    fn metadata(&self, mut get: GetMetadata) -> FileFuture<FileMetadata> {
        self.read(
            get.sandbox.take(),
            get,
            DirectFs::metadata,
            |operation, _, get| {
                operation
                    .files
                    .result(operation.plan, WorkerRequest::Metadata(get))
            },
        )
    }

    fn canonicalize(&self, mut request: CanonicalizePath) -> FileFuture<PathUri> {
        self.read(
            request.sandbox.take(),
            request,
            |direct, request| direct.read(move |_| exec_fs::canonicalize(&request)),
            |operation, _, request| {
                operation
                    .files
                    .result(operation.plan, WorkerRequest::Canonicalize(request))
            },
        )
    }

    fn read_directory(&self, mut read: ReadDirectory) -> FileFuture<Vec<DirectoryEntry>> {
        self.read(
            read.sandbox.take(),
            read,
            |direct, read| direct.read(move |_| exec_fs::read_directory(&read)),
            |operation, _, read| {
                operation
                    .files
                    .result(operation.plan, WorkerRequest::ReadDirectory(read))
            },
        )
    }

    fn walk(&self, mut walk: WalkTree) -> FileFuture<WalkResult> {
        self.read(
            walk.sandbox.take(),
            walk,
            |direct, walk| direct.read(move |stop| exec_fs::walk(&walk, stop)),
            |operation, _, walk| {
                operation
                    .files
                    .result(operation.plan, WorkerRequest::Walk(walk))
            },
        )
    }

    fn remove(&self, mut remove: RemovePath) -> FileFuture<()> {
        self.change(remove.sandbox.take(), remove, exec_fs::remove, |remove| {
            (WorkerRequest::Remove(remove), Bytes::new())
        })
    }

    fn copy(&self, mut copy: CopyPath) -> FileFuture<()> {
        self.change(copy.sandbox.take(), copy, exec_fs::copy, |copy| {
            (WorkerRequest::Copy(copy), Bytes::new())
        })
    }

    fn rename(&self, mut rename: RenamePath) -> FileFuture<()> {
        self.change(
            rename.sandbox.take(),
            rename,
            |rename, _| exec_fs::rename(rename),
            |rename| (WorkerRequest::Rename(rename), Bytes::new()),
        )
    }

    fn open(&self, mut open: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>> {
        let (direct, enforcement) = (self.direct.clone(), self.enforcement.clone());
        let intent = match open.mode {
            OpenMode::Read => FileIntent::Read,
            OpenMode::Replace | OpenMode::Update => FileIntent::Change,
        };
        // Both modes go through the write queue, so that earlier changes are visible.
        self.direct.enqueue(move |_| {
            if let Some(sandbox) = open.sandbox.take()
                && let FsPlacement::Sandboxed(operation) =
                    enforcement.resolve_blocking(&sandbox, intent)?
            {
                return operation.open_blocking(&direct, open);
            }
            let file = BlockFile::open(&open.path, open.mode)?;
            Ok(direct.open_file(file, &open.path))
        })
    }

    fn search(&self, mut search: SearchText) -> FileFuture<SearchResult> {
        self.read(
            search.sandbox.take(),
            search,
            |direct, search| direct.read(move |stop| exec_fs::search(&search, stop)),
            |operation, _, search| {
                operation
                    .files
                    .result(operation.plan, WorkerRequest::Search(search))
            },
        )
    }

    fn find(&self, mut find: FindPaths) -> FileFuture<FoundPaths> {
        self.read(
            find.sandbox.take(),
            find,
            |direct, find| direct.read(move |stop| exec_fs::find(&find, stop)),
            |operation, _, find| {
                operation
                    .files
                    .result(operation.plan, WorkerRequest::Find(find))
            },
        )
    }

    fn watch(&self, mut watch: WatchPathRequest) -> FileFuture<PathWatcher> {
        self.read(
            watch.sandbox.take(),
            watch,
            |direct, watch| direct.read(move |_| exec_fs::watch(&watch)),
            |operation, _, watch| operation.files.watch(operation.plan, watch),
        )
    }

    fn watch_missing(
        &self,
        mut paths: MissingPathsRequest,
    ) -> FileFuture<Option<MissingPathsWatch>> {
        self.read(
            paths.sandbox.take(),
            paths,
            |direct, paths| direct.read(move |_| exec_fs::watch_missing(&paths)),
            |operation, _, paths| operation.files.watch_missing(operation.plan, paths),
        )
    }
}

/// How policies are enforced.
#[derive(Clone, Debug, Default)]
enum PolicyEnforcement {
    /// Not at all: restrictive policies are rejected.
    #[default]
    Unavailable,
    /// By fs workers that the kernel confines.
    Enforced {
        /// Plans sandboxes.
        sandboxes: SandboxFactory,
        /// Runs operations in fs workers.
        files: SandboxedFs,
    },
}

/// Where an operation runs.
enum FsPlacement {
    /// In this process: no policy restricts it.
    Direct,
    /// In a sandboxed fs worker.
    Sandboxed(SandboxedOperation),
}

impl PolicyEnforcement {
    /// Resolves where an operation runs. The plan depends on existing files, so the result is valid
    /// for one operation.
    async fn resolve(
        &self,
        sandbox: &SandboxPolicy,
        intent: FileIntent,
    ) -> Result<FsPlacement, FileError> {
        let reject = |text: &str| Err(FileError::Refused(format!("sandbox: {text}")));
        if sandbox.windows_sandbox_level == WindowsSandboxLevel::Mxc {
            return reject("windowsSandboxLevel `mxc` is not available on this host");
        }
        let Self::Enforced { sandboxes, files } = self else {
            let is_unrestricted = match intent {
                FileIntent::Read => reads_everything(sandbox),
                FileIntent::Change => writes_everything(sandbox),
            };
            if is_unrestricted {
                return Ok(FsPlacement::Direct);
            }
            return reject("policies cannot be enforced by this file system");
        };
        let plan = sandboxes.plan_for_files(sandbox, intent).await?;
        Ok(plan.map_or(FsPlacement::Direct, |plan| {
            let files = files.clone();
            FsPlacement::Sandboxed(SandboxedOperation { files, plan })
        }))
    }

    /// Resolves where an operation runs. Blocks.
    fn resolve_blocking(
        &self,
        sandbox: &SandboxPolicy,
        intent: FileIntent,
    ) -> Result<FsPlacement, FileError> {
        Handle::current().block_on(self.resolve(sandbox, intent))
    }
}

/// An operation in an fs worker under one plan.
#[derive(Clone, Debug)]
struct SandboxedOperation {
    files: SandboxedFs,
    plan: CachedPlan,
}

impl SandboxedOperation {
    /// Runs a change. Blocks.
    fn change_blocking(self, request: WorkerRequest, data: Bytes) -> Result<(), FileError> {
        let call = self.files.call(self.plan, request, data);
        Handle::current().block_on(call)?.into_result()
    }

    /// Reads a whole file. Reads a large file from the descriptor that the worker opened, when
    /// `direct` grants the memory.
    fn read_file(self, direct: DirectFs, read: ReadFile) -> FileFuture<Bytes> {
        async move {
            match self.files.read_file(self.plan, read.clone()).await? {
                SandboxedRead::Content(content) => Ok(content),
                SandboxedRead::Opened(file) => direct.read_received(file, read).await,
            }
        }
        .boxed()
    }

    /// Opens a file. Blocks.
    fn open_blocking(
        self,
        direct: &DirectFs,
        open: OpenFileRequest,
    ) -> Result<Arc<dyn OpenFile>, FileError> {
        let path = open.path.clone();
        let file = Handle::current().block_on(self.files.open(self.plan, open))?;
        Ok(direct.open_file(BlockFile::from_file(file, &path)?, &path))
    }
}
