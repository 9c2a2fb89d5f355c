//! Copies file content in blocks, several of them concurrently.
//!
//! Invariant: writes are issued in file order and the writer keeps that order, so an interrupted
//! copy leaves a prefix of the file.

use std::sync::Arc;

use exec_env::filesystem::{FileError, OpenFile};
use exec_wire::limits;
use futures_util::{StreamExt, TryStreamExt, stream};

/// Reads in flight, and writes in flight: enough for a high-latency link, and little memory.
const READ_AHEAD: usize = 8;

/// Why copying content failed.
#[derive(Debug)]
pub(super) enum CopyError {
    /// The source could not be read.
    Source(FileError),
    /// The target could not be written.
    Target(FileError),
    /// The source shrank while it was read.
    Shorter,
}

impl CopyError {
    /// Returns whether the connection was lost, so that a retry makes sense.
    pub(super) fn is_cut(&self) -> bool {
        match self {
            Self::Source(error) | Self::Target(error) => {
                matches!(error, FileError::Disconnected(_))
            }
            Self::Shorter => false,
        }
    }
}

/// Block size.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BlockSize {
    /// Maximum size.
    Large,
    /// Small enough to get through between two disconnects of a bad connection.
    Small,
}

impl BlockSize {
    fn bytes(self) -> usize {
        match self {
            Self::Large => limits::MAX_BLOCK_BYTES,
            Self::Small => 64 << 10,
        }
    }
}

/// Copies the range from `start` to `size`. Calls `written` for each block once it and all blocks
/// before it are written.
pub(super) async fn copy_blocks(
    source: &Arc<dyn OpenFile>,
    target: &Arc<dyn OpenFile>,
    (start, size): (u64, u64),
    blocks: BlockSize,
    mut written: impl FnMut(u64),
) -> Result<(), CopyError> {
    let offsets = stream::iter((start..size).step_by(blocks.bytes()));
    let read = offsets.map(|offset| {
        let length = block_length(size - offset, blocks.bytes());
        let read = source.read_block(offset, length);
        async move {
            let block = read.await.map_err(CopyError::Source)?;
            if block.data.len() < length {
                return Err(CopyError::Shorter);
            }
            Ok((offset, block.data))
        }
    });
    let written_blocks = read.buffered(READ_AHEAD).map_ok(|(offset, data)| {
        let length = data.len() as u64;
        let write = target.write_block(offset, data);
        async move { write.await.map(|()| length).map_err(CopyError::Target) }
    });
    let mut blocks = std::pin::pin!(written_blocks.try_buffered(READ_AHEAD));
    while let Some(length) = blocks.try_next().await? {
        written(length);
    }
    Ok(())
}

/// Compares a range of two files.
pub(super) async fn same_blocks(
    one: &Arc<dyn OpenFile>,
    other: &Arc<dyn OpenFile>,
    from: u64,
    to: u64,
) -> Result<bool, FileError> {
    let blocks = stream::iter((from..to).step_by(limits::MAX_BLOCK_BYTES));
    let compared = blocks.map(|offset| {
        let length = block_length(to - offset, limits::MAX_BLOCK_BYTES);
        let both = (
            one.read_block(offset, length),
            other.read_block(offset, length),
        );
        async move {
            let (one, other) = futures_util::try_join!(both.0, both.1)?;
            Ok(one.data.len() == length && one.data == other.data)
        }
    });
    compared
        .buffered(READ_AHEAD)
        .try_all(|same| async move { same })
        .await
}

fn block_length(remaining: u64, max: usize) -> usize {
    usize::try_from(remaining).map_or(max, |remaining| remaining.min(max))
}
