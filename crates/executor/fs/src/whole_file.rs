//! Reads whole files.

use std::{fs::File, os::fd::OwnedFd, path::PathBuf, thread};

use exec_env::filesystem::FileError;
use exec_wire::{fs::ReadFile, limits};
use rustix::{
    buffer::spare_capacity,
    fs::{SeekFrom, seek},
    io::{self, Errno, pread, read, retry_on_intr},
};

use crate::{
    cancel_flag,
    host_path::{host_error, native_path},
    regular_file::RegularFile,
    resolve::LinkPolicy,
};

/// An open regular file of at most [`limits::MAX_READ_FILE_BYTES`], to be read at once.
#[derive(Debug)]
pub struct WholeFile {
    file: File,
    path: PathBuf,
    size: u64,
}

impl WholeFile {
    /// Opens the file.
    ///
    /// # Errors
    /// Fails if it cannot be opened, is not a regular file, or is too large.
    pub fn open(read: &ReadFile) -> Result<Self, FileError> {
        let path = native_path(&read.path)?;
        let opened = RegularFile::to_read(&path, LinkPolicy::from_request(read.follow_symlinks))?;
        Self::opened(opened, path)
    }

    /// Adopts a file that another process opened for `read`, and checks it again.
    ///
    /// # Errors
    /// Fails if it is not a regular file, or is too large.
    pub fn from_file(file: OwnedFd, read: &ReadFile) -> Result<Self, FileError> {
        let path = native_path(&read.path)?;
        let opened = RegularFile::received(file, &path)?;
        Self::opened(opened, path)
    }

    fn opened(opened: RegularFile, path: PathBuf) -> Result<Self, FileError> {
        let size = opened.size();
        if size > limits::MAX_READ_FILE_BYTES {
            return Err(too_large());
        }
        let file = opened.file;
        Ok(Self { file, path, size })
    }

    /// Returns the file, for use by another process.
    pub fn into_file(self) -> OwnedFd {
        self.file.into()
    }

    /// Reads the file, even if it has grown or shrunk since.
    ///
    /// # Errors
    /// Fails if reading fails, or if the file has grown too large.
    pub fn read(self) -> Result<Vec<u8>, FileError> {
        let mut content = Vec::new();
        self.reserve(&mut content, self.size)?;
        if self.size >= TOGETHER_BYTES {
            content = self.read_together(content.capacity())?;
        }
        loop {
            if content.len() < content.capacity() {
                match read(&self.file, spare_capacity(&mut content)) {
                    Ok(0) => return Ok(content),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(host_error("read", &self.path, error)),
                }
            } else if self.read_beyond(&mut content)? == FileEnd::Reached {
                return Ok(content);
            }
            if content.len() as u64 > limits::MAX_READ_FILE_BYTES {
                return Err(too_large());
            }
        }
    }

    /// Reads the first bytes of a large file with several threads, because faulting in the new
    /// memory takes as long as filling it. Leaves the cursor after the bytes read.
    fn read_together(&self, length: usize) -> Result<Vec<u8>, FileError> {
        let mut content = vec![0; length];
        let part = length.div_ceil(cancel_flag::thread_count()).max(1);
        let read = thread::scope(|scope| {
            let readers: Vec<_> = content
                .chunks_mut(part)
                .zip((0..).step_by(part))
                .map(|(into, offset)| scope.spawn(move || self.read_part(into, offset)))
                .collect();
            let mut read = 0;
            let mut whole = true;
            for reader in readers {
                let filled = reader.join().unwrap_or(Err(Errno::IO))?;
                // After a short part the file has shrunk; later parts are not contiguous.
                read += if whole { filled } else { 0 };
                whole &= filled == part;
            }
            seek(&self.file, SeekFrom::Start(read as u64))?;
            Ok(read)
        });
        content.truncate(read.map_err(|error: Errno| host_error("read", &self.path, error))?);
        Ok(content)
    }

    fn read_part(&self, into: &mut [u8], offset: usize) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match pread(&self.file, &mut into[filled..], (offset + filled) as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Returns the size at the time of opening. Generated files, such as those in procfs, report 0.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads more than the buffer holds. Most files end here, so the buffer grows only for those
    /// that do not.
    fn read_beyond(&self, content: &mut Vec<u8>) -> Result<FileEnd, FileError> {
        let mut more = [0; BEYOND_BYTES];
        let length = retry_on_intr(|| read(&self.file, &mut more))
            .map_err(|error| host_error("read", &self.path, error))?;
        if length == 0 {
            return Ok(FileEnd::Reached);
        }
        self.reserve(content, GROWTH_BYTES.max(content.len() as u64))?;
        content.extend_from_slice(&more[..length]);
        Ok(FileEnd::Ahead)
    }

    /// Grows the buffer, up to one byte more than the limit.
    fn reserve(&self, content: &mut Vec<u8>, more: u64) -> Result<(), FileError> {
        let most = limits::MAX_READ_FILE_BYTES + BEYOND_BYTES as u64;
        let more = more.min(most.saturating_sub(content.len() as u64));
        usize::try_from(more)
            .ok()
            .and_then(|more| content.try_reserve_exact(more).ok())
            .ok_or_else(|| host_error("read", &self.path, Errno::NOMEM))
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FileEnd {
    Reached,
    Ahead,
}

fn too_large() -> FileError {
    FileError::Invalid(format!(
        "file is too large to read: limit is {} bytes",
        limits::MAX_READ_FILE_BYTES
    ))
}

/// Size from which several threads read a file.
const TOGETHER_BYTES: u64 = 8 << 20;
/// Bytes read to detect the end of a file.
const BEYOND_BYTES: usize = 4096;
/// Least growth of the buffer for a file that is larger than reported.
const GROWTH_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests;
