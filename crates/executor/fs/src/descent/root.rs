//! Opens what lies below a directory.

use std::{fs::File, path::Path};

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2, statat},
    io::{Errno, Result, retry_on_intr},
};

use crate::{
    identity::Identity,
    regular::TO_READ,
    resolve::{Links, directory_at, open_at},
};

/// A directory under which others are opened.
#[derive(Debug)]
pub(crate) struct Root {
    directory: OwnedFd,
    links: Links,
}

impl Root {
    /// Opens a directory. It need not be readable, and links may lead to it; but with
    /// [`Links::Refuse`] it is no link itself, and none is followed below it.
    pub(crate) fn open(path: &Path, links: Links) -> Result<Self> {
        let directory = match links {
            Links::Follow => open_at(CWD, path, SEARCHED, Mode::empty()),
            Links::Refuse => directory_at(CWD, path),
        };
        directory.map(|directory| Self { directory, links })
    }

    /// Opens the directory at `below` to list it. The path has no `.` and `..`; empty, it is the
    /// root.
    pub(crate) fn directory(&self, below: &[u8]) -> Result<OwnedFd> {
        match self.links {
            _ if below.is_empty() => open_at(&self.directory, c".", LISTED, Mode::empty()),
            Links::Follow => open_at(&self.directory, below, LISTED, Mode::empty()),
            Links::Refuse => open_below(self.directory.as_fd(), below, LISTED),
        }
    }

    /// Tells which file is at `below`, behind all links.
    pub(crate) fn identity(&self, below: &[u8]) -> Result<Identity> {
        let found = statat(&self.directory, below, AtFlags::empty())?;
        Ok(Identity::from(&found))
    }

    /// Opens the regular file at `below` to read it, as [`open_file`] does.
    pub(crate) fn file(&self, below: &[u8]) -> Result<File> {
        open_file(self.directory.as_fd(), below)
    }
}

/// Opens a regular file below a directory to read it. No link is followed, and what is no regular
/// file is not waited for.
pub(crate) fn open_file(directory: BorrowedFd<'_>, below: &[u8]) -> Result<File> {
    let file = open_below(directory, below, TO_READ)?;
    if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
        return Err(Errno::INVAL);
    }
    Ok(File::from(file))
}

/// Opens a path in which no name is a link.
fn open_below(directory: BorrowedFd<'_>, below: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS;
    let flags = flags | OFlags::CLOEXEC;
    match retry_on_intr(|| openat2(directory, below, flags, Mode::empty(), resolve)) {
        // A filter that does not know the call refuses it with either.
        Err(Errno::NOSYS | Errno::PERM) => open_by_name(directory, below, flags),
        opened => opened,
    }
}

/// Does what the kernel does in [`open_below`], one name after the other.
pub(super) fn open_by_name(
    directory: BorrowedFd<'_>,
    below: &[u8],
    flags: OFlags,
) -> Result<OwnedFd> {
    let mut above: Option<OwnedFd> = None;
    let mut names = below.split(|&byte| byte == b'/').peekable();
    while let Some(name) = names.next() {
        let at = above.as_ref().map_or(directory, AsFd::as_fd);
        if names.peek().is_none() {
            return open_at(at, name, flags | OFlags::NOFOLLOW, Mode::empty());
        }
        above = Some(directory_at(at, name)?);
    }
    Err(Errno::NOENT)
}

/// How a directory is opened only to get at what is below it: it needs no permission on it.
const SEARCHED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
/// How a directory is opened to be listed.
const LISTED: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
