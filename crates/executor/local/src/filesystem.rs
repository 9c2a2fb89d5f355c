//! Files of this machine, for callers that do not block.
//!
//! What the kernel holds in memory is answered at once, on the caller's thread; everything else runs
//! on threads that may block, and what a policy restricts in processes that it encloses. Changes run
//! in one line, in the order in which they were called.
//! Not here: the operations themselves (`exec-fs`), the enclosed processes (`exec-sandbox`).

mod content_memory;
mod direct_fs;
mod sandboxed_fs;
#[cfg(test)]
mod tests;
mod write_queue;

use std::sync::Arc;

use bytes::Bytes;
use exec_env::filesystem::{
    ExecutorFileSystem, FileError, FileFuture, MissingPaths, MissingWatch, Open, OpenFile,
    WatchPath, Watcher,
};
use exec_fs::{BlockFile, Stop};
use exec_sandbox::{
    Need,
    files::{Files, Request},
};
use exec_wire::{
    fs::{
        Canonicalize, Copy, CreateDirectory, DirectoryEntry, FileMetadata, Find, FoundPaths,
        GetMetadata, OpenMode, ReadDirectory, ReadFile, Remove, Rename, Search, SearchResult, Walk,
        WalkResult, WriteFile,
    },
    path_uri::PathUri,
    sandbox::Sandbox,
};
use futures_util::future::FutureExt;

use self::{
    content_memory::Memory,
    direct_fs::Here,
    sandboxed_fs::{Enclosed, Place, Policies},
};
use crate::backend::LocalBackend;

/// Files of this machine. A clone has its own line of changes: each session has one.
#[derive(Debug)]
pub struct LocalFileSystem {
    here: Here,
    policies: Policies,
}

impl Default for LocalFileSystem {
    fn default() -> Self {
        Self {
            here: Here::new(Memory::unbounded()),
            policies: Policies::default(),
        }
    }
}

impl Clone for LocalFileSystem {
    fn clone(&self) -> Self {
        Self {
            here: self.here.for_another(),
            policies: self.policies.clone(),
        }
    }
}

impl LocalFileSystem {
    /// Makes one for a server, which sends on what it reads: as long as content is kept, nothing
    /// more is read beyond [`exec_wire::limits::FILE_WINDOW_BYTES`] of a session.
    pub fn for_a_server() -> Self {
        Self {
            here: Here::new(Memory::bounded(Arc::default())),
            policies: Policies::default(),
        }
    }

    /// Keeps policies as `backend` does for commands. Without it, a policy that restricts anything is
    /// refused.
    pub fn with_policies_of(self, backend: &LocalBackend) -> Self {
        let sandboxes = backend.sandboxes().clone();
        let files = Files::new(backend.spawner.clone(), sandboxes.clone());
        Self {
            policies: Policies::Kept { sandboxes, files },
            ..self
        }
    }

    /// Does something that only reads.
    fn read<R: Send + 'static, T: Send + 'static>(
        &self,
        sandbox: Option<Box<Sandbox>>,
        request: R,
        here: fn(&Here, R) -> FileFuture<T>,
        enclosed: fn(Enclosed, Here, R) -> FileFuture<T>,
    ) -> FileFuture<T> {
        let Some(sandbox) = sandbox else {
            return here(&self.here, request);
        };
        let (own, policies) = (self.here.clone(), self.policies.clone());
        async move {
            match policies.place(&sandbox, Need::Read).await? {
                Place::Here => here(&own, request).await,
                Place::Enclosed(place) => enclosed(place, own, request).await,
            }
        }
        .boxed()
    }

    /// Does something that changes files, when its turn has come.
    fn change<R: Send + 'static>(
        &self,
        sandbox: Option<Box<Sandbox>>,
        request: R,
        here: fn(&R, &Stop) -> Result<(), FileError>,
        ask: fn(R) -> (Request, Bytes),
    ) -> FileFuture<()> {
        let policies = self.policies.clone();
        self.here.in_line(move |stop| {
            let Some(sandbox) = sandbox else {
                return here(&request, stop);
            };
            match policies.place_in_line(&sandbox, Need::Change)? {
                Place::Here => here(&request, stop),
                Place::Enclosed(place) => {
                    let (request, data) = ask(request);
                    place.change_in_line(request, data)
                }
            }
        })
    }
}

impl ExecutorFileSystem for LocalFileSystem {
    fn read_file(&self, mut read: ReadFile) -> FileFuture<Bytes> {
        let sandbox = read.sandbox.take();
        self.read(sandbox, read, Here::read_file, Enclosed::read_file)
    }

