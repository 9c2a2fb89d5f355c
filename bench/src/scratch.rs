//! A directory for the files of one group of measures, gone when the group is done.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

use crate::content;

/// Bytes written at once.
const PIECE: usize = 1 << 20;

/// A directory below the system's temporary one; removed with all it holds on drop.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes an empty directory.
    pub(crate) fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("exec-bench-{}-{count}", std::process::id());
        // Servers tell paths without links.
        let path = std::env::temp_dir().canonicalize()?.join(name);
        // Fails if it exists, so that foreign files are never used or removed.
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Returns the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a directory in it.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// Makes a file of `bytes` bytes of [`content`], and leaves it in the page cache.
    ///
    /// A large one is on the disk as well, so that the kernel does not write it while something is
    /// measured.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.0.join(name);
        let mut file =
            File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut offset = 0;
        while offset < bytes {
            let len = usize::try_from(bytes - offset).map_or(PIECE, |left| left.min(PIECE));
            file.write_all(&content::at(offset, len))?;
            offset += len as u64;
        }
        if bytes >= PIECE as u64 {
            file.sync_data()?;
        }
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("exec-bench: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Returns the `file:` URI of an absolute path.
pub(crate) fn uri(path: &Path) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_is_percent_encoded() {
        assert_eq!(uri(Path::new("/a b/ü%")), "file:///a%20b/%C3%BC%25");
    }

    #[test]
    fn scratch_directory_is_removed_with_its_content() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.file("f", 10).unwrap();
        assert_eq!(fs::read(&path).unwrap(), content::at(0, 10));
        drop(scratch);
        assert!(!path.exists());
    }
}
