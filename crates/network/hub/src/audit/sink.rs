//! A file that is appended to, and found again when somebody has moved it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

#[derive(Debug)]
pub(super) struct Sink {
    path: PathBuf,
    file: File,
    /// Which file that is.
    identity: (u64, u64),
}

impl Sink {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let metadata = file.metadata()?;
        Ok(Self {
            path: path.to_owned(),
            file,
            identity: (metadata.dev(), metadata.ino()),
        })
    }

    pub(super) fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let there = fs::metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()));
        if !there.is_ok_and(|there| there == self.identity) {
            *self = Self::open(&self.path)?;
        }
        self.file.write_all(text)
    }
}
