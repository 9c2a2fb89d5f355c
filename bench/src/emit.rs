//! Child of the throughput measures: writes a given number of bytes as fast as possible.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;

/// Bytes per write, as of a program that buffers its output well.
const BLOCK: usize = 64 * 1024;

/// Writes `bytes` bytes to stdout. A closed reader is a normal exit.
pub(crate) fn emit(bytes: u64) -> anyhow::Result<()> {
    // `io::stdout` would search every block for line ends.
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let block = [b'x'; BLOCK];
    let mut left = bytes;
    while left > 0 {
        let size = usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK));
        match out.write_all(&block[..size]) {
            Ok(()) => left -= size as u64,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// As [`emit`], then stays until a byte or the end of stdin arrives.
///
/// While it stays, what the server has reaped is its own helpers and never this process.
pub(crate) fn emit_and_hold(bytes: u64) -> anyhow::Result<()> {
    emit(bytes)?;
    let mut byte = [0];
    let _read: usize = io::stdin().read(&mut byte)?;
    Ok(())
}
