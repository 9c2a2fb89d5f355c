//! Metadata and canonical form of a path, without opening the file for reading or writing.

#[cfg(test)]
mod tests;

use std::{fs, os::fd::AsRawFd, path::Path};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{CanonicalizePath, FileMetadata, GetMetadata, SetMetadata},
    path_uri::PathUri,
};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, Timespec,
        Timestamps, UTIME_OMIT, chmod, fchmod, readlink, statx, utimensat,
    },
    io::{self, Errno},
};

use crate::{
    host_path::{host_error, invalid_request, link_refused, native_path, uri},
    resolve::{self, EntryLocation, LinkPolicy},
};

/// Returns the metadata of a path. Follows a link, and reports that it is one. With details,
/// returns its target, and describes a dangling link itself.
///
/// # Errors
/// Fails if the path or a link's target does not exist, or cannot be accessed.
pub fn metadata(get: &GetMetadata) -> Result<FileMetadata, FileError> {
    let path = native_path(&get.path)?;
    let host_error = |error| host_error("look at", &path, error);
    match LinkPolicy::from_request(get.follow_symlinks) {
        LinkPolicy::Follow => {
            let named = statx_path(&path, AtFlags::SYMLINK_NOFOLLOW).map_err(host_error)?;
            if kind(&named) != FileType::Symlink {
                return Ok(from_statx(&named, false));
            }
            let found = match statx_path(&path, AtFlags::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if get.details => FileMetadata {
                    mode: None,
                    ..from_statx(&named, true)
                },
                target => from_statx(&target.map_err(host_error)?, true),
            };
            if !get.details {
                return Ok(found);
            }
            let target = readlink(&path, Vec::new()).map_err(host_error)?;
            Ok(found.with_link_target(target.into_bytes()))
        }
        LinkPolicy::Refuse => {
            let named = statx_without_links(&path).map_err(host_error)?;
            if kind(&named) == FileType::Symlink {
                return Err(link_refused("look at", &path));
            }
            Ok(from_statx(&named, false))
        }
    }
}

fn statx_path(path: &Path, flags: AtFlags) -> io::Result<Statx> {
    statx(CWD, path, flags, STATX_FIELDS)
}

fn statx_without_links(path: &Path) -> io::Result<Statx> {
    let location = EntryLocation::open_parent(path, LinkPolicy::Refuse)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    statx(location.directory(), location.name(), flags, STATX_FIELDS)
}

fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// Converts a `statx` record. `is_symlink`: the file was reached through a link.
pub(crate) fn from_statx(stat: &Statx, is_symlink: bool) -> FileMetadata {
    let has_birth_time = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    FileMetadata {
        is_directory: kind(stat) == FileType::Directory,
        is_file: kind(stat) == FileType::RegularFile,
        is_symlink,
        size: stat.stx_size,
        created_at_ms: if has_birth_time {
            milliseconds(&stat.stx_btime)
        } else {
            0
        },
        modified_at_ms: milliseconds(&stat.stx_mtime),
        mode: Some(u32::from(stat.stx_mode) & PERMISSIONS),
        ..FileMetadata::default()
    }
}

fn milliseconds(time: &StatxTimestamp) -> i64 {
    let subsecond = i64::from(time.tv_nsec / 1_000_000);
    time.tv_sec.saturating_mul(1000).saturating_add(subsecond)
}

/// The permission bits of a mode.
pub(crate) const PERMISSIONS: u32 = 0o7777;

/// Fields requested from the kernel.
const STATX_FIELDS: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Sets the mode and the modification time of a path.
///
/// # Errors
/// Rejects a request that sets neither, and a mode with other bits than permissions. Fails if the
/// path does not exist or may not be changed; one of the two may have been set then.
pub fn set_metadata(set: &SetMetadata) -> Result<(), FileError> {
    if (set.mode, set.modified_at_ms) == (None, None) {
        let text = "at least one of mode and modifiedAtMs is needed".to_owned();
        return Err(FileError::Refused(text));
    }
    let path = native_path(&set.path)?;
    let mode = permissions("set the mode of", &path, set.mode)?;
    let changed = match LinkPolicy::from_request(set.follow_symlinks) {
        LinkPolicy::Follow => apply_metadata(&path, mode, set.modified_at_ms),
        LinkPolicy::Refuse => {
            let location = EntryLocation::open_parent(&path, LinkPolicy::Refuse)
                .map_err(|error| host_error("change", &path, error))?;
            match apply_without_links(&location, mode, set.modified_at_ms) {
                Err(Errno::LOOP) => return Err(link_refused("change", &path)),
                changed => changed,
            }
        }
    };
    changed.map_err(|error| host_error("change", &path, error))
}

fn apply_metadata(path: &Path, mode: Option<Mode>, modified_at_ms: Option<i64>) -> io::Result<()> {
    if let Some(modified_at_ms) = modified_at_ms {
        utimensat(CWD, path, &timestamps(modified_at_ms), AtFlags::empty())?;
    }
    match mode {
        Some(mode) => chmod(path, mode),
        None => Ok(()),
    }
}

/// Fails with `ELOOP` for a link. In a race the file that was opened is changed, never the target
/// of a link that replaced it.
fn apply_without_links(
    location: &EntryLocation,
    mode: Option<Mode>,
    modified_at_ms: Option<i64>,
) -> io::Result<()> {
    let (directory, name) = (location.directory(), location.name());
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let file = resolve::open_at(directory, name, flags, Mode::empty())?;
    let kind = kind(&statx(&file, "", AtFlags::EMPTY_PATH, STATX_FIELDS)?);
    if kind == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    if let Some(modified_at_ms) = modified_at_ms {
        let times = timestamps(modified_at_ms);
        utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let Some(mode) = mode else {
        return Ok(());
    };
    // No call sets the mode of a file opened with `O_PATH`. Opening another type of file may have
    // effects.
    if matches!(kind, FileType::RegularFile | FileType::Directory) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        if let Ok(opened) = resolve::open_at(directory, name, flags, Mode::empty()) {
            return fchmod(opened, mode);
        }
    }
    match chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode) {
        // There is no `/proc` in a sandbox.
        Err(Errno::NOENT) => Err(Errno::ACCESS),
        changed => changed,
    }
}

fn timestamps(modified_at_ms: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: modified_at_ms.div_euclid(1000),
            tv_nsec: modified_at_ms.rem_euclid(1000) * 1_000_000,
        },
    }
}

/// Checks the mode of a request.
pub(crate) fn permissions(
    what: &str,
    path: &Path,
    mode: Option<u32>,
) -> Result<Option<Mode>, FileError> {
    let Some(mode) = mode else {
        return Ok(None);
    };
    if mode & !PERMISSIONS != 0 {
        let reason = format!("mode {mode:#o} has more than permission bits");
        return Err(invalid_request(what, path, reason));
    }
    Ok(Some(Mode::from_raw_mode(mode)))
}

/// Resolves all links of an existing path.
///
/// # Errors
/// Fails if the path does not exist, or an ancestor cannot be accessed.
pub fn canonicalize(request: &CanonicalizePath) -> Result<PathUri, FileError> {
    let path = native_path(&request.path)?;
    let real = fs::canonicalize(&path).map_err(|error| host_error("resolve", &path, error))?;
    uri(&real)
}
