//! Regular files: opened, read whole, or read and written in blocks.
//!
//! Opening a path of any type never blocks, never truncates, and never acquires a controlling
//! terminal. The type is checked after opening.

#[cfg(test)]
mod tests;

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    thread,
};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{OpenMode, ReadFile},
    limits,
    path_uri::PathUri,
};
use rustix::{
    buffer::spare_capacity,
    fs::{FileType, Mode, OFlags, SeekFrom, Stat, fchmod, fstat, ftruncate, seek},
    io::{self, Errno, pread, read, retry_on_intr},
};

use crate::{
    cancel_flag,
    host_path::{host_error, native_path, not_a_file},
    resolve::{self, LinkPolicy},
};

/// Flags to open a file for reading.
pub(crate) const READ_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// Flags to open or create a file for writing.
pub(crate) const WRITE_FLAGS: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);
/// Permission bits of a new file, before the umask.
pub(crate) const NEW_FILE_MODE: Mode = Mode::from_raw_mode(0o666);

/// An open regular file and its metadata at that time.
#[derive(Debug)]
pub(crate) struct RegularFile {
    pub(crate) file: File,
    pub(crate) stat: Stat,
}

impl RegularFile {
    /// Opens a file for reading.
    pub(crate) fn to_read(path: &Path, links: LinkPolicy) -> Result<Self, FileError> {
        let opened = resolve::open(path, links, READ_FLAGS, Mode::empty())
            .map_err(|error| host_error("open", path, error))?;
        Self::checked(opened, path)
    }

    /// Checks a file that was opened or created for writing.
    pub(crate) fn to_write(opened: io::Result<OwnedFd>, path: &Path) -> Result<Self, FileError> {
        // Opening a FIFO without a reader fails instead of blocking.
        let opened = opened.map_err(|error| host_error("write", path, error))?;
        Self::checked(opened, path)
    }

    fn checked(opened: OwnedFd, path: &Path) -> Result<Self, FileError> {
        let stat = fstat(&opened).map_err(|error| host_error("look at", path, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_a_file(path));
        }
        let file = File::from(opened);
        Ok(Self { file, stat })
    }

    /// Returns the size at the time of opening.
    pub(crate) fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// Sets the permission bits if they differ.
    pub(crate) fn set_mode(&self, mode: Mode) -> io::Result<()> {
        if Mode::from_raw_mode(self.stat.st_mode) == mode {
            return Ok(());
        }
        fchmod(&self.file, mode)
    }

    /// Restores the bits that writing clears on files of other users than root.
    pub(crate) fn restore_mode(&self, mode: Mode) -> io::Result<()> {
        if mode.intersects(SET_ID_BITS) {
            fchmod(&self.file, mode)?;
        }
        Ok(())
    }
}

/// Returns the permission bits of a file's copy. Keeps set-user-id and set-group-id only if the
/// owner is the same.
pub(crate) fn copied_mode(from: &Stat, to: &Stat) -> Mode {
    let mode = Mode::from_raw_mode(from.st_mode);
    if (from.st_uid, from.st_gid) == (to.st_uid, to.st_gid) {
        mode
    } else {
        mode - SET_ID_BITS
    }
}

