//! Copies a directory and everything below it.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use exec_env::filesystem::FileError;
use rustix::{
    fd::{BorrowedFd, OwnedFd},
    fs::{FileType, Mode, Stat, fstat, mkdirat},
    io::Errno,
};

use super::{CopyEndpoint, copy_file, copy_link};
use crate::{
    CancelFlag,
    directory::{self, DirectoryListing},
    directory_stack::{DirectoryStack, InodeId},
    host_path::{host_error, invalid_request},
    resolve,
};

/// A copy in progress: source and destination tree side by side.
#[derive(Debug)]
pub(super) struct TreeCopy<'a> {
    source: TreeSide,
    destination: TreeSide,
    /// The destination's root. It is never entered as part of the source, even if it is moved
    /// there.
    top: InodeId,
    stop: &'a CancelFlag,
}

impl<'a> TreeCopy<'a> {
    /// Starts at two existing directories.
    pub(super) fn new(
        source: (OwnedFd, &Path),
        destination: (OwnedFd, &Path),
        stop: &'a CancelFlag,
    ) -> Result<Self, FileError> {
        let top = InodeId::of(&destination.0)
            .map_err(|error| host_error("look at", destination.1, error))?;
        Ok(Self {
            source: TreeSide::new(source),
            destination: TreeSide::new(destination),
            top,
            stop,
        })
    }

    /// Copies everything below the source.
    pub(super) fn copy(mut self) -> Result<(), FileError> {
        let mut levels = vec![self.copy_files()?];
        while let Some(directories) = levels.last_mut() {
            self.stop.check()?;
            if let Some(name) = directories.pop() {
                if self.enter(&name)? == EnterOutcome::Both {
                    levels.push(self.copy_files()?);
                }
                continue;
            }
            levels.pop();
            self.source.leave()?;
            self.destination.leave()?;
        }
        Ok(())
    }

    /// Copies files and links of the current directory, and returns its subdirectories.
    fn copy_files(&self) -> Result<Vec<OsString>, FileError> {
        let host_error = |error| host_error("copy", &self.source.path, error);
        let mut directories = Vec::new();
        let listing = match DirectoryListing::of(self.source.current()) {
            Ok(listing) => listing,
            Err(Errno::NOENT) => return Ok(directories),
            Err(error) => return Err(host_error(error)),
        };
        for entry in listing {
            self.stop.check()?;
            let entry = entry.map_err(host_error)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let kind = directory::kind(self.source.current(), name, entry.file_type());
            match kind {
                Ok(FileType::Directory) => directories.push(name.to_owned()),
                Ok(kind) => self.copy_entry(name, kind)?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(host_error(error)),
            }
        }
        Ok(directories)
    }

    fn copy_entry(&self, name: &OsStr, kind: FileType) -> Result<(), FileError> {
        let (source, destination) = (
            self.source.path.join(name),
            self.destination.path.join(name),
        );
        let from = CopyEndpoint {
            directory: self.source.current(),
            name,
            path: &source,
        };
        let to = CopyEndpoint {
            directory: self.destination.current(),
            name,
            path: &destination,
        };
        match kind {
            FileType::RegularFile => copy_file(&from, &to, self.stop).map(drop),
            FileType::Symlink => copy_link(&from, &to).map(drop),
            FileType::Directory
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(()),
        }
    }

    fn enter(&mut self, name: &OsStr) -> Result<EnterOutcome, FileError> {
        let path = self.source.path.join(name);
        let source = match resolve::directory_at(self.source.current(), name) {
            Ok(source) => source,
            Err(Errno::NOENT) => return Ok(EnterOutcome::Neither),
            Err(error) => return Err(host_error("copy", &path, error)),
        };
        let stat = fstat(&source).map_err(|error| host_error("copy", &path, error))?;
        if InodeId::from(&stat) == self.top {
            return Err(invalid_request("copy", &path, "it is the destination"));
        }
        let destination = self.destination_directory(name, directory_mode(&stat))?;
        self.source.enter(source, name)?;
        self.destination.enter(destination, name)?;
        Ok(EnterOutcome::Both)
    }

