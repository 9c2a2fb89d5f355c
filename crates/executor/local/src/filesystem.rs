//! File system of this machine for async callers.
//!
//! Reads that the kernel serves from memory complete at once on the caller's thread. Everything
//! else runs on the blocking pool, or in an fs worker if a policy restricts it. Changes of one
//! session run in call order through one write queue, wherever they run. Elsewhere: the operations
//! themselves (`exec-fs`) and fs workers (`exec-sandbox`).

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
    CachedPlan, SandboxFactory,
    policy::{reads_everything, writes_everything},
    sandboxed_fs::{SandboxedFs, SandboxedRead, WorkerRequest},
};
use exec_wire::{
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, CreateSymlink, DirectoryListing, FileMetadata,
        FindPaths, FoundPaths, GetMetadata, OpenMode, ReadDirectory, ReadFile, RemovePath,
        RenamePath, SearchResult, SearchText, SetMetadata, WalkResult, WalkTree, WriteFile,
    },
    path_uri::PathUri,
    sandbox::{SandboxPolicy, WindowsSandboxLevel},
};
use futures_util::future::{FutureExt, ready};
use serde::de::DeserializeOwned;

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

    /// Runs a read operation whose result an fs worker sends.
    fn query<R: Send + 'static, T: DeserializeOwned + Send + 'static>(
        &self,
        sandbox: Option<Box<SandboxPolicy>>,
        request: R,
        direct: fn(&DirectFs, R) -> FileFuture<T>,
        worker_request: fn(R) -> WorkerRequest,
    ) -> FileFuture<T> {
        self.read(sandbox, request, direct, move |operation, _, request| {
            let SandboxedOperation { files, plan } = operation;
            files.result(plan, worker_request(request))
        })
    }

    /// Runs a read operation.
    fn read<R: Send + 'static, T: Send + 'static>(
        &self,
        sandbox: Option<Box<SandboxPolicy>>,
        request: R,
        direct: fn(&DirectFs, R) -> FileFuture<T>,
        sandboxed: impl FnOnce(SandboxedOperation, DirectFs, R) -> FileFuture<T> + Send + 'static,
    ) -> FileFuture<T> {
        match self.enforcement.place(sandbox, reads_everything) {
            Err(error) => ready(Err(error)).boxed(),
            Ok(FsPlacement::Direct) => direct(&self.direct, request),
            Ok(FsPlacement::Sandboxed(unplanned)) => {
                let direct_fs = self.direct.clone();
                async move { sandboxed(unplanned.plan().await?, direct_fs, request).await }.boxed()
            }
        }
    }

    /// Runs a change through the write queue.
    fn change<R: Send + 'static>(
        &self,
        sandbox: Option<Box<SandboxPolicy>>,
        request: R,
        direct: fn(&R, &CancelFlag) -> Result<(), FileError>,
        into_worker_request: fn(R) -> (WorkerRequest, Bytes),
    ) -> FileFuture<()> {
        match self.enforcement.place(sandbox, writes_everything) {
            Err(error) => ready(Err(error)).boxed(),
            Ok(FsPlacement::Direct) => self.direct.enqueue(move |stop| direct(&request, stop)),
            Ok(FsPlacement::Sandboxed(unplanned)) => self.direct.enqueue_async(async move {
                let SandboxedOperation { files, plan } = unplanned.plan().await?;
                let (request, data) = into_worker_request(request);
                files.call(plan, request, data).await?.into_result()
            }),
        }
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
        self.query(
            get.sandbox.take(),
            get,
            DirectFs::metadata,
            WorkerRequest::Metadata,
        )
    }

    fn set_metadata(&self, mut set: SetMetadata) -> FileFuture<()> {
        self.change(
            set.sandbox.take(),
            set,
            |set, _| exec_fs::set_metadata(set),
            |set| (WorkerRequest::SetMetadata(set), Bytes::new()),
        )
    }

    fn canonicalize(&self, mut request: CanonicalizePath) -> FileFuture<PathUri> {
        self.query(
            request.sandbox.take(),
            request,
            |direct, request| direct.read(move |_| exec_fs::canonicalize(&request)),
            WorkerRequest::Canonicalize,
        )
    }

    fn read_directory(&self, mut read: ReadDirectory) -> FileFuture<DirectoryListing> {
        self.query(
            read.sandbox.take(),
            read,
            |direct, read| direct.read(move |_| exec_fs::read_directory(&read)),
            WorkerRequest::ReadDirectory,
        )
    }

    fn walk(&self, mut walk: WalkTree) -> FileFuture<WalkResult> {
        self.query(
            walk.sandbox.take(),
            walk,
            |direct, walk| direct.read(move |stop| exec_fs::walk(&walk, stop)),
            WorkerRequest::Walk,
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

    fn create_symlink(&self, mut create: CreateSymlink) -> FileFuture<()> {
        self.change(
            create.sandbox.take(),
            create,
            |create, _| exec_fs::create_symlink(create),
            |create| (WorkerRequest::CreateSymlink(create), Bytes::new()),
        )
    }

    fn open(&self, mut open: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>> {
        let is_unrestricted = match open.mode {
            OpenMode::Read => reads_everything,
            OpenMode::Replace | OpenMode::Update => writes_everything,
        };
        let direct = self.direct.clone();
        // All modes go through the write queue, so that earlier changes are visible.
        match self.enforcement.place(open.sandbox.take(), is_unrestricted) {
            Err(error) => ready(Err(error)).boxed(),
            Ok(FsPlacement::Direct) => self.direct.enqueue(move |_| {
                let file = BlockFile::open(&open.path, open.mode)?;
                Ok(direct.open_file(file, &open.path))
            }),
            Ok(FsPlacement::Sandboxed(unplanned)) => self.direct.enqueue_async(async move {
                let SandboxedOperation { files, plan } = unplanned.plan().await?;
                let path = open.path.clone();
                let file = files.open(plan, open).await?;
                direct.adopt_file(file, path).await
            }),
        }
    }

    fn search(&self, mut search: SearchText) -> FileFuture<SearchResult> {
        self.query(
            search.sandbox.take(),
            search,
            |direct, search| direct.read(move |stop| exec_fs::search(&search, stop)),
            WorkerRequest::Search,
        )
    }

    fn find(&self, mut find: FindPaths) -> FileFuture<FoundPaths> {
        self.query(
            find.sandbox.take(),
            find,
            |direct, find| direct.read(move |stop| exec_fs::find(&find, stop)),
            WorkerRequest::Find,
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
    Sandboxed(UnplannedOperation),
}

impl PolicyEnforcement {
    /// Decides where an operation runs. `is_unrestricted` returns whether a policy permits all
    /// operations of its kind.
    fn place(
        &self,
        sandbox: Option<Box<SandboxPolicy>>,
        is_unrestricted: fn(&SandboxPolicy) -> bool,
    ) -> Result<FsPlacement, FileError> {
        let reject = |text: &str| Err(FileError::Refused(format!("sandbox: {text}")));
        let Some(policy) = sandbox else {
            return Ok(FsPlacement::Direct);
        };
        if policy.windows_sandbox_level == WindowsSandboxLevel::Mxc {
            return reject("windowsSandboxLevel `mxc` is not available on this host");
        }
        if is_unrestricted(&policy) {
            return Ok(FsPlacement::Direct);
        }
        match self {
            Self::Unavailable => reject("policies cannot be enforced by this file system"),
            Self::Enforced { sandboxes, files } => Ok(FsPlacement::Sandboxed(UnplannedOperation {
                sandboxes: sandboxes.clone(),
                files: files.clone(),
                policy,
            })),
        }
    }
}

/// An operation in an fs worker. It is planned when it starts, because the plan depends on the
/// files that exist then.
struct UnplannedOperation {
    sandboxes: SandboxFactory,
    files: SandboxedFs,
    policy: Box<SandboxPolicy>,
}

impl UnplannedOperation {
    /// Resolves the policy, for this operation only.
    async fn plan(self) -> Result<SandboxedOperation, FileError> {
        let plan = self.sandboxes.plan_for_files(&self.policy).await?;
        let files = self.files;
        Ok(SandboxedOperation { files, plan })
    }
}

/// An operation in an fs worker under one plan.
#[derive(Clone, Debug)]
struct SandboxedOperation {
    files: SandboxedFs,
    plan: CachedPlan,
}

impl SandboxedOperation {
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
}
