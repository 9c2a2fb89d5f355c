//! Files that stay open and are read and written in blocks.

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::PathBuf,
};

use exec_env::filesystem::FileError;
use exec_wire::{fs::OpenMode, limits, path_uri::PathUri};
use rustix::{
    fs::ftruncate,
    io::{Errno, pread},
};

use crate::{
    host_path::{host_error, native_path},
    regular_file::{NEW_FILE, RegularFile, TO_WRITE},
    resolve::{self, LinkPolicy},
};

/// An open regular file. It has no cursor: blocks may be read and written in any order, and by
/// several threads.
#[derive(Debug)]
pub struct BlockFile {
    file: File,
    path: PathBuf,
}

impl BlockFile {
    /// Opens the file. [`OpenMode::Replace`] creates or truncates it, [`OpenMode::Update`] creates
    /// or keeps it.
    ///
    /// # Errors
    /// Fails if it cannot be opened or is not a regular file. Nothing is truncated then.
    pub fn open(path: &PathUri, mode: OpenMode) -> Result<Self, FileError> {
        let path = native_path(path)?;
        let opened = match mode {
            OpenMode::Read => RegularFile::to_read(&path, LinkPolicy::Follow)?,
            OpenMode::Replace | OpenMode::Update => {
                let opened = resolve::open(&path, LinkPolicy::Follow, TO_WRITE, NEW_FILE);
                let opened = RegularFile::to_write(opened, &path)?;
                if mode == OpenMode::Replace {
                    ftruncate(&opened.file, 0)
                        .map_err(|error| host_error("empty", &path, error))?;
                }
                opened
            }
        };
        let file = opened.file;
        Ok(Self { file, path })
    }

    /// Adopts a file that another process opened at `path`, and checks it again.
    ///
    /// # Errors
    /// Fails if it is not a regular file.
    pub fn from_file(file: OwnedFd, path: &PathUri) -> Result<Self, FileError> {
        let path = native_path(path)?;
        let file = RegularFile::received(file, &path)?.file;
        Ok(Self { file, path })
    }

    /// Returns the file, for use by another process.
    pub fn into_file(self) -> OwnedFd {
        self.file.into()
    }

    /// Checks the arguments of [`Self::read_block`], and returns the length.
    ///
    /// # Errors
    /// Fails if no file can have such a block.
    pub fn check_read(offset: u64, length: u64) -> Result<usize, FileError> {
        check(offset, length, "read")
    }

    /// Reads from `offset` until `into` is full or the file ends. Returns the number of bytes; a
    /// short read means the end of the file.
    ///
    /// # Errors
    /// Fails if [`Self::check_read`] rejects the arguments, or if reading fails.
    pub fn read_block(&self, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        Self::check_read(offset, into.len() as u64)?;
        let mut filled = 0;
        while filled < into.len() {
            let at = offset + filled as u64;
            match pread(&self.file, &mut into[filled..], at) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(host_error("read", &self.path, error)),
            }
        }
        Ok(filled)
    }

    /// Writes all data at `offset`.
    ///
    /// # Errors
    /// Fails if the block is empty, too large or beyond the largest file, or if writing fails. A
    /// part may have been written then.
    pub fn write_block(&self, offset: u64, data: &[u8]) -> Result<(), FileError> {
        check(offset, data.len() as u64, "write")?;
        self.file
            .write_all_at(data, offset)
            .map_err(|error| host_error("write", &self.path, error))
    }

    /// Returns the open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

fn check(offset: u64, length: u64, verb: &str) -> Result<usize, FileError> {
    let most = limits::MAX_BLOCK_BYTES;
    let bytes = match usize::try_from(length) {
        Ok(bytes @ 1..) if bytes <= most => bytes,
        _ => {
            let text = format!("file {verb} block length must be between 1 and {most}");
            return Err(FileError::Invalid(text));
        }
    };
    let end = offset.checked_add(length).map(i64::try_from);
    let Some(Ok(_)) = end else {
        let text = format!("file {verb} block must end within {} bytes", i64::MAX);
        return Err(FileError::Invalid(text));
    };
    Ok(bytes)
}

#[cfg(test)]
mod tests;
