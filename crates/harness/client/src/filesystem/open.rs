//! An open file of a remote host.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::filesystem::{FileBlock, FileError, FileFuture, OpenFile};
use exec_wire::{
    fs::{ReadBlock, WriteBlock},
    id::HandleId,
    limits,
};
use futures_util::future::{FutureExt, ready};

use super::remote::{file_error, waits};
use crate::{
    client::{ExecServerClient, decode, malformed},
    driver::{ConnectionNumber, Opens},
    hub::Kept,
};

/// An open file. It is closed when it and everything asked of it are dropped: a close does not queue
/// behind what was asked before. It goes with its connection.
#[derive(Debug)]
pub(super) struct RemoteFile {
    pub(super) id: HandleId,
    pub(super) connection: ConnectionNumber,
    pub(super) kept: Arc<Option<Kept>>,
    pub(super) client: ExecServerClient,
}

impl OpenFile for RemoteFile {
    fn read_block(&self, offset: u64, length: usize) -> FileFuture<FileBlock> {
        let read = ReadBlock {
            handle_id: self.id.clone(),
            offset,
            len: length as u64,
        };
        let (asked, kept) = (
            self.client.ask(read, waits(Opens::Uses(self.connection))),
            Arc::clone(&self.kept),
        );
        async move {
            let _kept = kept;
            let answered = asked.await.map_err(file_error)?;
            let block = decode::<ReadBlock>(&answered).map_err(file_error)?;
            let data = block.chunk.map(|chunk| chunk.0).or(answered.data);
            let missing = || file_error(malformed::<ReadBlock>(&"missing field `chunk`"));
            Ok(FileBlock {
                data: data.ok_or_else(missing)?,
                eof: block.eof,
            })
        }
        .boxed()
    }

    fn write_block(&self, offset: u64, data: Bytes) -> FileFuture<()> {
        if data.len() > limits::MAX_BLOCK_BYTES {
            let most = limits::MAX_BLOCK_BYTES;
            let text = format!("file write block length must be between 1 and {most}");
            return ready(Err(FileError::Invalid(text))).boxed();
        }
        let write = WriteBlock {
            handle_id: self.id.clone(),
            offset,
            chunk: None,
        };
        let asked =
            self.client
                .ask_with_data(write, "chunk", data, waits(Opens::Uses(self.connection)));
        let kept = Arc::clone(&self.kept);
        async move {
            let _kept = kept;
            let answered = asked.await.map_err(file_error)?;
            decode::<WriteBlock>(&answered).map_err(file_error)?;
            Ok(())
        }
        .boxed()
    }
}
