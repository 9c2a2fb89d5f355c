//! Reading small files whole, without trusting them to be small.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The largest file that is read, in bytes: far above any configuration or secret, and far below
/// what a device file given by mistake would yield.
const LIMIT: u64 = 1024 * 1024;

/// Reads a file whole. Pipes are fine, so that a shell can pass a secret without a file.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if read as u64 > LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "file is larger than 1 MiB",
        ));
    }
    Ok(bytes)
}

/// Reads a file whole, as UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "file is not UTF-8 text"))
}
