//! The operations, each on the thread that suits it.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::filesystem::{
    ExecutorFileSystem, FileError, FileFuture, MissingPaths, MissingWatch, Open, OpenFile,
    WatchPath, Watcher,
};
use exec_fs::{BlockFile, Cached, WholeFile};
use exec_wire::{
    fs::{
        Canonicalize, Copy, CreateDirectory, DirectoryEntry, FileMetadata, Find, FoundPaths,
        GetMetadata, OpenMode, ReadDirectory, ReadFile, Remove, Rename, Search, SearchResult, Walk,
        WalkResult, WriteFile,
    },
    path_uri::PathUri,
    sandbox::{Sandbox, WindowsSandboxLevel},
};
use futures_util::future::{FutureExt, ready};

use super::{line::Line, memory::Memory, offload::Threads, open::LocalOpenFile};

/// Content that is read in one go with the opening, whoever else reads.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// Files of this machine. A clone has its own line of changes: each session has one.
#[derive(Debug)]
pub struct LocalFileSystem {
    line: Line,
    memory: Memory,
    cached: Arc<Cached>,
    threads: Threads,
}

impl Default for LocalFileSystem {
    fn default() -> Self {
        Self::with(Memory::unbounded(), Arc::default())
    }
}

impl Clone for LocalFileSystem {
    fn clone(&self) -> Self {
        Self::with(self.memory.for_another(), Arc::clone(&self.cached))
    }
}

impl LocalFileSystem {
    /// Makes one for a server, which sends on what it reads: as long as content is kept, nothing
    /// more is read beyond [`exec_wire::limits::FILE_WINDOW_BYTES`] of a session.
    pub fn for_a_server() -> Self {
        Self::with(Memory::bounded(Arc::default()), Arc::default())
    }

    fn with(memory: Memory, cached: Arc<Cached>) -> Self {
        let line = Line::default();
        Self {
            line,
            memory,
            cached,
            threads: Threads::default(),
        }
    }

    /// Runs something that only reads.
    fn read<T: Send + 'static>(
        &self,
        sandbox: Option<&Sandbox>,
        work: impl FnOnce(&exec_fs::Stop) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        match may_read(sandbox) {
            Ok(()) => self.threads.run(work),
            Err(error) => ready(Err(error)).boxed(),
        }
    }

    /// Runs something that changes files.
    fn change<T: Send + 'static>(
        &self,
        sandbox: Option<&Sandbox>,
        work: impl FnOnce(&exec_fs::Stop) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        match may_write(sandbox) {
            Ok(()) => self.line.push(work),
            Err(error) => ready(Err(error)).boxed(),
        }
    }
}

impl ExecutorFileSystem for LocalFileSystem {
    fn read_file(&self, read: ReadFile) -> FileFuture<Bytes> {
        if let Err(error) = may_read(read.sandbox.as_deref()) {
            return ready(Err(error)).boxed();
        }
        if let Some(content) = self.cached.file(&read) {
            return ready(content.map(Bytes::from)).boxed();
        }
        let (memory, cached) = (self.memory.clone(), Arc::clone(&self.cached));
        let threads = self.threads.clone();
        async move {
            let opened = threads.run(move |_| {
                cached.learn(&read.path);
                let file = WholeFile::open(&read)?;
                if file.size() <= SMALL_FILE_BYTES {
                    return file.read().map(Opened::Small);
                }
                Ok(Opened::Large(file))
            });
            match opened.await? {
                Opened::Small(content) => Ok(content.into()),
                Opened::Large(file) => {
                    let room = memory.room(file.size()).await?;
                    // The room goes along: whoever gives up does not stop what is read.
                    threads.run(move |_| Ok(room.hold(file.read()?))).await
                }
            }
        }
        .boxed()
    }

    fn write_file(&self, write: WriteFile, data: Bytes) -> FileFuture<()> {
        let sandbox = write.sandbox.clone();
        self.change(sandbox.as_deref(), move |_| {
            exec_fs::write_file(&write, &data)
        })
    }

    fn create_directory(&self, create: CreateDirectory) -> FileFuture<()> {
        let sandbox = create.sandbox.clone();
        self.change(sandbox.as_deref(), move |_| {
            exec_fs::create_directory(&create)
        })
    }

    fn metadata(&self, get: GetMetadata) -> FileFuture<FileMetadata> {
        if let Err(error) = may_read(get.sandbox.as_deref()) {
            return ready(Err(error)).boxed();
        }
        match self.cached.metadata(&get) {
            Some(found) => ready(found).boxed(),
            None => {
                let cached = Arc::clone(&self.cached);
                self.threads.run(move |_| {
                    cached.learn(&get.path);
                    exec_fs::metadata(&get)
                })
            }
        }
    }

