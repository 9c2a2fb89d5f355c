//! Content of test files: bytes that follow from their position. Any part can be recomputed, so
//! nothing large is kept for comparison, and a block from a wrong offset is detected.

use anyhow::{Result, ensure};

use crate::base64;
use crate::rpc::Data;

/// Parts of an answer that are compared, the first and the last one included.
const SAMPLES: usize = 9;

/// Bytes of each; whole groups of base64.
const SAMPLE: usize = 48;

/// Returns the `len` bytes at `offset`.
pub(crate) fn at(offset: u64, len: usize) -> Vec<u8> {
    // At most seven extra bytes on either side.
    let (first, skip) = (offset / 8, (offset % 8) as usize);
    let words = (skip + len).div_ceil(8);
    let mut bytes = Vec::with_capacity(words * 8);
    for index in first..first + words as u64 {
        bytes.extend_from_slice(&word(index).to_le_bytes());
    }
    bytes.drain(..skip);
    bytes.truncate(len);
    bytes
}

/// Checks that `data` has the length, and at a few places the bytes, of the `len` bytes at
/// `offset`.
pub(crate) fn check(offset: u64, len: usize, data: Data<'_>) -> Result<()> {
    let (size, expected) = match data {
        Data::Base64(text) => (text.len(), base64::encoded_len(len)),
        Data::Raw(bytes) => (bytes.len(), len),
    };
    ensure!(
        size == expected,
        "{size} bytes of file content instead of {expected}"
    );
    let groups = len.div_ceil(3);
    let last = groups.saturating_sub(SAMPLE / 3);
    for sample in 0..SAMPLES {
        let start = last * sample / (SAMPLES - 1);
        let bytes = at(offset + 3 * start as u64, SAMPLE.min(len - 3 * start));
        let same = match data {
            Data::Base64(text) => text[4 * start..].starts_with(base64::encode(&bytes).as_bytes()),
            Data::Raw(raw) => raw[3 * start..].starts_with(&bytes),
        };
        ensure!(same, "wrong file content near byte {}", 3 * start);
    }
    Ok(())
}

/// The mixing function of SplitMix64: neighbours differ in all bits, and nothing compresses.
const fn word(index: u64) -> u64 {
    let z = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_content_equals_the_slice_of_the_whole() {
        let whole = at(0, 100);
        for (offset, len) in [(0_usize, 0), (0, 100), (3, 9), (8, 8), (17, 80)] {
            assert_eq!(at(offset as u64, len), whole[offset..][..len]);
        }
    }

    #[test]
    fn base64_and_binary_content_are_checked() {
        for len in [0, 1, 47, 48, 4096, 100_000] {
            let bytes = at(7, len);
            let text = base64::encode(&bytes);
            check(7, len, Data::Raw(&bytes)).unwrap();
            check(7, len, Data::Base64(text.as_bytes())).unwrap();
            assert!(check(7, len + 1, Data::Raw(&bytes)).is_err());
            if len > 0 {
                assert!(check(8, len, Data::Raw(&bytes)).is_err());
                assert!(check(8, len, Data::Base64(text.as_bytes())).is_err());
            }
        }
    }
}
