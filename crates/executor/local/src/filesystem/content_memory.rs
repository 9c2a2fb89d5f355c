//! Memory limits for file content on its way to a client. Permits are released when the content was
//! sent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use exec_env::filesystem::FileError;
use exec_wire::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Blocks up to this size are not pooled.
const SMALL_BLOCK_BYTES: usize = 128 << 10;
/// Maximum number of pooled blocks.
const MAX_POOLED_BLOCKS: usize = 4;

/// Memory shared by all file systems of a server.
#[derive(Debug)]
pub(super) struct ServerMemory {
    large: Arc<Semaphore>,
    pooled: Mutex<Vec<Vec<u8>>>,
}

impl Default for ServerMemory {
    fn default() -> Self {
        Self {
            large: Arc::new(Semaphore::new(limits::LARGE_FILES_BYTES)),
            pooled: Mutex::default(),
        }
    }
}

/// Memory of one session.
#[derive(Clone, Debug)]
pub(super) struct ContentMemory {
    shared: Arc<ServerMemory>,
    /// Flow-control window. Absent if the caller keeps the content.
    window: Option<Arc<Semaphore>>,
}

impl ContentMemory {
    /// Creates memory without a limit, for callers that keep content.
    pub(super) fn unbounded() -> Self {
        Self {
            shared: Arc::default(),
            window: None,
        }
    }

    /// Creates memory with a window, for content that is sent and dropped.
    pub(super) fn bounded(shared: Arc<ServerMemory>) -> Self {
        Self {
            shared,
            window: Some(Arc::new(Semaphore::new(limits::FILE_WINDOW_BYTES))),
        }
    }

    /// Creates the memory of another session with the same limits.
    pub(super) fn for_new_session(&self) -> Self {
        match self.window {
            Some(_) => Self::bounded(Arc::clone(&self.shared)),
            None => self.clone(),
        }
    }

    /// Waits until the window has `bytes` free. A large file takes the whole window and its share
    /// of the server's limit for large files.
    pub(super) async fn acquire(&self, bytes: u64) -> Result<MemoryPermit, FileError> {
        let Some(window) = &self.window else {
            return Ok(MemoryPermit::default());
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let permit_count = permits(bytes.min(limits::FILE_WINDOW_BYTES));
        let window = Arc::clone(window).acquire_many_owned(permit_count).await;
        let large = if bytes > limits::FILE_WINDOW_BYTES {
            let permit_count = permits(bytes.min(limits::LARGE_FILES_BYTES));
            let large = Arc::clone(&self.shared.large).try_acquire_many_owned(permit_count);
            Some(large.map_err(|_| {
                let text = "too many large files are being read: read this one in blocks";
                FileError::Host(text.to_owned())
            })?)
        } else {
            None
        };
        // The semaphore is never closed.
        Ok(MemoryPermit {
            _permits: [window.ok(), large],
        })
    }

    /// Returns the memory cost of a block. Pooled blocks have a fixed size above their length.
    pub(super) fn block_cost(length: usize) -> u64 {
        let bytes = if length > SMALL_BLOCK_BYTES {
            limits::MAX_BLOCK_BYTES
        } else {
            length
        };
        bytes as u64
    }

    /// Returns a block to read into.
    pub(super) fn block(&self, length: usize) -> BlockBuffer {
        let buffer = if length > SMALL_BLOCK_BYTES {
            let pooled = self.shared.pooled();
            pooled.unwrap_or_else(|| vec![0; limits::MAX_BLOCK_BYTES])
        } else {
            vec![0; length]
        };
        BlockBuffer {
            buffer,
            length,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl ServerMemory {
    fn pooled(&self) -> Option<Vec<u8>> {
        self.lock().pop()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.pooled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Reserved memory for content until it is sent.
#[derive(Debug, Default)]
pub(super) struct MemoryPermit {
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl MemoryPermit {
    /// Returns bytes that hold the permit until their last clone is dropped.
    pub(super) fn attach(self, content: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(PermittedContent {
            content,
            _permit: self,
        })
    }
}

struct PermittedContent<T> {
    content: T,
    _permit: MemoryPermit,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for PermittedContent<T> {
    fn as_ref(&self) -> &[u8] {
        self.content.as_ref()
    }
}

/// A block with a pooled buffer. The buffer is zeroed once, not for every read.
#[derive(Debug)]
pub(super) struct BlockBuffer {
    buffer: Vec<u8>,
    length: usize,
    shared: Arc<ServerMemory>,
}

impl BlockBuffer {
    /// Returns the buffer to fill.
    pub(super) fn space(&mut self) -> &mut [u8] {
        let length = self.length.min(self.buffer.len());
        &mut self.buffer[..length]
    }

    /// Shortens the block to the filled length.
    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl AsRef<[u8]> for BlockBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length.min(self.buffer.len())]
    }
}

impl Drop for BlockBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut pooled = self.shared.lock();
        if pooled.len() < MAX_POOLED_BLOCKS && buffer.len() == limits::MAX_BLOCK_BYTES {
            pooled.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::FutureExt;

    use super::*;

    #[tokio::test]
    async fn unsent_content_blocks_the_next_read() {
        let memory = ContentMemory::bounded(Arc::default());
        let window = limits::FILE_WINDOW_BYTES as u64;
        let first = memory.acquire(window).await.unwrap().attach(vec![1]);
        let mut second = Box::pin(memory.acquire(1));
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().is_some());
    }

    #[tokio::test]
    async fn large_files_beyond_the_server_limit_are_rejected() {
        let shared: Arc<ServerMemory> = Arc::default();
        let [a, b, c] = [(); 3].map(|()| ContentMemory::bounded(Arc::clone(&shared)));
        let half = limits::LARGE_FILES_BYTES as u64 / 2;
        let permits = [
            a.acquire(half).await.unwrap(),
            b.acquire(half).await.unwrap(),
        ];
        assert!(matches!(c.acquire(half).await, Err(FileError::Host(_))));
        drop(permits);
        assert!(c.acquire(half).await.is_ok());
    }

    #[tokio::test]
    async fn unbounded_memory_never_blocks() {
        let memory = ContentMemory::unbounded();
        let _permit = memory
            .acquire(limits::LARGE_FILES_BYTES as u64)
            .await
            .unwrap();
        assert!(memory.acquire(1).now_or_never().is_some());
    }

    #[test]
    fn block_buffers_are_reused() {
        let memory = ContentMemory::bounded(Arc::default());
        let mut block = memory.block(limits::MAX_BLOCK_BYTES);
        let address = block.space().as_ptr();
        block.truncate(3);
        assert_eq!(block.as_ref().len(), 3);
        drop(block);
        let mut again = memory.block(limits::MAX_BLOCK_BYTES - 1);
        assert_eq!(again.space().as_ptr(), address);
        assert_eq!(again.space().len(), limits::MAX_BLOCK_BYTES - 1);
    }
}
