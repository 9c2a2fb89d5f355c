//! The local file system behind a connection that a test cuts or delays.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use exec_env::{
    environment::DisconnectReason,
    filesystem::{
        ExecutorFileSystem, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch,
        OpenFile, OpenFileRequest, PathWatcher, WatchPathRequest,
    },
};
use exec_wire::{
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, CreateSymlink, DirectoryListing, FileMetadata,
        FindPaths, FoundPaths, GetMetadata, ReadDirectory, ReadFile, RemovePath, RenamePath,
        SearchResult, SearchText, SetMetadata, WalkResult, WalkTree, WriteFile,
    },
    path_uri::PathUri,
};
use futures_util::future::{FutureExt, ready};
use tokio::sync::Semaphore;

/// The fault to inject. Changes of all kinds are counted together, from 1.
#[derive(Clone, Copy, Debug)]
pub(super) enum FileFault {
    /// This change is made, but its response is lost.
    LostResponse(usize),
    /// This change is made, but its response is lost; later changes are not made.
    CutAfter(usize),
    /// This change is made when the gate opens, even if the call was dropped.
    Blocked(usize),
}

/// A file system with a fault.
#[derive(Debug)]
pub(super) struct FaultyFiles {
    files: Arc<dyn ExecutorFileSystem>,
    fault: FileFault,
    changes: AtomicUsize,
    reads: AtomicUsize,
    blocked: Arc<Semaphore>,
    gate: Arc<Semaphore>,
}

impl FaultyFiles {
    pub(super) fn new(files: Arc<dyn ExecutorFileSystem>, fault: FileFault) -> Self {
        Self {
            files,
            fault,
            changes: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            blocked: Arc::new(Semaphore::new(0)),
            gate: Arc::new(Semaphore::new(0)),
        }
    }

    /// Waits until a change is held.
    pub(super) async fn wait_until_held(&self) {
        self.blocked.acquire().await.unwrap().forget();
    }

    /// Releases the held change.
    pub(super) fn open_gate(&self) {
        self.gate.add_permits(1);
    }

    /// Returns the number of read operations.
    pub(super) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    fn read_through(&self) -> &dyn ExecutorFileSystem {
        self.reads.fetch_add(1, Ordering::Relaxed);
        &*self.files
    }

    fn change(
        &self,
        begin: impl FnOnce(&dyn ExecutorFileSystem) -> FileFuture<()> + Send + 'static,
    ) -> FileFuture<()> {
        let number = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        match self.fault {
            FileFault::LostResponse(at) | FileFault::CutAfter(at) if number == at => {
                let change = begin(&*self.files);
                change
                    .map(|done| done.and_then(|()| Err(disconnected())))
                    .boxed()
            }
            FileFault::CutAfter(at) if number > at => ready(Err(disconnected())).boxed(),
            FileFault::Blocked(at) if number == at => {
                let (files, blocked, gate) =
                    (self.files.clone(), self.blocked.clone(), self.gate.clone());
                let change = tokio::spawn(async move {
                    blocked.add_permits(1);
                    gate.acquire().await.unwrap().forget();
                    begin(&*files).await
                });
                change.map(Result::unwrap).boxed()
            }
            FileFault::LostResponse(_) | FileFault::CutAfter(_) | FileFault::Blocked(_) => {
                begin(&*self.files)
            }
        }
    }
}

fn disconnected() -> FileError {
    DisconnectReason::Transport("cut on purpose".to_owned()).into()
}

impl ExecutorFileSystem for FaultyFiles {
    fn read_file(&self, read: ReadFile) -> FileFuture<Bytes> {
        self.read_through().read_file(read)
    }
    fn write_file(&self, write: WriteFile, data: Bytes) -> FileFuture<()> {
        self.change(|files| files.write_file(write, data))
    }
    fn create_directory(&self, create: CreateDirectory) -> FileFuture<()> {
        self.change(|files| files.create_directory(create))
    }
    fn metadata(&self, get: GetMetadata) -> FileFuture<FileMetadata> {
        self.read_through().metadata(get)
    }
    fn set_metadata(&self, set: SetMetadata) -> FileFuture<()> {
        self.change(|files| files.set_metadata(set))
    }
    fn canonicalize(&self, canonicalize: CanonicalizePath) -> FileFuture<PathUri> {
        self.read_through().canonicalize(canonicalize)
    }
    fn read_directory(&self, read: ReadDirectory) -> FileFuture<DirectoryListing> {
        self.read_through().read_directory(read)
    }
    fn walk(&self, walk: WalkTree) -> FileFuture<WalkResult> {
        self.read_through().walk(walk)
    }
    fn remove(&self, remove: RemovePath) -> FileFuture<()> {
        self.change(|files| files.remove(remove))
    }
    fn copy(&self, copy: CopyPath) -> FileFuture<()> {
        self.change(|files| files.copy(copy))
    }
    fn rename(&self, rename: RenamePath) -> FileFuture<()> {
        self.change(|files| files.rename(rename))
    }
    fn create_symlink(&self, create: CreateSymlink) -> FileFuture<()> {
        self.change(|files| files.create_symlink(create))
    }
    fn open(&self, open: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>> {
        self.read_through().open(open)
    }
    fn search(&self, search: SearchText) -> FileFuture<SearchResult> {
        self.read_through().search(search)
    }
    fn find(&self, find: FindPaths) -> FileFuture<FoundPaths> {
        self.read_through().find(find)
    }
    fn watch(&self, watch: WatchPathRequest) -> FileFuture<PathWatcher> {
        self.read_through().watch(watch)
    }
    fn watch_missing(&self, missing: MissingPathsRequest) -> FileFuture<Option<MissingPathsWatch>> {
        self.read_through().watch_missing(missing)
    }
}
