//! Writes whole files: in place, or by a new file that replaces the old one atomically.
//!
//! After a replacement, readers see the old content or the new. The new file keeps the permission
//! bits of the old one and, where permitted, its owner. Hard links, extended attributes and open
//! descriptors stay with the old file. The content is synced before the rename, so after a crash
//! the file has the old or the new content, too.

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
    host_path::{host_error, native_path, not_a_file, partial_write_error},
    metadata::permissions,
    regular_file::{NEW_FILE_MODE, RegularFile, WRITE_FLAGS, copied_mode},
    resolve::{self, EntryLocation, LinkPolicy},
};

/// Creates a file or replaces its content. Ignores the data field of `write`.
///
/// # Errors
/// Fails if the path cannot be written, or is not a regular file. Nothing has changed then, unless
/// the error says otherwise.
pub fn write_file(write: &WriteFile, data: &[u8]) -> Result<(), FileError> {
    let path = native_path(&write.path)?;
    let mode = permissions("write", &path, write.mode)?;
    let target = WriteTarget {
        links: LinkPolicy::from_request(write.follow_symlinks),
        create_parents: write.create_parents,
        mode,
        path,
    };
    if write.atomic {
        replace(&target, data)
    } else {
        overwrite(&target, data)
    }
}

/// The target of a write, and its options.
#[derive(Debug)]
pub(crate) struct WriteTarget {
    pub(crate) path: PathBuf,
    pub(crate) links: LinkPolicy,
    pub(crate) create_parents: bool,
    pub(crate) mode: Option<Mode>,
}

impl WriteTarget {
    /// Calls `open`, and again after creating missing parent directories.
    pub(crate) fn with_parents<T>(
        &self,
        open: impl Fn() -> io::Result<T>,
    ) -> Result<io::Result<T>, FileError> {
        match (open(), self.path.parent()) {
            (Err(Errno::NOENT), Some(above)) if self.create_parents => {
                resolve::open_or_create_directory(above, self.links)
                    .map_err(|error| host_error("create directory", above, error))?;
                Ok(open())
            }
            (opened, _) => Ok(opened),
        }
    }

    fn open(&self) -> io::Result<OwnedFd> {
        // A user who may not read the final file must not be able to open it before.
        let mode = self.mode.unwrap_or(NEW_FILE_MODE) & Mode::from_raw_mode(0o777);
        resolve::open(&self.path, self.links, WRITE_FLAGS, mode)
    }
}

fn overwrite(target: &WriteTarget, data: &[u8]) -> Result<(), FileError> {
    let path = &target.path;
    let opened = RegularFile::to_write(target.with_parents(|| target.open())?, path)?;
    if let Some(mode) = target.mode {
        opened
            .set_mode(mode)
            .map_err(|error| host_error("set the mode of", path, error))?;
    }
    // Not truncated first: some file systems (ext4) treat truncating and writing as a replacement
    // and sync the file on close, which is far slower than the write itself.
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

/// Replaces the file. A failure leaves the old file, and nothing else.
pub(crate) fn replace(target: &WriteTarget, data: &[u8]) -> Result<(), FileError> {
    let path = &target.path;
    let write = |error: Errno| host_error("write", path, error);
    let location = target
        .with_parents(|| EntryLocation::open_parent(path, target.links))?
        .map_err(write)?;
    let location = match target.links {
        LinkPolicy::Follow => follow_final_links(location).map_err(write)?,
        LinkPolicy::Refuse => location,
    };
    let old = check_replaceable(&location, path)?;

    let mode = match (target.mode, &old) {
        (None, None) => NEW_FILE_MODE,
        // A user who may not read the final file must not be able to open it before.
        _ => Mode::RUSR | Mode::WUSR,
    };
    let new = TemporaryFile::create(&location, mode).map_err(write)?;
    (&new.file)
        .write_all(data)
        .map_err(|error| host_error("write", path, error))?;
    new.finish(target.mode, old.as_ref()).map_err(write)?;
    new.rename_into_place().map_err(write)
}

/// Follows links at the end of a path, even if the last one is dangling.
fn follow_final_links(mut location: EntryLocation) -> io::Result<EntryLocation> {
    for _ in 0..MAX_LINKS {
        let target = match readlinkat(location.directory(), location.name(), Vec::new()) {
            Ok(target) => OsString::from_vec(target.into_bytes()),
            // Not a link, or it does not exist.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(location),
            Err(error) => return Err(error),
        };
        location = follow_link(&location, &target)?;
    }
    Err(Errno::LOOP)
}

fn follow_link(location: &EntryLocation, target: &OsStr) -> io::Result<EntryLocation> {
    let bytes = target.as_bytes();
    let path = Path::new(target);
    let name = match path.file_name() {
        Some(name) if !bytes.ends_with(b"/") && !bytes.ends_with(b"/.") => name,
        // Only a directory can have such a path.
        _ => return Err(Errno::ISDIR),
    };
    let above = match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    let flags = resolve::BASE_FLAGS;
    let directory = resolve::open_at(location.directory(), above, flags, Mode::empty())?;
    Ok(EntryLocation::new(directory, name))
}

/// Returns the metadata of the old file, if it exists and is writable.
fn check_replaceable(location: &EntryLocation, path: &Path) -> Result<Option<Stat>, FileError> {
    let (directory, name) = (location.directory(), location.name());
    let old = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(old) => old,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(host_error("write", path, error)),
    };
    let kind = FileType::from_raw_mode(old.st_mode);
    if kind.is_dir() {
        return Err(host_error("write", path, Errno::ISDIR));
    }
    if kind.is_symlink() {
        return Err(host_error("write", path, Errno::LOOP));
    }
    if !kind.is_file() {
        return Err(not_a_file(path));
    }
    // Renaming needs write permission on the directory only; also require it on the file.
    accessat(directory, name, Access::WRITE_OK, AtFlags::empty())
        .map_err(|error| host_error("write", path, error))?;
    Ok(Some(old))
}

