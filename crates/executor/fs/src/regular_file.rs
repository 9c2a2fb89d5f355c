//! Opens regular files only.
//!
//! Opening a path of any type never blocks, never truncates, and never acquires a controlling
//! terminal. The type is checked after opening.

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

/// Flags to open a file for reading.
pub(crate) const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// Flags to open or create a file for writing.
pub(crate) const TO_WRITE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);
/// Permission bits of a new file, before the umask.
pub(crate) const NEW_FILE: Mode = Mode::from_raw_mode(0o666);

/// An open regular file and its metadata at that time.
#[derive(Debug)]
pub(crate) struct RegularFile {
    pub(crate) file: File,
    pub(crate) stat: Stat,
}

impl RegularFile {
    /// Opens a file for reading.
    pub(crate) fn to_read(path: &Path, links: LinkPolicy) -> Result<Self, FileError> {
        let opened = resolve::open(path, links, TO_READ, Mode::empty())
            .map_err(|error| host_error("open", path, error))?;
        Self::checked(opened, path)
    }

    /// Checks a file that was opened or created for writing.
    pub(crate) fn to_write(opened: io::Result<OwnedFd>, path: &Path) -> Result<Self, FileError> {
        // Opening a FIFO without a reader fails instead of blocking.
        let opened = opened.map_err(|error| host_error("write", path, error))?;
        Self::checked(opened, path)
    }

    /// Checks a file that another process opened.
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
        if mode.intersects(SPECIAL) {
            fchmod(&self.file, mode)?;
        }
        Ok(())
    }
}

/// Returns the permission bits of a file's copy. Keeps set-user-id and set-group-id only if the
/// owner is the same.
pub(crate) fn carried_mode(from: &Stat, to: &Stat) -> Mode {
    let mode = Mode::from_raw_mode(from.st_mode);
    if (from.st_uid, from.st_gid) == (to.st_uid, to.st_gid) {
        mode
    } else {
        mode - SPECIAL
    }
}

/// The set-user-id and set-group-id bits.
const SPECIAL: Mode = Mode::SUID.union(Mode::SGID);

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn copy_keeps_setuid_only_for_the_same_owner() {
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
