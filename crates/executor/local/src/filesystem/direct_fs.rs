//! Operations that nothing restricts, each on the thread that suits it.

use std::{os::fd::OwnedFd, sync::Arc};

use bytes::Bytes;
use exec_env::filesystem::{FileBlock, FileError, FileFuture, OpenFile};
use exec_fs::{BlockFile, Cached, Stop, WholeFile};
use exec_wire::{
    fs::{FileMetadata, GetMetadata, ReadFile},
    path_uri::PathUri,
};
use futures_util::future::{FutureExt, ready};

use super::{
    content_memory::{Block, Memory, Room},
    write_queue::{Line, Threads},
};

/// Content that is read in one go with the opening, whoever else reads.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// The files of this machine, as one session uses them. Clones share everything.
#[derive(Clone, Debug)]
pub(super) struct Here {
    line: Line,
    memory: Memory,
    cached: Arc<Cached>,
    threads: Threads,
}

impl Here {
    pub(super) fn new(memory: Memory) -> Self {
        Self::with(memory, Arc::default())
    }

    fn with(memory: Memory, cached: Arc<Cached>) -> Self {
        Self {
            line: Line::default(),
            memory,
            cached,
            threads: Threads::default(),
        }
    }

    /// Makes one for another session.
    pub(super) fn for_another(&self) -> Self {
        Self::with(self.memory.for_another(), Arc::clone(&self.cached))
    }

    /// Runs something that only reads.
    pub(super) fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Stop) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        self.threads.run(work)
    }

    /// Runs something in line.
    pub(super) fn in_line<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Stop) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        self.line.push(work)
    }

    pub(super) fn metadata(&self, get: GetMetadata) -> FileFuture<FileMetadata> {
        if let Some(found) = self.cached.metadata(&get) {
            return ready(found).boxed();
        }
        let cached = Arc::clone(&self.cached);
        self.threads.run(move |_| {
            cached.learn(&get.path);
            exec_fs::metadata(&get)
        })
    }

    pub(super) fn read_file(&self, read: ReadFile) -> FileFuture<Bytes> {
        if let Some(content) = self.cached.file(&read) {
            return ready(content.map(Bytes::from)).boxed();
        }
        let (here, cached) = (self.clone(), Arc::clone(&self.cached));
        async move {
            let opened = here.threads.run(move |_| {
                cached.learn(&read.path);
                let file = WholeFile::open(&read)?;
                if file.size() <= SMALL_FILE_BYTES {
                    return file.read().map(Opened::Small);
                }
                Ok(Opened::Large(file))
            });
            match opened.await? {
                Opened::Small(content) => Ok(content.into()),
                Opened::Large(file) => here.read_large(file).await,
            }
        }
        .boxed()
    }

    /// Reads a large file that another process has opened.
    pub(super) async fn read_received(
        &self,
        file: OwnedFd,
        read: ReadFile,
    ) -> Result<Bytes, FileError> {
        let received = move |_: &_| WholeFile::from_file(file, &read);
        let file = self.threads.run(received).await?;
        self.read_large(file).await
    }

    async fn read_large(&self, file: WholeFile) -> Result<Bytes, FileError> {
        let room = self.memory.room(file.size()).await?;
        // The room goes along: whoever gives up does not stop what is read.
        let read = move |_: &_| Ok(room.hold(file.read()?));
        self.threads.run(read).await
    }

    /// Takes a file that was opened at `path`. May wait for the disk.
    pub(super) fn opened(&self, file: BlockFile, path: &PathUri) -> Arc<dyn OpenFile> {
        self.cached.learn(path);
        Arc::new(LocalOpenFile {
            file: Arc::new(file),
            line: self.line.clone(),
            memory: self.memory.clone(),
            cached: Arc::clone(&self.cached),
            threads: self.threads.clone(),
        })
    }
}

/// A file that is to be read whole.
enum Opened {
    Small(Vec<u8>),
    Large(WholeFile),
}

#[derive(Debug)]
pub(super) struct LocalOpenFile {
    pub(super) file: Arc<BlockFile>,
    pub(super) line: Line,
    pub(super) memory: Memory,
    pub(super) cached: Arc<Cached>,
    pub(super) threads: Threads,
}

impl OpenFile for LocalOpenFile {
    fn read_block(&self, offset: u64, length: usize) -> FileFuture<FileBlock> {
        if let Err(error) = BlockFile::check_read(offset, length as u64) {
            return ready(Err(error)).boxed();
        }
        let (file, memory) = (Arc::clone(&self.file), self.memory.clone());
        let cached = Arc::clone(&self.cached);
        let threads = self.threads.clone();
        async move {
            let room = memory.room(Memory::block_cost(length)).await?;
            let mut block = memory.block(length);
            if let Some(read) = cached.block(&file, offset, block.space()) {
                return Ok(read_into(block, read, length, room));
            }
            // The room goes along: whoever gives up does not stop what is read.
            let read = threads.run(move |_| {
                let read = file.read_block(offset, block.space())?;
                Ok(read_into(block, read, length, room))
            });
            read.await
        }
        .boxed()
    }

    fn write_block(&self, offset: u64, data: Bytes) -> FileFuture<()> {
        let file = Arc::clone(&self.file);
        self.line.push(move |_| file.write_block(offset, &data))
    }
}

fn read_into(mut block: Block, read: usize, wanted: usize, room: Room) -> FileBlock {
    block.truncate(read);
    FileBlock {
        data: room.hold(block),
        eof: read < wanted,
    }
}