    fn canonicalize(&self, request: Canonicalize) -> FileFuture<PathUri> {
        let sandbox = request.sandbox.clone();
        self.read(sandbox.as_deref(), move |_| exec_fs::canonicalize(&request))
    }

    fn read_directory(&self, read: ReadDirectory) -> FileFuture<Vec<DirectoryEntry>> {
        let sandbox = read.sandbox.clone();
        self.read(sandbox.as_deref(), move |_| exec_fs::read_directory(&read))
    }

    fn walk(&self, walk: Walk) -> FileFuture<WalkResult> {
        let sandbox = walk.sandbox.clone();
        self.read(sandbox.as_deref(), move |stop| exec_fs::walk(&walk, stop))
    }

    fn remove(&self, remove: Remove) -> FileFuture<()> {
        let sandbox = remove.sandbox.clone();
        self.change(sandbox.as_deref(), move |stop| {
            exec_fs::remove(&remove, stop)
        })
    }

    fn copy(&self, copy: Copy) -> FileFuture<()> {
        let sandbox = copy.sandbox.clone();
        self.change(sandbox.as_deref(), move |stop| exec_fs::copy(&copy, stop))
    }

    fn rename(&self, rename: Rename) -> FileFuture<()> {
        let sandbox = rename.sandbox.clone();
        self.change(sandbox.as_deref(), move |_| exec_fs::rename(&rename))
    }

    fn open(&self, open: Open) -> FileFuture<Arc<dyn OpenFile>> {
        let (line, memory) = (self.line.clone(), self.memory.clone());
        let (cached, threads) = (Arc::clone(&self.cached), self.threads.clone());
        let Open {
            path,
            mode,
            sandbox,
        } = open;
        let opened = move |_: &_| {
            let file = Arc::new(BlockFile::open(&path, mode)?);
            cached.learn(&path);
            let opened = LocalOpenFile {
                file,
                line,
                memory,
                cached,
                threads,
            };
            Ok(Arc::new(opened) as Arc<dyn OpenFile>)
        };
        let may_open = match mode {
            OpenMode::Read => may_read(sandbox.as_deref()),
            OpenMode::Replace => may_write(sandbox.as_deref()),
        };
        match may_open {
            // In line in either mode: what was called before is what is opened.
            Ok(()) => self.line.push(opened),
            Err(error) => ready(Err(error)).boxed(),
        }
    }

    fn search(&self, search: Search) -> FileFuture<SearchResult> {
        let sandbox = search.sandbox.clone();
        self.read(sandbox.as_deref(), move |stop| {
            exec_fs::search(&search, stop)
        })
    }

    fn find(&self, find: Find) -> FileFuture<FoundPaths> {
        let sandbox = find.sandbox.clone();
        self.read(sandbox.as_deref(), move |stop| exec_fs::find(&find, stop))
    }

    fn watch(&self, watch: WatchPath) -> FileFuture<Watcher> {
        let sandbox = watch.sandbox.clone();
        self.read(sandbox.as_deref(), move |_| exec_fs::watch(&watch))
    }

    fn watch_missing(&self, missing: MissingPaths) -> FileFuture<Option<MissingWatch>> {
        let sandbox = missing.sandbox.clone();
        self.read(sandbox.as_deref(), move |_| {
            exec_fs::watch_missing(&missing)
        })
    }
}

/// A file that is to be read whole.
enum Opened {
    Small(Vec<u8>),
    Large(WholeFile),
}

/// Lets reads pass that no policy could refuse.
fn may_read(sandbox: Option<&Sandbox>) -> Result<(), FileError> {
    enforceable(sandbox, Sandbox::has_full_read)
}

/// Lets changes pass that no policy could refuse.
fn may_write(sandbox: Option<&Sandbox>) -> Result<(), FileError> {
    enforceable(sandbox, Sandbox::has_full_write)
}

fn enforceable(
    sandbox: Option<&Sandbox>,
    allows_everything: impl FnOnce(&Sandbox) -> bool,
) -> Result<(), FileError> {
    let Some(sandbox) = sandbox else {
        return Ok(());
    };
    let refuse = |text: &str| Err(FileError::Refused(format!("sandbox: {text}")));
    if sandbox.windows_sandbox_level == WindowsSandboxLevel::Mxc {
        return refuse("windowsSandboxLevel `mxc` is not available on this host");
    }
    if !allows_everything(sandbox) {
        return refuse("this server enforces no sandbox policy yet");
    }
    Ok(())
}
