//! An open file of this machine.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::filesystem::{FileBlock, FileFuture, OpenFile};
use exec_fs::{BlockFile, Cached};
use futures_util::future::{FutureExt, ready};

use super::{line::Line, memory::Memory, offload::offload};

#[derive(Debug)]
pub(super) struct LocalOpenFile {
    pub(super) file: Arc<BlockFile>,
    pub(super) line: Line,
    pub(super) memory: Memory,
    pub(super) cached: Arc<Cached>,
}

impl OpenFile for LocalOpenFile {
    fn read_block(&self, offset: u64, length: usize) -> FileFuture<FileBlock> {
        if let Err(error) = BlockFile::check_read(offset, length as u64) {
            return ready(Err(error)).boxed();
        }
        let (file, memory) = (Arc::clone(&self.file), self.memory.clone());
        let cached = Arc::clone(&self.cached);
        async move {
            let room = memory.room(length as u64).await?;
            let mut block = memory.block(length);
            let read = match cached.block(&file, offset, block.space()) {
                Some(read) => read,
                None => {
                    let (filled, read) = offload(move |_| {
                        let read = file.read_block(offset, block.space())?;
                        Ok((block, read))
                    })
                    .await?;
                    block = filled;
                    read
                }
            };
            block.truncate(read);
            Ok(FileBlock {
                data: room.hold(block),
                eof: read < length,
            })
        }
        .boxed()
    }

    fn write_block(&self, offset: u64, data: Bytes) -> FileFuture<()> {
        let file = Arc::clone(&self.file);
        self.line.push(move |_| file.write_block(offset, &data))
    }
}
