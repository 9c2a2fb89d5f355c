//! Whole files, written at once: in place, or by a new file that takes the old one's name.

#[cfg(test)]
mod replace_tests;
#[cfg(test)]
mod tests;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io::Write,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use exec_env::filesystem::FileError;
use exec_wire::fs::WriteFile;
use rustix::{
    fd::OwnedFd,
    fs::{
        Access, AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, accessat, fchmod, fchown, fstat,
        fsync, readlinkat, renameat, statat, unlinkat,
    },
    io::{self, Errno},
};

use crate::{
    host_path::{host_error, invalid_request, native_path, not_a_file, partial_write_error},
    regular_file::{NEW_FILE, RegularFile, TO_WRITE, carried_mode},
    resolve::{self, EntryLocation, LinkPolicy},
};

/// Creates a file or replaces what it holds. The data member of `write` is not looked at.
///
/// # Errors
/// Fails if the path cannot be written, or names something else than a regular file. Nothing has
/// changed then, unless the error says otherwise.
pub fn write_file(write: &WriteFile, data: &[u8]) -> Result<(), FileError> {
    let path = native_path(&write.path)?;
    let mode = permissions(&path, write.mode)?;
    let target = WriteTarget {
        links: LinkPolicy::from_request(write.follow_symlinks),
        parents: if write.create_parents {
            ParentPolicy::Make
        } else {
            ParentPolicy::Expect
        },
        mode,
        path,
    };
    if write.atomic {
        replace(&target, data)
    } else {
        overwrite(&target, data)
    }
}

/// What is written to, and how.
#[derive(Debug)]
pub(crate) struct WriteTarget {
    pub(crate) path: PathBuf,
    pub(crate) links: LinkPolicy,
    pub(crate) parents: ParentPolicy,
    pub(crate) mode: Option<Mode>,
}

impl WriteTarget {
    /// Tries `open`, and again after making the directories above the file if they are missing.
    pub(crate) fn with_parents<T>(
        &self,
        open: impl Fn() -> io::Result<T>,
    ) -> Result<io::Result<T>, FileError> {
        match (open(), self.path.parent()) {
            (Err(Errno::NOENT), Some(above)) if self.parents == ParentPolicy::Make => {
                resolve::open_or_create_directory(above, self.links)
                    .map_err(|error| host_error("create directory", above, error))?;
                Ok(open())
            }
            (opened, _) => Ok(opened),
        }
    }

    fn open(&self) -> io::Result<OwnedFd> {
        // Whoever may not read it in the end must not be able to open it in between.
        let mode = self.mode.unwrap_or(NEW_FILE) & Mode::from_raw_mode(0o777);
        resolve::open(&self.path, self.links, TO_WRITE, mode)
    }
}

/// What becomes of missing directories above a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ParentPolicy {
    /// They are made.
    Make,
    /// It is an error.
    Expect,
}

fn overwrite(target: &WriteTarget, data: &[u8]) -> Result<(), FileError> {
    let path = &target.path;
    let opened = RegularFile::to_write(target.with_parents(|| target.open())?, path)?;
    if let Some(mode) = target.mode {
        opened
            .set_mode(mode)
            .map_err(|error| host_error("set the mode of", path, error))?;
    }
    // Not emptied first: some file systems (ext4) take emptying and writing for a replacement, and
    // bring it to the disk when the file is closed, which takes much longer than all the rest.
    let length = data.len() as u64;
    (&opened.file)
        .write_all(data)
        .and_then(|()| {
            if opened.size() > length {
                opened.file.set_len(length)?;
            }
            Ok(())
        })
        .map_err(|error| partial_write_error(path, error))?;
    if let Some(mode) = target.mode {
        opened
            .restore_mode(mode)
            .map_err(|error| host_error("set the mode of", path, error))?;
    }
    Ok(())
}

fn permissions(path: &Path, mode: Option<u32>) -> Result<Option<Mode>, FileError> {
    let Some(mode) = mode else {
        return Ok(None);
    };
    if mode & !0o7777 != 0 {
        let reason = format!("mode {mode:#o} has more than permission bits");
        return Err(invalid_request("write", path, reason));
    }
    Ok(Some(Mode::from_raw_mode(mode)))
}

/// Replaces the file. A failure leaves the old one, and nothing else.
pub(crate) fn replace(target: &WriteTarget, data: &[u8]) -> Result<(), FileError> {
    let path = &target.path;
    let write = |error: Errno| host_error("write", path, error);
    let place = target
        .with_parents(|| EntryLocation::open_parent(path, target.links))?
        .map_err(write)?;
    let place = match target.links {
        LinkPolicy::Follow => behind_links(place).map_err(write)?,
        LinkPolicy::Refuse => place,
    };
    let old = replaceable(&place, path)?;

    let mode = match (target.mode, &old) {
        (None, None) => NEW_FILE,
        // Whoever may not read it in the end must not be able to open it in between.
        _ => Mode::RUSR | Mode::WUSR,
    };
    let new = TemporaryFile::create(&place, mode).map_err(write)?;
    (&new.file)
        .write_all(data)
        .map_err(|error| host_error("write", path, error))?;
    new.finish(target.mode, old.as_ref()).map_err(write)?;
    new.take_name().map_err(write)
}

