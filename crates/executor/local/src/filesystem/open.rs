//! An open file of this machine.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::filesystem::{FileBlock, FileFuture, OpenFile};
use exec_fs::{BlockFile, Cached};
use futures_util::future::{FutureExt, ready};

use super::{
    line::Line,
    memory::{Block, Memory, Room},
    offload::Threads,
};

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
