//! Files of the state directory: opened below a directory descriptor, never through a symbolic
//! link, and only if they are private to this account.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    buffer::spare_capacity,
    fs::{FileType, Mode, OFlags, Stat},
    io::{Errno, retry_on_intr},
};

/// Mode of files.
pub(crate) const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Mode of directories.
pub(crate) const DIRECTORY_MODE: Mode = Mode::RWXU;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OpenMode {
    /// Existing, for reading.
    Read,
    /// Existing, for reading and writing.
    Write,
    /// Created if missing, for reading and writing.
    Create,
    /// Created, for reading and writing. Fails if the file exists.
    CreateNew,
}

/// Regular file of this account that others cannot access.
#[derive(Debug)]
pub(crate) struct PrivateFile {
    fd: OwnedFd,
}

impl PrivateFile {
    /// Opens a file below `directory`. An existing file that is not private is
    /// [`io::ErrorKind::PermissionDenied`].
    pub(crate) fn open(directory: impl AsFd, name: &str, mode: OpenMode) -> io::Result<Self> {
        // Without O_NONBLOCK a FIFO of this name would block the server.
        let base = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR,
            OpenMode::Create => OFlags::RDWR | OFlags::CREATE,
            OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let open = || rustix::fs::openat(&directory, name, base | flags, FILE_MODE);
        let fd = retry_on_intr(open).map_err(|errno| match errno {
            Errno::LOOP => not_private(),
            other => other.into(),
        })?;
        let file = Self { fd };
        if mode != OpenMode::CreateNew {
            check_private(&file.stat()?, FileType::RegularFile)?;
        }
        Ok(file)
    }

    /// Opens a file, or returns `None` if it does not exist.
    pub(crate) fn open_existing(
        directory: impl AsFd,
        name: &str,
        mode: OpenMode,
    ) -> io::Result<Option<Self>> {
        match Self::open(directory, name, mode) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes over a descriptor.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Returns the attributes.
    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.fd)?)
    }

    /// Returns the length.
    pub(crate) fn len(&self) -> io::Result<u64> {
        Ok(length(&self.stat()?))
    }

    /// Reads `length` bytes at `offset`, or fewer at the end of the file.
    pub(crate) fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut data = Vec::with_capacity(length);
        while data.len() < length && data.len() < data.capacity() {
            let position = offset.saturating_add(data.len() as u64);
            let read = || rustix::io::pread(&self.fd, spare_capacity(&mut data), position);
            match retry_on_intr(read)? {
                0 => break,
                _ => continue,
            }
        }
        data.truncate(length);
        Ok(data)
    }

    /// Writes all of `data` at `offset`. After an error any part of it may have been written.
    pub(crate) fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut written = 0;
        while written < data.len() {
            let position = offset.saturating_add(written as u64);
            match retry_on_intr(|| rustix::io::pwrite(&self.fd, &data[written..], position))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => written += count,
            }
        }
        Ok(())
    }

    /// Sets the length.
    pub(crate) fn truncate(&self, length: u64) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::ftruncate(&self.fd, length))?)
    }

    /// Waits until the content is on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fdatasync(&self.fd))?)
    }
}

impl AsFd for PrivateFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads a whole file of at most `limit` bytes. A longer one is
/// [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read_file(directory: impl AsFd, name: &str, limit: usize) -> io::Result<Vec<u8>> {
    let file = PrivateFile::open(directory, name, OpenMode::Read)?;
    let length = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if length > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    file.read_at(0, length)
}

/// Replaces a file: readers see the old content or the new one, also after a power failure.
pub(crate) fn replace_file(
    directory: impl AsFd,
    name: &str,
    temporary: &str,
    data: &[u8],
) -> io::Result<PrivateFile> {
    remove_file(&directory, temporary)?;
    let file = PrivateFile::open(&directory, temporary, OpenMode::CreateNew)?;
    let replaced = file
        .write_at(data, 0)
        .and_then(|()| file.sync())
        .and_then(|()| {
            Ok(rustix::fs::renameat(
                &directory, temporary, &directory, name,
            )?)
        });
    if let Err(error) = replaced {
        // The error of the write is the one to report.
        remove_file(&directory, temporary).ok();
        return Err(error);
    }
    Ok(file)
}

/// Removes a file if it exists.
pub(crate) fn remove_file(directory: impl AsFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a directory below `parent` and checks that it is private.
pub(crate) fn open_directory(parent: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = retry_on_intr(|| rustix::fs::openat(&parent, name, flags, Mode::empty()))?;
    check_private(&rustix::fs::fstat(&fd)?, FileType::Directory)?;
    Ok(fd)
}

/// Returns the length in attributes.
pub(crate) fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

/// Checks type, owner and mode.
fn check_private(stat: &Stat, file_type: FileType) -> io::Result<()> {
    let others = Mode::from_raw_mode(stat.st_mode) & (Mode::RWXG | Mode::RWXO);
    let is_private = FileType::from_raw_mode(stat.st_mode) == file_type
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && others.is_empty();
    if is_private {
        Ok(())
    } else {
        Err(not_private())
    }
}

fn not_private() -> io::Error {
    let message = "not a private file of this account";
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}