/// A temporary file beside the one it replaces. Removed on drop, unless it was renamed.
#[derive(Debug)]
struct TemporaryFile<'a> {
    location: &'a EntryLocation,
    file: File,
    name: Option<OsString>,
}

impl<'a> TemporaryFile<'a> {
    fn create(location: &'a EntryLocation, mode: Mode) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let open = |name: &OsStr| resolve::open_at(location.directory(), name, flags, mode);
        let (name, file) = with_temporary_name(open)?;
        Ok(Self {
            location,
            file: File::from(file),
            name: Some(name),
        })
    }

    /// Applies the mode and owner of the old file, or the requested mode, and syncs.
    fn finish(&self, mode: Option<Mode>, old: Option<&Stat>) -> io::Result<()> {
        if let Some(old) = old {
            self.copy_owner(old)?;
        }
        let mode = match (mode, old) {
            (Some(mode), _) => Some(mode),
            (None, Some(old)) => Some(copied_mode(old, &fstat(&self.file)?)),
            (None, None) => None,
        };
        if let Some(mode) = mode {
            fchmod(&self.file, mode)?;
        }
        match fsync(&self.file) {
            // The file system does not support syncing.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(()),
            synced => synced,
        }
    }

    fn copy_owner(&self, old: &Stat) -> io::Result<()> {
        let new = fstat(&self.file)?;
        if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid) {
            return Ok(());
        }
        let (user, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        match fchown(&self.file, Some(user), Some(group)) {
            // Only root may change the owner. The file then belongs to the current user, like a new
            // one.
            Err(Errno::PERM | Errno::INVAL) => Ok(()),
            changed => changed,
        }
    }

    fn rename_into_place(mut self) -> io::Result<()> {
        let directory = self.location.directory();
        if let Some(name) = &self.name {
            renameat(directory, name, directory, self.location.name())?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && let Err(error) = unlinkat(self.location.directory(), name, AtFlags::empty())
        {
            tracing::warn!(%error, ?name, "failed to remove temporary file");
        }
    }
}

/// Creates an entry with an unused name, and returns the name.
pub(crate) fn with_temporary_name<T>(
    create: impl Fn(&OsStr) -> io::Result<T>,
) -> io::Result<(OsString, T)> {
    let mut attempts = 0;
    loop {
        let name = temporary_name();
        match create(&name) {
            Ok(created) => return Ok((name, created)),
            Err(Errno::EXIST) if attempts < MAX_NAMES => attempts += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Returns an unused name. It is short because the file's own name may have the maximum length.
fn temporary_name() -> OsString {
    // Each state has random keys.
    let random = RandomState::new().build_hasher().finish();
    OsString::from(format!(".exec-fs-{random:016x}.tmp"))
}

/// Most links that are followed, as in the kernel.
const MAX_LINKS: usize = 40;
/// Most names that are tried for a temporary file.
const MAX_NAMES: usize = 16;
