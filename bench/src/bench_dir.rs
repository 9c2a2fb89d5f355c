//! A temporary directory for the files of one group of measures, and the content of these files.
//!
//! Each byte of the content follows from its position. Any part can be recomputed, so nothing large
//! is kept for comparison, and a block from a wrong offset is detected.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};

use crate::base64;
use crate::rpc_message::DataMember;

/// Bytes per write.
const PIECE: usize = 1 << 20;

/// A directory below the system's temporary one. Dropping it removes it with its content.
#[derive(Debug)]
pub(crate) struct BenchDir(PathBuf);

impl BenchDir {
    /// Creates an empty directory.
    pub(crate) fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("exec-bench-{}-{count}", std::process::id());
        // Servers report canonical paths, so resolve symbolic links here.
        let path = std::env::temp_dir().canonicalize()?.join(name);
        // Fails if the directory exists, so that files of others are never used or removed.
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// Returns the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates a directory in it.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// Creates a file with `bytes` bytes of [`content_at`], which stays in the page cache.
    ///
    /// Syncs a large file to disk, so that the kernel does not write it back during a measurement.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.0.join(name);
        let mut file =
            File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut offset = 0;
        while offset < bytes {
            let len =
                usize::try_from(bytes - offset).map_or(PIECE, |remaining| remaining.min(PIECE));
            file.write_all(&content_at(offset, len))?;
            offset += len as u64;
        }
        if bytes >= PIECE as u64 {
            file.sync_data()?;
        }
        Ok(path)
    }
}

impl Drop for BenchDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("exec-bench: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Returns the `file:` URI of an absolute path.
pub(crate) fn file_uri(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    for &byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                uri.push(char::from(byte));
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri
}

/// Number of samples compared in a response, including the first and the last.
const SAMPLES: usize = 9;

/// Bytes of a sample; a multiple of 3, so that it covers complete base64 groups.
const SAMPLE_BYTES: usize = 48;

/// Returns the `len` content bytes at `offset`.
pub(crate) fn content_at(offset: u64, len: usize) -> Vec<u8> {
    // At most seven extra bytes on either side.
    let (first, skip) = (offset / 8, (offset % 8) as usize);
    let words = (skip + len).div_ceil(8);
    let mut bytes = Vec::with_capacity(words * 8);
    for index in first..first + words as u64 {
        bytes.extend_from_slice(&content_word(index).to_le_bytes());
    }
    bytes.drain(..skip);
    bytes.truncate(len);
    bytes
}

/// Checks that `data` has the length of the `len` content bytes at `offset`, and that samples
/// match.
pub(crate) fn check_content(offset: u64, len: usize, data: DataMember<'_>) -> Result<()> {
    let (size, expected) = match data {
        DataMember::Base64(text) => (text.len(), base64::encoded_len(len)),
        DataMember::Raw(bytes) => (bytes.len(), len),
    };
    ensure!(
        size == expected,
        "{size} bytes of file content instead of {expected}"
    );
    let groups = len.div_ceil(3);
    let last = groups.saturating_sub(SAMPLE_BYTES / 3);
    for sample in 0..SAMPLES {
        let start = last * sample / (SAMPLES - 1);
        let bytes = content_at(offset + 3 * start as u64, SAMPLE_BYTES.min(len - 3 * start));
        let same = match data {
            DataMember::Base64(text) => {
                text[4 * start..].starts_with(base64::encode(&bytes).as_bytes())
            }
            DataMember::Raw(raw) => raw[3 * start..].starts_with(&bytes),
        };
        ensure!(same, "wrong file content near byte {}", 3 * start);
    }
    Ok(())
}

/// Mixes an index with SplitMix64: neighbours differ in all bits, and the content does not
/// compress.
const fn content_word(index: u64) -> u64 {
    let z = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_is_percent_encoded() {
        assert_eq!(file_uri(Path::new("/a b/ü%")), "file:///a%20b/%C3%BC%25");
    }

    #[test]
    fn scratch_directory_is_removed_with_its_content() {
        let dir = BenchDir::new().unwrap();
        let path = dir.file("f", 10).unwrap();
        assert_eq!(fs::read(&path).unwrap(), content_at(0, 10));
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn partial_content_equals_the_slice_of_the_whole() {
        let whole = content_at(0, 100);
        for (offset, len) in [(0_usize, 0), (0, 100), (3, 9), (8, 8), (17, 80)] {
            assert_eq!(content_at(offset as u64, len), whole[offset..][..len]);
        }
    }

    #[test]
    fn base64_and_binary_content_are_checked() {
        for len in [0, 1, 47, 48, 4096, 100_000] {
            let bytes = content_at(7, len);
            let text = base64::encode(&bytes);
            check_content(7, len, DataMember::Raw(&bytes)).unwrap();
            check_content(7, len, DataMember::Base64(text.as_bytes())).unwrap();
            assert!(check_content(7, len + 1, DataMember::Raw(&bytes)).is_err());
            if len > 0 {
                assert!(check_content(8, len, DataMember::Raw(&bytes)).is_err());
                assert!(check_content(8, len, DataMember::Base64(text.as_bytes())).is_err());
            }
        }
    }
}
