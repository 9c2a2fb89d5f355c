//! Copies a file, a link or a tree: content and permission bits, not times or owners.
//!
//! Content is copied between descriptors, in blocks. The directories of a tree are open while their
//! entries are copied, so a directory that is swapped for a link does not redirect the copy.

#[cfg(test)]
mod tests;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use exec_env::filesystem::FileError;
use exec_wire::fs::CopyPath;
use rustix::{
    fd::{BorrowedFd, OwnedFd},
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, ftruncate, mkdirat, readlinkat, statat,
        symlinkat,
    },
    io::Errno,
};

use crate::{
    CancelFlag,
    directory::{self, DirectoryNames, DirectoryStack, InodeId},
    host_path::{host_error, invalid_request, native_path, partial_write_error},
    regular_file::{READ_FLAGS, RegularFile, WRITE_FLAGS, copied_mode},
    resolve::{self, EntryLocation, LinkPolicy},
};

/// Copies a path. A link as last component is copied itself. Files are overwritten, directories
/// merged. In a tree, special files and files that disappear meanwhile are skipped.
///
/// # Errors
/// Fails at the first entry that cannot be copied; earlier copies stay. Nothing is copied onto or
/// into itself.
pub fn copy(copy: &CopyPath, stop: &CancelFlag) -> Result<(), FileError> {
    let source = native_path(&copy.source_path)?;
    let destination = native_path(&copy.destination_path)?;
    let host_error = |error| host_error("copy", &source, error);
    let location = EntryLocation::open_parent(&source, LinkPolicy::Follow).map_err(host_error)?;
    let from = CopyEndpoint {
        directory: location.directory(),
        name: location.name(),
        path: &source,
    };
    let to = CopyEndpoint {
        directory: CWD,
        name: destination.as_os_str(),
        path: &destination,
    };
    let named = statat(from.directory, from.name, AtFlags::SYMLINK_NOFOLLOW).map_err(host_error)?;
    let kind = FileType::from_raw_mode(named.st_mode);
    if kind.is_dir() {
        if !copy.recursive {
            return Err(FileError::Invalid(NEEDS_RECURSIVE.to_owned()));
        }
        let directory = resolve::directory_at(from.directory, from.name).map_err(host_error)?;
        return copy_directory(directory, &source, &destination, stop);
    }
    match copy_entry(kind, &from, &to, stop)? {
        CopyOutcome::Copied => Ok(()),
        CopyOutcome::Gone => Err(host_error(Errno::NOENT)),
        CopyOutcome::Special => Err(FileError::Invalid(SPECIAL_FILE.to_owned())),
    }
}

// Texts of the stock server, which its clients compare.
const NEEDS_RECURSIVE: &str = "fs/copy requires recursive: true when sourcePath is a directory";
const SPECIAL_FILE: &str = "fs/copy only supports regular files, directories, and symlinks";
const INTO_ITSELF: &str = "fs/copy cannot copy a directory to itself or one of its descendants";

fn copy_directory(
    directory: OwnedFd,
    source: &Path,
    destination: &Path,
    stop: &CancelFlag,
) -> Result<(), FileError> {
    let stat = fstat(&directory).map_err(|error| host_error("copy", source, error))?;
    let write = |error| host_error("copy to", destination, error);
    if is_at_or_below(
        open_nearest_ancestor(destination).map_err(write)?,
        InodeId::from(&stat),
    )
    .map_err(write)?
    {
        return Err(FileError::Invalid(INTO_ITSELF.to_owned()));
    }
    let created = open_or_create_directory(destination, directory_mode(&stat)).map_err(write)?;
    TreeCopy::new((directory, source), (created, destination), stop)?.copy()
}

/// Opens the directory, or its nearest existing ancestor.
fn open_nearest_ancestor(path: &Path) -> rustix::io::Result<OwnedFd> {
    for ancestor in path.ancestors() {
        match resolve::directory(ancestor, LinkPolicy::Follow) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
    }
    Err(Errno::NOENT)
}

/// Returns whether a directory is `other`, or lies below it.
fn is_at_or_below(mut directory: OwnedFd, other: InodeId) -> rustix::io::Result<bool> {
    let mut identity = InodeId::of(&directory)?;
    while identity != other {
        directory = resolve::open_at(&directory, "..", resolve::BASE_FLAGS, Mode::empty())?;
        let above = InodeId::of(&directory)?;
        if above == identity {
            // Only the root is its own parent.
            return Ok(false);
        }
        identity = above;
    }
    Ok(true)
}

/// Opens the destination, creating it and its ancestors if missing.
fn open_or_create_directory(path: &Path, mode: Mode) -> rustix::io::Result<OwnedFd> {
    match resolve::directory(path, LinkPolicy::Follow) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    if let Some(above) = path.parent() {
        resolve::open_or_create_directory(above, LinkPolicy::Follow)?;
    }
    resolve::create_directory_at(CWD, path, resolve::BASE_FLAGS, mode)
}

/// Source or destination of a copy.
#[derive(Clone, Copy, Debug)]
struct CopyEndpoint<'a> {
    directory: BorrowedFd<'a>,
    name: &'a OsStr,
    /// The path as named in errors.
    path: &'a Path,
}

