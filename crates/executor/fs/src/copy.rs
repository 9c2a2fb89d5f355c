//! Copies a file, a link or a tree: content and permission bits, not times or owners.
//!
//! Content is copied between descriptors, in blocks. The directories of a tree are open while their
//! entries are copied, so a directory that is swapped for a link does not redirect the copy.

#[cfg(test)]
mod tests;
mod tree_copy;

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    path::Path,
};

use exec_env::filesystem::FileError;
use exec_wire::fs::CopyPath;
use rustix::{
    fd::{BorrowedFd, OwnedFd},
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, fstat, ftruncate, mkdirat, readlinkat, statat,
        symlinkat,
    },
    io::Errno,
};

use self::tree_copy::{TreeCopy, directory_mode};
use crate::{
    CancelFlag,
    directory_stack::InodeId,
    host_path::{host_error, invalid_request, native_path, partial_write_error},
    regular_file::{RegularFile, TO_READ, TO_WRITE, carried_mode},
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
    let place = EntryLocation::open_parent(&source, LinkPolicy::Follow).map_err(host_error)?;
    let from = CopyEndpoint {
        directory: place.directory(),
        name: place.name(),
        path: &source,
    };
    let to = CopyEndpoint {
        directory: CWD,
        name: destination.as_os_str(),
        path: &destination,
    };
    let named = statat(from.directory, from.name, AtFlags::SYMLINK_NOFOLLOW).map_err(host_error)?;
    let found = match FileType::from_raw_mode(named.st_mode) {
        FileType::RegularFile => copy_file(&from, &to, stop)?,
        FileType::Symlink => copy_link(&from, &to)?,
        FileType::Directory if !copy.recursive => {
            return Err(FileError::Invalid(NEEDS_RECURSIVE.to_owned()));
        }
        FileType::Directory => {
            let directory = resolve::directory_at(from.directory, from.name).map_err(host_error)?;
            copy_directory(directory, &source, &destination, stop)?;
            CopyOutcome::Copied
        }
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => CopyOutcome::Special,
    };
    match found {
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
    let made = open_or_create_directory(destination, directory_mode(&stat)).map_err(write)?;
    TreeCopy::new((directory, source), (made, destination), stop)?.copy()
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
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        directory = resolve::open_at(&directory, "..", flags, Mode::empty())?;
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
    match (
        mkdirat(CWD, path, mode),
        resolve::directory(path, LinkPolicy::Follow),
    ) {
        // A dangling link.
        (Err(Errno::EXIST), Err(Errno::NOENT)) => Err(Errno::EXIST),
        (Ok(()) | Err(Errno::EXIST), opened) => opened,
        (Err(error), _) => Err(error),
    }
}

/// Source or destination of a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyEndpoint<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// The path as named in errors.
    pub(super) path: &'a Path,
}

/// Result of copying one entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CopyOutcome {
    /// The entry was copied.
    Copied,
    /// The source no longer exists.
    Gone,
    /// A socket, a FIFO or a device, which is not copied.
    Special,
}

/// Copies a regular file. Follows a link at the end of `to`, but not at the end of `from`.
pub(super) fn copy_file(
    from: &CopyEndpoint<'_>,
    to: &CopyEndpoint<'_>,
    stop: &CancelFlag,
) -> Result<CopyOutcome, FileError> {
    let copy = |error| host_error("copy", from.path, error);
    let flags = TO_READ | OFlags::NOFOLLOW;
    let source = match resolve::open_at(from.directory, from.name, flags, Mode::empty()) {
        Ok(source) => File::from(source),
        Err(Errno::NOENT) => return Ok(CopyOutcome::Gone),
        Err(Errno::NXIO) => return Ok(CopyOutcome::Special),
        Err(error) => return Err(copy(error)),
    };
    let stat = fstat(&source).map_err(copy)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(copy(Errno::ISDIR)),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Ok(CopyOutcome::Special),
    }

    let bits = Mode::from_raw_mode(stat.st_mode) & Mode::from_raw_mode(0o777);
    let opened = resolve::open_at(to.directory, to.name, TO_WRITE, bits);
    let destination = RegularFile::to_write(opened, to.path)?;
    if InodeId::from(&stat) == InodeId::from(&destination.stat) {
        let reason = format!("`{}` is the same file", to.path.display());
        return Err(invalid_request("copy", from.path, reason));
    }
    let mode = carried_mode(&stat, &destination.stat);
    let write = |error| host_error("write", to.path, error);
    destination.set_mode(mode).map_err(write)?;
    ftruncate(&destination.file, 0).map_err(write)?;
    fill(&source, &destination.file, to.path, stop)?;
    destination.restore_mode(mode).map_err(write)?;
    Ok(CopyOutcome::Copied)
}

/// Creates a link with the same target.
pub(super) fn copy_link(
    from: &CopyEndpoint<'_>,
    to: &CopyEndpoint<'_>,
) -> Result<CopyOutcome, FileError> {
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
