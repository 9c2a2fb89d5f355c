//! Content on its way, block by block, several of them at once.
//!
//! Invariant: blocks are asked to be written in the order of the file, and whoever writes keeps that
//! order; so what a cut leaves behind is a beginning of the file.

use std::sync::Arc;

use exec_env::filesystem::{FileError, OpenFile};
use exec_wire::limits;
use futures_util::{StreamExt, TryStreamExt, stream};

/// Blocks that are asked for ahead, and blocks that wait to be written. Enough for a long way, and
/// little memory.
const READ_AHEAD: usize = 8;

/// Why content did not arrive.
#[derive(Debug)]
pub(super) enum CopyError {
    /// It could not be read.
    Source(FileError),
    /// It could not be written.
    Target(FileError),
    /// The file became shorter while it was read.
    Shorter,
}

impl CopyError {
    /// Tells whether the connection was cut, and it is worth to go on.
    pub(super) fn is_cut(&self) -> bool {
        match self {
            Self::Source(error) | Self::Target(error) => {
                matches!(error, FileError::Disconnected(_))
            }
            Self::Shorter => false,
        }
    }
}

/// How large blocks are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BlockSize {
    /// As large as can be.
    Large,
    /// Small enough to get through between two cuts of a bad connection.
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

/// Copies everything from `done` to `size`. Tells each block once it is written: all before it are.
pub(super) async fn copy_blocks(
    source: &Arc<dyn OpenFile>,
    target: &Arc<dyn OpenFile>,
    (done, size): (u64, u64),
    blocks: BlockSize,
    mut written: impl FnMut(u64),
) -> Result<(), CopyError> {
    let offsets = stream::iter((done..size).step_by(blocks.bytes()));
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

/// Tells whether `length` bytes from `from` on are the same in both.
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

fn block_length(left: u64, most: usize) -> usize {
    usize::try_from(left).map_or(most, |left| left.min(most))
}