/// Result of copying one entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CopyOutcome {
    /// The entry was copied.
    Copied,
    /// The source no longer exists.
    Gone,
    /// A socket, a FIFO or a device, which is not copied.
    Special,
}

/// Copies a regular file or a link.
fn copy_entry(
    kind: FileType,
    from: &CopyEndpoint<'_>,
    to: &CopyEndpoint<'_>,
    stop: &CancelFlag,
) -> Result<CopyOutcome, FileError> {
    if kind.is_file() {
        copy_file(from, to, stop)
    } else if kind.is_symlink() {
        copy_link(from, to)
    } else {
        Ok(CopyOutcome::Special)
    }
}

/// Copies a regular file. Follows a link at the end of `to`, but not at the end of `from`.
fn copy_file(
    from: &CopyEndpoint<'_>,
    to: &CopyEndpoint<'_>,
    stop: &CancelFlag,
) -> Result<CopyOutcome, FileError> {
    let copy = |error| host_error("copy", from.path, error);
    let flags = READ_FLAGS | OFlags::NOFOLLOW;
    let source = match resolve::open_at(from.directory, from.name, flags, Mode::empty()) {
        Ok(source) => File::from(source),
        Err(Errno::NOENT) => return Ok(CopyOutcome::Gone),
        Err(Errno::NXIO) => return Ok(CopyOutcome::Special),
        Err(error) => return Err(copy(error)),
    };
    let stat = fstat(&source).map_err(copy)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind.is_dir() {
        return Err(copy(Errno::ISDIR));
    }
    if !kind.is_file() {
        return Ok(CopyOutcome::Special);
    }

    let bits = Mode::from_raw_mode(stat.st_mode) & Mode::from_raw_mode(0o777);
    let opened = resolve::open_at(to.directory, to.name, WRITE_FLAGS, bits);
    let destination = RegularFile::to_write(opened, to.path)?;
    if InodeId::from(&stat) == InodeId::from(&destination.stat) {
        let reason = format!("`{}` is the same file", to.path.display());
        return Err(invalid_request("copy", from.path, reason));
    }
    let mode = copied_mode(&stat, &destination.stat);
    let write = |error| host_error("write", to.path, error);
    destination.set_mode(mode).map_err(write)?;
    ftruncate(&destination.file, 0).map_err(write)?;
    fill(&source, &destination.file, to.path, stop)?;
    destination.restore_mode(mode).map_err(write)?;
    Ok(CopyOutcome::Copied)
}

/// Creates a link with the same target.
fn copy_link(from: &CopyEndpoint<'_>, to: &CopyEndpoint<'_>) -> Result<CopyOutcome, FileError> {
    let text = match readlinkat(from.directory, from.name, Vec::new()) {
        Ok(text) => text,
        Err(Errno::NOENT) => return Ok(CopyOutcome::Gone),
        Err(error) => return Err(host_error("copy", from.path, error)),
    };
    symlinkat(&text, to.directory, to.name)
        .map_err(|error| host_error("create", to.path, error))?;
    Ok(CopyOutcome::Copied)
}

fn fill(
    source: &File,
    destination: &File,
    path: &Path,
    stop: &CancelFlag,
) -> Result<(), FileError> {
    loop {
        stop.check()?;
        // For files, the kernel copies by itself, or shares the blocks, if it can.
        let copied = io::copy(&mut source.take(BLOCK_BYTES), &mut &*destination)
            .map_err(|error| partial_write_error(path, error))?;
        if copied == 0 {
            return Ok(());
        }
    }
}

/// Bytes copied between two checks for cancellation.
const BLOCK_BYTES: u64 = 16 << 20;

/// A copy in progress: source and destination tree side by side.
#[derive(Debug)]
struct TreeCopy<'a> {
    source: TreeSide,
    destination: TreeSide,
    /// The destination's root. It is never entered as part of the source, even if it is moved
    /// there.
    top: InodeId,
    stop: &'a CancelFlag,
}

impl<'a> TreeCopy<'a> {
    /// Starts at two existing directories.
    fn new(
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
    fn copy(mut self) -> Result<(), FileError> {
        let mut levels = vec![self.copy_files()?];
        while let Some(directories) = levels.last_mut() {
            self.stop.check()?;
            if let Some(name) = directories.pop() {
                if self.enter(&name)? {
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
        let listing = match DirectoryNames::of(self.source.current()) {
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
        copy_entry(kind, &from, &to, self.stop).map(drop)
    }

    /// Enters a directory on both sides. Returns false if the source directory is gone.
    fn enter(&mut self, name: &OsStr) -> Result<bool, FileError> {
        let path = self.source.path.join(name);
        let source = match resolve::directory_at(self.source.current(), name) {
            Ok(source) => source,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(host_error("copy", &path, error)),
        };
        let stat = fstat(&source).map_err(|error| host_error("copy", &path, error))?;
        if InodeId::from(&stat) == self.top {
            return Err(invalid_request("copy", &path, "it is the destination"));
        }
        let destination = self.destination_directory(name, directory_mode(&stat))?;
        self.source.enter(source, name)?;
        self.destination.enter(destination, name)?;
        Ok(true)
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
fn directory_mode(source: &Stat) -> Mode {
    Mode::from_raw_mode(source.st_mode) & Mode::from_raw_mode(0o777) | Mode::RWXU
}
