//! Byte pattern in which each byte's position is recognisable: numbered lines of sixteen bytes.

use std::io::{self, Write};

/// Bytes per write.
const BLOCK: usize = 64 << 10;

/// Returns the first `length` bytes of the pattern.
pub fn bytes(length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(length + 16);
    let mut line = 0;
    while out.len() < length {
        writeln!(out, "{line:015}").expect("writing to a vector cannot fail");
        line += 1;
    }
    out.truncate(length);
    out
}

/// Writes the first `length` bytes of the pattern, in blocks.
pub fn write(length: usize, out: &mut impl Write) -> io::Result<()> {
    let bytes = bytes(length);
    for block in bytes.chunks(BLOCK) {
        out.write_all(block)?;
    }
    out.flush()
}

/// Asserts equality, and reports the first difference without printing megabytes.
#[track_caller]
pub(crate) fn assert_same(found: &[u8], expected: &[u8]) {
    let difference = found
        .iter()
        .zip(expected)
        .position(|(one, other)| one != other);
    assert_eq!(
        difference,
        None,
        "first difference in {} bytes",
        expected.len()
    );
    assert_eq!(found.len(), expected.len(), "length");
}
