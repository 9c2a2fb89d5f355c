//! Copies one file or one link.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    path::Path,
};

use exec_env::filesystem::FileError;
use rustix::{
    fd::BorrowedFd,
    fs::{FileType, Mode, OFlags, fstat, ftruncate, readlinkat, symlinkat},
    io::Errno,
};

use crate::{
    Stop,
    error::{failed, half_written, invalid},
    identity::Identity,
    regular::{Regular, TO_READ, TO_WRITE, carried_mode},
    resolve,
};

/// Where something is copied from or to.
#[derive(Clone, Copy, Debug)]
pub(super) struct End<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// What errors call it.
    pub(super) path: &'a Path,
}

/// What was found where something was to be copied from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Found {
    /// It is copied.
    Copied,
    /// Nothing is there any more.
    Gone,
    /// A socket, a FIFO or a device.
    Special,
}

/// Copies a regular file. A link at the end of `to` is followed, one at the end of `from` is not.
pub(super) fn copy_file(from: &End<'_>, to: &End<'_>, stop: &Stop) -> Result<Found, FileError> {
    let copy = |error| failed("copy", from.path, error);
    let flags = TO_READ | OFlags::NOFOLLOW;
    let source = match resolve::open_at(from.directory, from.name, flags, Mode::empty()) {
        Ok(source) => File::from(source),
        Err(Errno::NOENT) => return Ok(Found::Gone),
        Err(Errno::NXIO) => return Ok(Found::Special),
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
        | FileType::Unknown => return Ok(Found::Special),
    }

    let bits = Mode::from_raw_mode(stat.st_mode) & Mode::from_raw_mode(0o777);
    let opened = resolve::open_at(to.directory, to.name, TO_WRITE, bits);
    let destination = Regular::to_write(opened, to.path)?;
    if Identity::from(&stat) == Identity::from(&destination.stat) {
        let reason = format!("`{}` is the same file", to.path.display());
        return Err(invalid("copy", from.path, reason));
    }
    let mode = carried_mode(&stat, &destination.stat);
    let write = |error| failed("write", to.path, error);
    destination.set_mode(mode).map_err(write)?;
    ftruncate(&destination.file, 0).map_err(write)?;
    fill(&source, &destination.file, to.path, stop)?;
    destination.restore_mode(mode).map_err(write)?;
    Ok(Found::Copied)
}

/// Makes a link with the same text.
pub(super) fn copy_link(from: &End<'_>, to: &End<'_>) -> Result<Found, FileError> {
    let text = match readlinkat(from.directory, from.name, Vec::new()) {
        Ok(text) => text,
        Err(Errno::NOENT) => return Ok(Found::Gone),
        Err(error) => return Err(failed("copy", from.path, error)),
    };
    symlinkat(&text, to.directory, to.name).map_err(|error| failed("create", to.path, error))?;
    Ok(Found::Copied)
}

fn fill(source: &File, destination: &File, path: &Path, stop: &Stop) -> Result<(), FileError> {
    loop {
        stop.check()?;
        // Between files the kernel copies by itself, or shares the blocks, if it can.
        let copied = io::copy(&mut source.take(BLOCK_BYTES), &mut &*destination)
            .map_err(|error| half_written(path, error))?;
        if copied == 0 {
            return Ok(());
        }
    }
}

/// What is copied before it is looked whether anybody waits for it.
const BLOCK_BYTES: u64 = 16 << 20;
