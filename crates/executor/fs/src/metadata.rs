//! Metadata and canonical form of a path, without opening the file.

#[cfg(test)]
mod tests;

use std::{fs, path::Path};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{CanonicalizePath, FileMetadata, GetMetadata},
    path_uri::PathUri,
};
use rustix::{
    fs::{AtFlags, CWD, FileType, Statx, StatxFlags, StatxTimestamp, statx},
    io,
};

use crate::{
    host_path::{host_error, invalid_request, native_path, uri},
    resolve::{EntryLocation, LinkPolicy},
};

/// Returns the metadata of a path. Follows a link, and reports that it is one.
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
            let target = statx_path(&path, AtFlags::empty()).map_err(host_error)?;
            Ok(from_statx(&target, true))
        }
        LinkPolicy::Refuse => {
            let named = statx_without_links(&path).map_err(host_error)?;
            if kind(&named) == FileType::Symlink {
                return Err(invalid_request(
                    "look at",
                    &path,
                    "path contains a symbolic link",
                ));
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
    }
}

fn milliseconds(time: &StatxTimestamp) -> i64 {
    let subsecond = i64::from(time.tv_nsec / 1_000_000);
    time.tv_sec.saturating_mul(1000).saturating_add(subsecond)
}

/// The permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// Fields requested from the kernel.
const STATX_FIELDS: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Resolves all links of an existing path.
///
/// # Errors
/// Fails if the path does not exist, or an ancestor cannot be accessed.
pub fn canonicalize(request: &CanonicalizePath) -> Result<PathUri, FileError> {
    let path = native_path(&request.path)?;
    let real = fs::canonicalize(&path).map_err(|error| host_error("resolve", &path, error))?;
    uri(&real)
}