    /// Creates a directory, or opens an existing one. A link to a directory does not count.
    fn destination_directory(&self, name: &OsStr, mode: Mode) -> Result<OwnedFd, FileError> {
        let above = self.destination.current();
        match mkdirat(above, name, mode) {
            Ok(()) | Err(Errno::EXIST) => resolve::directory_at(above, name),
            Err(error) => Err(error),
        }
        .map_err(|error| host_error("create directory", &self.destination.path.join(name), error))
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum EnterOutcome {
    Both,
    /// The source directory is gone.
    Neither,
}

/// One of the two trees, at the current directory.
#[derive(Debug)]
struct TreeSide {
    levels: DirectoryStack,
    path: PathBuf,
}

impl TreeSide {
    fn new((directory, path): (OwnedFd, &Path)) -> Self {
        Self {
            levels: DirectoryStack::new(directory),
            path: path.to_owned(),
        }
    }

    fn enter(&mut self, directory: OwnedFd, name: &OsStr) -> Result<(), FileError> {
        self.path.push(name);
        self.levels
            .enter(directory)
            .map_err(|error| host_error("copy", &self.path, error))
    }

    fn leave(&mut self) -> Result<(), FileError> {
        self.levels
            .leave()
            .map_err(|error| host_error("copy", &self.path, error))?;
        self.path.pop();
        Ok(())
    }

    fn current(&self) -> BorrowedFd<'_> {
        self.levels.current()
    }
}

/// Returns the permission bits of a copied directory, before the umask. The owner can always write
/// to it.
pub(super) fn directory_mode(source: &Stat) -> Mode {
    Mode::from_raw_mode(source.st_mode) & Mode::from_raw_mode(0o777) | Mode::RWXU
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_dir::{Outcome, TestDir, names, open_directory, outcome};

    fn tree<'a>(scratch: &TestDir, stop: &'a CancelFlag) -> TreeCopy<'a> {
        let (source, destination) = (scratch.directory("from"), scratch.directory("to"));
        TreeCopy::new(
            (open_directory(&source), &source),
            (open_directory(&destination), &destination),
            stop,
        )
        .unwrap()
    }

    #[test]
    fn entries_that_disappear_are_skipped() {
        let (scratch, stop) = (TestDir::new(), CancelFlag::default());
        let mut tree = tree(&scratch, &stop);
        let gone = OsStr::new("gone");
        for kind in [FileType::RegularFile, FileType::Symlink, FileType::Fifo] {
            assert_eq!(tree.copy_entry(gone, kind), Ok(()));
        }
        assert_eq!(tree.enter(gone), Ok(EnterOutcome::Neither));
        fs::remove_dir(scratch.path("from")).unwrap();
        assert_eq!(tree.copy_files(), Ok(Vec::new()));
        assert!(names(&scratch.path("to")).is_empty());
    }

    #[test]
    fn entry_that_became_a_link_is_not_followed() {
        let (scratch, stop) = (TestDir::new(), CancelFlag::default());
        scratch.file("secret/file", "");
        let mut tree = tree(&scratch, &stop);
        scratch.link("from/directory", "../secret");
        scratch.link("from/file", "../secret/file");
        let entered = tree.enter(OsStr::new("directory"));
        assert_eq!(outcome(entered), Outcome::Host);
        let copied = tree.copy_entry(OsStr::new("file"), FileType::RegularFile);
        assert_eq!(outcome(copied), Outcome::Host);
        assert!(names(&scratch.path("to")).is_empty());
    }

    #[test]
    fn entry_that_became_special_is_skipped() {
        let (scratch, stop) = (TestDir::new(), CancelFlag::default());
        let tree = tree(&scratch, &stop);
        scratch.fifo("from/fifo");
        let copied = tree.copy_entry(OsStr::new("fifo"), FileType::RegularFile);
        assert_eq!(copied, Ok(()));
        assert!(names(&scratch.path("to")).is_empty());
    }

    #[test]
    fn destination_moved_into_the_source_is_not_entered() {
        let (scratch, stop) = (TestDir::new(), CancelFlag::default());
        let tree = tree(&scratch, &stop);
        scratch.file("from/file", "");
        fs::rename(scratch.path("to"), scratch.path("from/to")).unwrap();
        assert_eq!(outcome(tree.copy()), Outcome::Invalid);
    }
}
