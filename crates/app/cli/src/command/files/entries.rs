//! Complete directory listings, including links and names that are not UTF-8.
//!
//! `fs/walk` returns exact names but omits links to files; `fs/readDirectory` has those, but not
//! the bytes of names that are not UTF-8. The union is nearly complete. Not here: dangling links,
//! which neither of them lists.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use exec_env::filesystem::{ExecutorFileSystem, FileError};
use exec_wire::{
    fs::{self as wire_fs, ReadDirectory, WalkError, WalkOptions, WalkTree},
    limits,
    path_uri::PathUri,
};
use futures_util::future::join;

use crate::command::files::{child_path, display_path, is_file_name, retry_disconnected};

/// Entries of a directory.
#[derive(Debug, Default)]
pub(crate) struct DirectoryListing {
    /// Sorted by name.
    pub(crate) entries: Vec<ListedEntry>,
    /// Entries that could not be read, or have impossible names.
    pub(crate) errors: Vec<WalkError>,
    /// Whether there are more entries than can be listed.
    pub(crate) truncated: bool,
}

/// One directory entry.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ListedEntry {
    /// Bytes of the name.
    pub(crate) name: Vec<u8>,
    /// Full path.
    pub(crate) path: PathUri,
    /// Type, after following links.
    pub(crate) kind: ListedEntryKind,
}

/// Type of a directory entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ListedEntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A pipe, a socket or a device.
    Other,
    /// Dangling link.
    DanglingLink,
}

/// Lists a directory of an environment.
pub(crate) async fn entries(
    files: &dyn ExecutorFileSystem,
    directory: &PathUri,
) -> Result<DirectoryListing, FileError> {
    let walk = WalkTree {
        path: directory.clone(),
        options: WalkOptions {
            max_depth: 0,
            max_directories: 1,
            max_entries: limits::MAX_WALK_ENTRIES,
            follow_directory_symlinks: true,
            prune_hidden_directories: false,
        },
        sandbox: None,
    };
    let read = ReadDirectory {
        path: directory.clone(),
        sandbox: None,
    };
    let walked = retry_disconnected(|| files.walk(walk.clone()));
    let listed = retry_disconnected(|| files.read_directory(read.clone()));
    let (walked, listed) = join(walked, listed).await;
    let walked = walked?;
    let listed = match listed {
        // Servers limit the listing; the walk has its beginning.
        Err(FileError::Host(_)) if walked.truncated => None,
        listed => Some(listed?),
    };
    // A complete listing lacks only names that are not UTF-8.
    let mut is_complete = listed.is_some();
    let (mut found, mut errors) = (BTreeMap::new(), walked.errors);
    let mut check_name = |name: &[u8]| {
        let is_valid = is_file_name(name);
        if !is_valid {
            let displayed = String::from_utf8_lossy(name);
            errors.push(WalkError {
                path: directory.clone(),
                message: format!(
                    "`{}` contains `{displayed}`, which is not a file name",
                    display_path(directory)
                ),
            });
        }
        is_valid
    };
    for entry in walked.entries {
        let name = entry.path.file_name().unwrap_or_default();
        if !check_name(&name) {
            continue;
        }
        let kind = match entry.kind {
            wire_fs::EntryKind::File => ListedEntryKind::File,
            wire_fs::EntryKind::Directory => ListedEntryKind::Directory,
        };
        found.insert(name, (entry.path, kind));
    }
    for entry in listed.into_iter().flatten() {
        // The walk has the names that are not UTF-8.
        let name = entry.file_name.into_bytes();
        let has_replacement = is_replaced(&name);
        is_complete &= !has_replacement;
        let is_listed = has_replacement || found.contains_key(&name) || !check_name(&name);
        let Some(path) = child_path(directory, &name).filter(|_| !is_listed) else {
            continue;
        };
        let kind = match (entry.is_file, entry.is_directory) {
            (true, _) => ListedEntryKind::File,
            (_, true) => ListedEntryKind::Directory,
            (false, false) => ListedEntryKind::Other,
        };
        found.insert(name, (path, kind));
    }
    Ok(DirectoryListing {
        entries: found
            .into_iter()
            .map(|(name, (path, kind))| ListedEntry { name, path, kind })
            .collect(),
        errors,
        truncated: walked.truncated && !is_complete,
    })
}

/// Returns whether a name may contain replacement characters.
fn is_replaced(name: &[u8]) -> bool {
    name.windows(REPLACEMENT.len())
        .any(|part| part == REPLACEMENT)
}

/// U+FFFD in UTF-8.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Maximum entries of a local directory: all names are held in memory.
const MAX_ENTRIES: usize = 4_000_000;

/// Lists a local directory.
pub(crate) async fn list_local_directory(
    directory: PathBuf,
) -> Result<DirectoryListing, FileError> {
    let listed = tokio::task::spawn_blocking(move || list(&directory)).await;
    listed.map_err(|error| FileError::Host(error.to_string()))?
}

fn list(directory: &Path) -> Result<DirectoryListing, FileError> {
    let failed = |error: io::Error| {
        let text = format!("cannot list `{}`: {error}", directory.display());
        match error.kind() == io::ErrorKind::NotFound {
            true => FileError::NotFound(text),
            false => FileError::Host(text),
        }
    };
    let mut found = DirectoryListing::default();
    for entry in fs::read_dir(directory).map_err(failed)? {
        if found.entries.len() == MAX_ENTRIES {
            found.truncated = true;
            break;
        }
        let entry = entry.map_err(failed)?;
        let kind = kind(&entry).map_err(failed)?;
        let Ok(path) = PathUri::from_native(&entry.path()) else {
            continue;
        };
        let name = entry.file_name().into_vec();
        found.entries.push(ListedEntry { name, path, kind });
    }
    found
        .entries
        .sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Returns the type of an entry, after following links.
fn kind(entry: &fs::DirEntry) -> io::Result<ListedEntryKind> {
    let of = |kind: fs::FileType| match (kind.is_file(), kind.is_dir()) {
        (true, _) => ListedEntryKind::File,
        (_, true) => ListedEntryKind::Directory,
        (false, false) => ListedEntryKind::Other,
    };
    let kind = entry.file_type()?;
    if !kind.is_symlink() {
        return Ok(of(kind));
    }
    Ok(match fs::metadata(entry.path()) {
        Ok(found) => of(found.file_type()),
        Err(_) => ListedEntryKind::DanglingLink,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn local_listing_has_no_server_limit() {
        let directory = tempfile::tempdir().unwrap();
        let count = exec_wire::limits::MAX_DIRECTORY_ENTRIES + 1;
        for number in 0..count {
            fs::write(directory.path().join(number.to_string()), "").unwrap();
        }
        let found = list_local_directory(directory.path().to_owned())
            .await
            .unwrap();
        assert_eq!((found.entries.len(), found.truncated), (count, false));
    }

    #[tokio::test]
    async fn links_have_the_type_of_their_target_or_are_dangling() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "").unwrap();
        for (link, to) in [("a", "file"), ("b", "."), ("c", "none"), ("d", "d")] {
            symlink(to, at(link)).unwrap();
        }
        let found = list_local_directory(directory.path().to_owned())
            .await
            .unwrap();
        let kinds: Vec<_> = found.entries.iter().map(|entry| entry.kind).collect();
        let expected = [
            ListedEntryKind::File,
            ListedEntryKind::Directory,
            ListedEntryKind::DanglingLink,
            ListedEntryKind::DanglingLink,
            ListedEntryKind::File,
        ];
        assert_eq!(kinds, expected);
    }
}