    fn write_file(&self, mut write: WriteFile, data: Bytes) -> FileFuture<()> {
        self.change(
            write.sandbox.take(),
            (write, data),
            |(write, data), _| exec_fs::write_file(write, data),
            |(write, data)| (Request::WriteFile(write), data),
        )
    }

    fn create_directory(&self, mut create: CreateDirectory) -> FileFuture<()> {
        self.change(
            create.sandbox.take(),
            create,
            |create, _| exec_fs::create_directory(create),
            |create| (Request::CreateDirectory(create), Bytes::new()),
        )
    }

    fn metadata(&self, mut get: GetMetadata) -> FileFuture<FileMetadata> {
        self.read(get.sandbox.take(), get, Here::metadata, |place, _, get| {
            place.files.result(place.plan, Request::Metadata(get))
        })
    }

    fn canonicalize(&self, mut request: Canonicalize) -> FileFuture<PathUri> {
        self.read(
            request.sandbox.take(),
            request,
            |here, request| here.read(move |_| exec_fs::canonicalize(&request)),
            |place, _, request| {
                place
                    .files
                    .result(place.plan, Request::Canonicalize(request))
            },
        )
    }

    fn read_directory(&self, mut read: ReadDirectory) -> FileFuture<Vec<DirectoryEntry>> {
        self.read(
            read.sandbox.take(),
            read,
            |here, read| here.read(move |_| exec_fs::read_directory(&read)),
            |place, _, read| place.files.result(place.plan, Request::ReadDirectory(read)),
        )
    }

    fn walk(&self, mut walk: Walk) -> FileFuture<WalkResult> {
        self.read(
            walk.sandbox.take(),
            walk,
            |here, walk| here.read(move |stop| exec_fs::walk(&walk, stop)),
            |place, _, walk| place.files.result(place.plan, Request::Walk(walk)),
        )
    }

    fn remove(&self, mut remove: Remove) -> FileFuture<()> {
        self.change(remove.sandbox.take(), remove, exec_fs::remove, |remove| {
            (Request::Remove(remove), Bytes::new())
        })
    }

    fn copy(&self, mut copy: Copy) -> FileFuture<()> {
        self.change(copy.sandbox.take(), copy, exec_fs::copy, |copy| {
            (Request::Copy(copy), Bytes::new())
        })
    }

    fn rename(&self, mut rename: Rename) -> FileFuture<()> {
        self.change(
            rename.sandbox.take(),
            rename,
            |rename, _| exec_fs::rename(rename),
            |rename| (Request::Rename(rename), Bytes::new()),
        )
    }

    fn open(&self, mut open: Open) -> FileFuture<Arc<dyn OpenFile>> {
        let (here, policies) = (self.here.clone(), self.policies.clone());
        let need = match open.mode {
            OpenMode::Read => Need::Read,
            OpenMode::Replace | OpenMode::Update => Need::Change,
        };
        // In line in either mode: what was called before is what is opened.
        self.here.in_line(move |_| {
            if let Some(sandbox) = open.sandbox.take()
                && let Place::Enclosed(place) = policies.place_in_line(&sandbox, need)?
            {
                return place.open_in_line(&here, open);
            }
            let file = BlockFile::open(&open.path, open.mode)?;
            Ok(here.opened(file, &open.path))
        })
    }

    fn search(&self, mut search: Search) -> FileFuture<SearchResult> {
        self.read(
            search.sandbox.take(),
            search,
            |here, search| here.read(move |stop| exec_fs::search(&search, stop)),
            |place, _, search| place.files.result(place.plan, Request::Search(search)),
        )
    }

    fn find(&self, mut find: Find) -> FileFuture<FoundPaths> {
        self.read(
            find.sandbox.take(),
            find,
            |here, find| here.read(move |stop| exec_fs::find(&find, stop)),
            |place, _, find| place.files.result(place.plan, Request::Find(find)),
        )
    }

    fn watch(&self, mut watch: WatchPath) -> FileFuture<Watcher> {
        self.read(
            watch.sandbox.take(),
            watch,
            |here, watch| here.read(move |_| exec_fs::watch(&watch)),
            |place, _, watch| place.files.watch(place.plan, watch),
        )
    }

    fn watch_missing(&self, mut paths: MissingPaths) -> FileFuture<Option<MissingWatch>> {
        self.read(
            paths.sandbox.take(),
            paths,
            |here, paths| here.read(move |_| exec_fs::watch_missing(&paths)),
            |place, _, paths| place.files.watch_missing(place.plan, paths),
        )
    }
}