/// The set-user-id and set-group-id bits.
const SET_ID_BITS: Mode = Mode::SUID.union(Mode::SGID);

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
        let opened = RegularFile::checked(file, &path)?;
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
        if self.size >= PARALLEL_READ_BYTES {
            content = self.read_parallel(content.capacity())?;
        }
        loop {
            if content.len() < content.capacity() {
                match read(&self.file, spare_capacity(&mut content)) {
                    Ok(0) => return Ok(content),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(host_error("read", &self.path, error)),
                }
            } else if !self.read_past_capacity(&mut content)? {
                return Ok(content);
            }
            if content.len() as u64 > limits::MAX_READ_FILE_BYTES {
                return Err(too_large());
            }
        }
    }

    /// Reads the first bytes of a large file with several threads, because faulting in the new
    /// memory takes as long as filling it. Leaves the cursor after the bytes read.
    fn read_parallel(&self, length: usize) -> Result<Vec<u8>, FileError> {
        let mut content = vec![0; length];
        let part = length.div_ceil(cancel_flag::thread_count()).max(1);
        let read = thread::scope(|scope| {
            let readers: Vec<_> = content
                .chunks_mut(part)
                .zip((0_u64..).step_by(part))
                .map(|(buffer, offset)| scope.spawn(move || read_at(&self.file, offset, buffer)))
                .collect();
            let mut read = 0;
            let mut contiguous = true;
            for reader in readers {
                let filled = reader.join().unwrap_or(Err(Errno::IO))?;
                // After a short part the file has shrunk; later parts are not contiguous.
                read += if contiguous { filled } else { 0 };
                contiguous &= filled == part;
            }
            seek(&self.file, SeekFrom::Start(read as u64))?;
            Ok(read)
        });
        content.truncate(read.map_err(|error: Errno| host_error("read", &self.path, error))?);
        Ok(content)
    }

    /// Returns the size at the time of opening. Generated files, such as those in procfs, report 0.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads more than the buffer holds. Most files end here, so the buffer grows only for those
    /// that do not. Returns false at the end of the file.
    fn read_past_capacity(&self, content: &mut Vec<u8>) -> Result<bool, FileError> {
        let mut more = [0; END_PROBE_BYTES];
        let length = retry_on_intr(|| read(&self.file, &mut more))
            .map_err(|error| host_error("read", &self.path, error))?;
        if length == 0 {
            return Ok(false);
        }
        self.reserve(content, GROWTH_BYTES.max(content.len() as u64))?;
        content.extend_from_slice(&more[..length]);
        Ok(true)
    }

    /// Grows the buffer, up to one byte more than the limit.
    fn reserve(&self, content: &mut Vec<u8>, more: u64) -> Result<(), FileError> {
        let limit = limits::MAX_READ_FILE_BYTES + END_PROBE_BYTES as u64;
        let more = more.min(limit.saturating_sub(content.len() as u64));
        usize::try_from(more)
            .ok()
            .and_then(|more| content.try_reserve_exact(more).ok())
            .ok_or_else(|| host_error("read", &self.path, Errno::NOMEM))
    }
}

/// Reads from `offset` until `buffer` is full or the file ends.
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match pread(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn too_large() -> FileError {
    FileError::Invalid(format!(
        "file is too large to read: limit is {} bytes",
        limits::MAX_READ_FILE_BYTES
    ))
}

/// Size from which several threads read a file.
const PARALLEL_READ_BYTES: u64 = 8 << 20;
/// Bytes read to detect the end of a file.
const END_PROBE_BYTES: usize = 4096;
/// Least growth of the buffer for a file that is larger than reported.
const GROWTH_BYTES: u64 = 64 << 10;

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
                let opened = resolve::open(&path, LinkPolicy::Follow, WRITE_FLAGS, NEW_FILE_MODE);
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
        let file = RegularFile::checked(file, &path)?.file;
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
        check_block(offset, length, "read")
    }

    /// Reads from `offset` until `buffer` is full or the file ends. Returns the number of bytes; a
    /// short read means the end of the file.
    ///
    /// # Errors
    /// Fails if [`Self::check_read`] rejects the arguments, or if reading fails.
    pub fn read_block(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        Self::check_read(offset, buffer.len() as u64)?;
        read_at(&self.file, offset, buffer).map_err(|error| host_error("read", &self.path, error))
    }

    /// Writes all data at `offset`.
    ///
    /// # Errors
    /// Fails if the block is empty, too large or beyond the largest file, or if writing fails. A
    /// part may have been written then.
    pub fn write_block(&self, offset: u64, data: &[u8]) -> Result<(), FileError> {
        check_block(offset, data.len() as u64, "write")?;
        self.file
            .write_all_at(data, offset)
            .map_err(|error| host_error("write", &self.path, error))
    }

    /// Returns the open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

fn check_block(offset: u64, length: u64, verb: &str) -> Result<usize, FileError> {
    let limit = limits::MAX_BLOCK_BYTES;
    let bytes = match usize::try_from(length) {
        Ok(bytes @ 1..) if bytes <= limit => bytes,
        _ => {
            let text = format!("file {verb} block length must be between 1 and {limit}");
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