/// Follows a link at the end of the way, and those behind it, even if the last leads to no file yet.
fn behind_links(mut place: EntryLocation) -> io::Result<EntryLocation> {
    for _ in 0..MAX_LINKS {
        let target = match readlinkat(place.directory(), place.name(), Vec::new()) {
            Ok(target) => OsString::from_vec(target.into_bytes()),
            // It is no link, or nothing.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(place),
            Err(error) => return Err(error),
        };
        place = step(&place, &target)?;
    }
    Err(Errno::LOOP)
}

fn step(place: &EntryLocation, target: &OsStr) -> io::Result<EntryLocation> {
    let bytes = target.as_bytes();
    let path = Path::new(target);
    let name = match path.file_name() {
        Some(name) if !bytes.ends_with(b"/") && !bytes.ends_with(b"/.") => name,
        // Only a directory can be named like this.
        _ => return Err(Errno::ISDIR),
    };
    let above = match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let directory = resolve::open_at(place.directory(), above, flags, Mode::empty())?;
    Ok(EntryLocation::new(directory, name))
}

/// Returns what is known of the old file, if there is one that may be written.
fn replaceable(place: &EntryLocation, path: &Path) -> Result<Option<Stat>, FileError> {
    let (directory, name) = (place.directory(), place.name());
    let old = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(old) => old,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(host_error("write", path, error)),
    };
    match FileType::from_raw_mode(old.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(host_error("write", path, Errno::ISDIR)),
        FileType::Symlink => return Err(host_error("write", path, Errno::LOOP)),
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Err(not_a_file(path)),
    }
    // The name is the directory's, but who may not write the file does not get around that here.
    accessat(directory, name, Access::WRITE_OK, AtFlags::empty())
        .map_err(|error| host_error("write", path, error))?;
    Ok(Some(old))
}

/// A new file beside the one it will replace. It is removed unless it has taken that one's name.
#[derive(Debug)]
struct TemporaryFile<'a> {
    place: &'a EntryLocation,
    file: File,
    name: Option<OsString>,
}

impl<'a> TemporaryFile<'a> {
    fn create(place: &'a EntryLocation, mode: Mode) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mut attempts = 0;
        loop {
            let name = temporary_name();
            match resolve::open_at(place.directory(), name.as_os_str(), flags, mode) {
                Ok(file) => {
                    return Ok(Self {
                        place,
                        file: File::from(file),
                        name: Some(name),
                    });
                }
                Err(Errno::EXIST) if attempts < MAX_NAMES => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes it what the old file was, or what was asked for.
    fn finish(&self, mode: Option<Mode>, old: Option<&Stat>) -> io::Result<()> {
        if let Some(old) = old {
            self.give_to_owner(old)?;
        }
        let mode = match (mode, old) {
            (Some(mode), _) => Some(mode),
            (None, Some(old)) => Some(carried_mode(old, &fstat(&self.file)?)),
            (None, None) => None,
        };
        if let Some(mode) = mode {
            fchmod(&self.file, mode)?;
        }
        match fsync(&self.file) {
            // The filesystem has nothing to which it could be brought.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(()),
            synced => synced,
        }
    }

    fn give_to_owner(&self, old: &Stat) -> io::Result<()> {
        let new = fstat(&self.file)?;
        if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid) {
            return Ok(());
        }
        let (user, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        match fchown(&self.file, Some(user), Some(group)) {
            // Only root may give files away. The file is ours then, as if it were new.
            Err(Errno::PERM | Errno::INVAL) => Ok(()),
            given => given,
        }
    }

    fn take_name(mut self) -> io::Result<()> {
        let directory = self.place.directory();
        if let Some(name) = &self.name {
            renameat(directory, name, directory, self.place.name())?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && let Err(error) = unlinkat(self.place.directory(), name, AtFlags::empty())
        {
            tracing::warn!(%error, ?name, "temporary file is left behind");
        }
    }
}

/// Returns a name that nobody has: short, because the file's own name may be as long as names can be.
fn temporary_name() -> OsString {
    // Each state has keys of its own, from the system's randomness.
    let random = RandomState::new().build_hasher().finish();
    OsString::from(format!(".exec-fs-{random:016x}.tmp"))
}

/// Links that are followed one after another, as in the kernel.
const MAX_LINKS: usize = 40;
/// Names that are tried for a temporary file.
const MAX_NAMES: usize = 16;
