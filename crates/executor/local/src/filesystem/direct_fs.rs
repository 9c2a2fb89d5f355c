//! Unsandboxed operations: served from kernel memory, on the blocking pool or through the write
//! queue.

use std::{os::fd::OwnedFd, sync::Arc};

use bytes::Bytes;
use exec_env::filesystem::{FileBlock, FileError, FileFuture, OpenFile};
use exec_fs::{BlockFile, CachedReader, CancelFlag, WholeFile};
use exec_wire::{
    fs::{FileMetadata, GetMetadata, ReadFile},
    path_uri::PathUri,
};
use futures_util::future::{FutureExt, ready};

use super::{
    content_memory::{BlockBuffer, ContentMemory, MemoryPermit},
    write_queue::{BlockingPool, WriteQueue},
};

/// Files up to this size are read together with opening them, without a memory permit.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// Unsandboxed file access of one session. Clones share all state.
#[derive(Clone, Debug)]
pub(super) struct DirectFs {
    queue: WriteQueue,
    memory: ContentMemory,
    cached: Arc<CachedReader>,
    pool: BlockingPool,
}

impl DirectFs {
    pub(super) fn new(memory: ContentMemory) -> Self {
        Self::with(memory, Arc::default())
    }

    fn with(memory: ContentMemory, cached: Arc<CachedReader>) -> Self {
        Self {
            queue: WriteQueue::default(),
            memory,
            cached,
            pool: BlockingPool::default(),
        }
    }

    /// Creates one for another session.
    pub(super) fn for_new_session(&self) -> Self {
        Self::with(self.memory.for_new_session(), Arc::clone(&self.cached))
    }

    /// Runs a read on the blocking pool.
    pub(super) fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelFlag) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        self.pool.run(work)
    }

    /// Runs blocking work through the write queue.
    pub(super) fn enqueue<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelFlag) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        self.queue.push(work)
    }

    /// Runs work that waits for another process through the write queue.
    pub(super) fn enqueue_async<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, FileError>> + Send + 'static,
    ) -> FileFuture<T> {
        self.queue.push_async(work)
    }

    pub(super) fn metadata(&self, get: GetMetadata) -> FileFuture<FileMetadata> {
        if let Some(metadata) = self.cached.metadata(&get) {
            return ready(metadata).boxed();
        }
        let cached = Arc::clone(&self.cached);
        self.pool.run(move |_| {
            cached.learn_device(&get.path);
            exec_fs::metadata(&get)
        })
    }

    pub(super) fn read_file(&self, read: ReadFile) -> FileFuture<Bytes> {
        if let Some(content) = self.cached.read_file(&read) {
            return ready(content.map(Bytes::from)).boxed();
        }
        let (direct, cached) = (self.clone(), Arc::clone(&self.cached));
        async move {
            let opened = direct.pool.run(move |_| {
                cached.learn_device(&read.path);
                let file = WholeFile::open(&read)?;
                if file.size() <= SMALL_FILE_BYTES {
                    return file.read().map(WholeRead::Small);
                }
                Ok(WholeRead::Large(file))
            });
            match opened.await? {
                WholeRead::Small(content) => Ok(content.into()),
                WholeRead::Large(file) => direct.read_large(file).await,
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
        let file = self.pool.run(received).await?;
        self.read_large(file).await
    }

    async fn read_large(&self, file: WholeFile) -> Result<Bytes, FileError> {
        let permit = self.memory.acquire(file.size()).await?;
        // The permit moves into the task, because dropping the future does not stop the read.
        let read = move |_: &_| Ok(permit.attach(file.read()?));
        self.pool.run(read).await
    }

    /// Wraps a file that another process opened at `path`.
    pub(super) fn adopt_file(&self, file: OwnedFd, path: PathUri) -> FileFuture<Arc<dyn OpenFile>> {
        let direct = self.clone();
        self.pool
            .run(move |_| Ok(direct.open_file(BlockFile::from_file(file, &path)?, &path)))
    }

    /// Wraps a file that was opened at `path`. May block on the disk.
    pub(super) fn open_file(&self, file: BlockFile, path: &PathUri) -> Arc<dyn OpenFile> {
        self.cached.learn_device(path);
        Arc::new(LocalOpenFile {
            file: Arc::new(file),
            direct: self.clone(),
        })
    }
}

/// A whole file: content of a small one, or a large one still to be read.
enum WholeRead {
    Small(Vec<u8>),
    Large(WholeFile),
}

#[derive(Debug)]
struct LocalOpenFile {
    file: Arc<BlockFile>,
    direct: DirectFs,
}

impl OpenFile for LocalOpenFile {
    fn read_block(&self, offset: u64, length: usize) -> FileFuture<FileBlock> {
        if let Err(error) = BlockFile::check_read(offset, length as u64) {
            return ready(Err(error)).boxed();
        }
        let (file, direct) = (Arc::clone(&self.file), self.direct.clone());
        async move {
            let DirectFs {
                memory,
                cached,
                pool,
                ..
            } = direct;
            let permit = memory.acquire(ContentMemory::block_cost(length)).await?;
            let mut block = memory.block(length);
            if let Some(read) = cached.read_block(&file, offset, block.space()) {
                return Ok(file_block(block, read, length, permit));
            }
            // The permit moves into the task, because dropping the future does not stop the read.
            let read = pool.run(move |_| {
                let read = file.read_block(offset, block.space())?;
                Ok(file_block(block, read, length, permit))
            });
            read.await
        }
        .boxed()
    }

    fn write_block(&self, offset: u64, data: Bytes) -> FileFuture<()> {
        let file = Arc::clone(&self.file);
        self.direct
            .enqueue(move |_| file.write_block(offset, &data))
    }
}

fn file_block(
    mut block: BlockBuffer,
    read: usize,
    requested: usize,
    permit: MemoryPermit,
) -> FileBlock {
    block.truncate(read);
    FileBlock {
        data: permit.attach(block),
        eof: read < requested,
    }
}
