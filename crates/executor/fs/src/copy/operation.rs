//! What is copied, and whether it can be.

use std::path::Path;

use exec_env::filesystem::FileError;
use exec_wire::fs::Copy;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, mkdirat, statat},
    io::{self, Errno},
};

use super::{
    file::{End, Found, copy_file, copy_link},
    tree::{Tree, directory_mode},
};
use crate::{
    Stop,
    error::failed,
    identity::Identity,
    native::native,
    resolve::{self, Links, Place},
};

/// Copies what a path names; a link at its end is copied itself. Files are overwritten, directories
/// merged. In a tree, special files and what is removed meanwhile are left out.
///
/// # Errors
/// Fails at the first thing that cannot be copied. What was copied before stays. Nothing is copied
/// onto or into itself.
pub fn copy(copy: &Copy, stop: &Stop) -> Result<(), FileError> {
    let source = native(&copy.source_path)?;
    let destination = native(&copy.destination_path)?;
    let failed = |error| failed("copy", &source, error);
    let place = Place::of(&source, Links::Follow).map_err(failed)?;
    let from = End {
        directory: place.directory(),
        name: place.name(),
        path: &source,
    };
    let to = End {
        directory: CWD,
        name: destination.as_os_str(),
        path: &destination,
    };
    let named = statat(from.directory, from.name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    let found = match FileType::from_raw_mode(named.st_mode) {
        FileType::RegularFile => copy_file(&from, &to, stop)?,
        FileType::Symlink => copy_link(&from, &to)?,
        FileType::Directory if !copy.recursive => {
            return Err(FileError::Invalid(NEEDS_RECURSIVE.to_owned()));
        }
        FileType::Directory => {
            let directory = resolve::directory_at(from.directory, from.name).map_err(failed)?;
            copy_directory(directory, &source, &destination, stop)?;
            Found::Copied
        }
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Found::Special,
    };
    match found {
        Found::Copied => Ok(()),
        Found::Gone => Err(failed(Errno::NOENT)),
        Found::Special => Err(FileError::Invalid(SPECIAL_FILE.to_owned())),
    }
}

// The stock server's words: its clients compare them.
const NEEDS_RECURSIVE: &str = "fs/copy requires recursive: true when sourcePath is a directory";
const SPECIAL_FILE: &str = "fs/copy only supports regular files, directories, and symlinks";
const INTO_ITSELF: &str = "fs/copy cannot copy a directory to itself or one of its descendants";

fn copy_directory(
    directory: OwnedFd,
    source: &Path,
    destination: &Path,
    stop: &Stop,
) -> Result<(), FileError> {
    let stat = fstat(&directory).map_err(|error| failed("copy", source, error))?;
    let write = |error| failed("copy to", destination, error);
    if is_within(nearest(destination).map_err(write)?, Identity::from(&stat)).map_err(write)? {
        return Err(FileError::Invalid(INTO_ITSELF.to_owned()));
    }
    let made = made_directory(destination, directory_mode(&stat)).map_err(write)?;
    Tree::new((directory, source), (made, destination), stop)?.copy()
}

/// Opens the directory, or the nearest above it that exists.
fn nearest(path: &Path) -> io::Result<OwnedFd> {
    for ancestor in path.ancestors() {
        match resolve::directory(ancestor, Links::Follow) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
    }
    Err(Errno::NOENT)
}

/// Tells whether a directory is another, or somewhere below it.
fn is_within(mut directory: OwnedFd, other: Identity) -> io::Result<bool> {
    let mut identity = Identity::of(&directory)?;
    while identity != other {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        directory = resolve::open_at(&directory, "..", flags, Mode::empty())?;
        let above = Identity::of(&directory)?;
        if above == identity {
            // Only the root is above itself.
            return Ok(false);
        }
        identity = above;
    }
    Ok(true)
}

/// Opens the destination; makes it and those above it where they are missing.
fn made_directory(path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    match resolve::directory(path, Links::Follow) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    if let Some(above) = path.parent() {
        resolve::made_directory(above, Links::Follow)?;
    }
    match (
        mkdirat(CWD, path, mode),
        resolve::directory(path, Links::Follow),
    ) {
        // A link that leads nowhere.
        (Err(Errno::EXIST), Err(Errno::NOENT)) => Err(Errno::EXIST),
        (Ok(()) | Err(Errno::EXIST), opened) => opened,
        (Err(error), _) => Err(error),
    }
}
