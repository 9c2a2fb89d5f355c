//! Opens regular files, and nothing else.
//!
//! Whatever the name turns out to be, opening it does not block, does not empty it and does not make
//! a terminal ours; only then is it looked at.

use std::{fs::File, path::Path};

use exec_env::filesystem::FileError;
use rustix::{
    fd::OwnedFd,
    fs::{FileType, Mode, OFlags, Stat, fchmod, fstat},
    io,
};

use crate::{
    host_path::{host_error, not_a_file},
    resolve::{self, LinkPolicy},
};

/// How a file is opened to be read.
pub(crate) const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// How a file is opened, or made, to be written.
pub(crate) const TO_WRITE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);
/// Permission bits of a new file, before the umask.
pub(crate) const NEW_FILE: Mode = Mode::from_raw_mode(0o666);

/// A regular file that is open, and what was known of it then.
#[derive(Debug)]
pub(crate) struct RegularFile {
    pub(crate) file: File,
    pub(crate) stat: Stat,
}

impl RegularFile {
    /// Opens a file to read it.
    pub(crate) fn to_read(path: &Path, links: LinkPolicy) -> Result<Self, FileError> {
        let opened = resolve::open(path, links, TO_READ, Mode::empty())
            .map_err(|error| host_error("open", path, error))?;
        Self::checked(opened, path)
    }

    /// Takes what was opened or made to be written.
    pub(crate) fn to_write(opened: io::Result<OwnedFd>, path: &Path) -> Result<Self, FileError> {
        // A FIFO that nobody reads cannot be opened, and nobody waits for its reader.
        let opened = opened.map_err(|error| host_error("write", path, error))?;
        Self::checked(opened, path)
    }

    /// Takes what another process opened.
    pub(crate) fn received(opened: OwnedFd, path: &Path) -> Result<Self, FileError> {
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

    /// Bytes, when it was opened.
    pub(crate) fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// Sets the permission bits, unless they were so.
    pub(crate) fn set_mode(&self, mode: Mode) -> io::Result<()> {
        if Mode::from_raw_mode(self.stat.st_mode) == mode {
            return Ok(());
        }
        fchmod(&self.file, mode)
    }

    /// Sets again the bits that writing takes from a file that is not root's.
    pub(crate) fn restore_mode(&self, mode: Mode) -> io::Result<()> {
        if mode.intersects(SPECIAL) {
            fchmod(&self.file, mode)?;
        }
        Ok(())
    }
}

/// Returns the permission bits that a copy of a file gets. It runs with its owner's rights only if
/// that owner is the same.
pub(crate) fn carried_mode(from: &Stat, to: &Stat) -> Mode {
    let mode = Mode::from_raw_mode(from.st_mode);
    if (from.st_uid, from.st_gid) == (to.st_uid, to.st_gid) {
        mode
    } else {
        mode - SPECIAL
    }
}

/// The bits by which a program gets its file's user or group.
const SPECIAL: Mode = Mode::SUID.union(Mode::SGID);

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn a_copy_runs_as_its_owner_only_if_the_owner_is_the_same() {
        let scratch = TestDir::new();
        let path = scratch.file("file", "");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o7751)).unwrap();
        let from = RegularFile::to_read(&path, LinkPolicy::Follow)
            .unwrap()
            .stat;
        let mut to = from;
        assert_eq!(carried_mode(&from, &to), Mode::from_raw_mode(0o7751));
        to.st_uid += 1;
        assert_eq!(carried_mode(&from, &to), Mode::from_raw_mode(0o1751));
        to = from;
        to.st_gid += 1;
        assert_eq!(carried_mode(&from, &to), Mode::from_raw_mode(0o1751));
    }
}
