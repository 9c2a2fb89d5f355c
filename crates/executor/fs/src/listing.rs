//! Reads the names in a directory.

use std::ffi::OsStr;

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, Dir, FileType, Mode, OFlags, statat},
    io::{self, Errno},
};

use crate::resolve;

/// The names in a directory, without `.` and `..`. One that is removed meanwhile has no more.
pub(crate) struct Listing(Dir);

impl Listing {
    /// Begins at the first name, even if the directory was opened only to be searched.
    pub(crate) fn of(directory: impl AsFd) -> io::Result<Self> {
        let opened = resolve::open_at(directory, ".", LISTED, Mode::empty())?;
        Self::new(opened)
    }

    /// Begins where the directory, which was opened to be read, stands.
    pub(crate) fn new(opened: OwnedFd) -> io::Result<Self> {
        Dir::new(opened).map(Self)
    }
}

impl Iterator for Listing {
    type Item = io::Result<rustix::fs::DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.0.read()? {
                Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Err(Errno::NOENT) => return None,
                entry => return Some(entry),
            }
        }
    }
}

/// Returns what an entry itself is, also where the directory does not tell.
pub(crate) fn kind(directory: impl AsFd, name: &OsStr, listed: FileType) -> io::Result<FileType> {
    if listed != FileType::Unknown {
        return Ok(listed);
    }
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// How directories are opened to be read.
pub(crate) const LISTED: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NONBLOCK);
