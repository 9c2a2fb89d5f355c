//! Complete directory listings, including links and names that are not UTF-8.
//!
//! Our servers list a directory by pages with exact names and link targets. For other servers,
//! `fs/walk` returns exact names but omits links to files; `fs/readDirectory` has those, but not
//! the bytes of names that are not UTF-8. The union lacks only dangling links and link targets.

use std::collections::BTreeMap;

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
    /// Target of a link. `None` if it is not a link, or the server does not report targets.
    pub(crate) link_target: Option<Vec<u8>>,
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

/// Maximum entries of a directory: all names are held in memory.
const MAX_ENTRIES: usize = 4_000_000;

/// Lists a directory.
pub(crate) async fn entries(
    files: &dyn ExecutorFileSystem,
    directory: &PathUri,
) -> Result<DirectoryListing, FileError> {
    match list_pages(files, directory).await {
        // The server does not support pages.
        Err(FileError::Refused(_)) => list_and_walk(files, directory).await,
        listed => listed,
    }
}

async fn list_pages(
    files: &dyn ExecutorFileSystem,
    directory: &PathUri,
) -> Result<DirectoryListing, FileError> {
    let mut read = ReadDirectory {
        details: true,
        ..ReadDirectory::new(directory.clone())
    };
    let (mut found, mut errors) = (BTreeMap::new(), Vec::new());
    let mut received = 0;
    loop {
        let page = retry_disconnected(|| files.read_directory(read.clone())).await?;
        // Empty pages count, too: a server must not keep the client busy for ever.
        received += page.entries.len() + 1;
        for entry in page.entries {
            let name = match &entry.path {
                Some(path) => path.file_name().unwrap_or_default(),
                None => entry.file_name.as_bytes().to_vec(),
            };
            let Some(path) = child_path(directory, &name) else {
                errors.push(invalid_name(directory, &name));
                continue;
            };
            let kind = match (&entry.link_target, entry.mode) {
                (Some(_), None) => ListedEntryKind::DanglingLink,
                (Some(_), Some(_)) | (None, _) => target_kind(&entry),
            };
            let link_target = entry.link_target_bytes().map(<[u8]>::to_vec);
            let entry = ListedEntry {
                name: name.clone(),
                path,
                kind,
                link_target,
            };
            found.insert(name, entry);
        }
        read.cursor = page.next_cursor;
        if read.cursor.is_none() || received > MAX_ENTRIES {
            break;
        }
    }
    Ok(DirectoryListing {
        entries: found.into_values().collect(),
        errors,
        truncated: read.cursor.is_some(),
    })
}

fn target_kind(entry: &wire_fs::DirectoryEntry) -> ListedEntryKind {
    match (entry.is_file, entry.is_directory) {
        (true, _) => ListedEntryKind::File,
        (_, true) => ListedEntryKind::Directory,
        (false, false) => ListedEntryKind::Other,
    }
}

fn invalid_name(directory: &PathUri, name: &[u8]) -> WalkError {
    let displayed = String::from_utf8_lossy(name);
    WalkError {
        path: directory.clone(),
        message: format!(
            "`{}` contains `{displayed}`, which is not a file name",
            display_path(directory)
        ),
    }
}

/// Lists a directory of a server that does not support pages.
async fn list_and_walk(
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
    let read = ReadDirectory::new(directory.clone());
    let walked = retry_disconnected(|| files.walk(walk.clone()));
    let listed = retry_disconnected(|| files.read_directory(read.clone()));
    let (walked, listed) = join(walked, listed).await;
    let walked = walked?;
    let listed = match listed {
        // Servers limit the listing; the walk has its beginning.
        Err(FileError::Host(_)) if walked.truncated => None,
        listed => Some(listed?.entries),
    };
    // A complete listing lacks only names that are not UTF-8.
    let mut is_complete = listed.is_some();
    let (mut found, mut errors) = (BTreeMap::new(), walked.errors);
    let mut check_name = |name: &[u8]| {
        let is_valid = is_file_name(name);
        if !is_valid {
            errors.push(invalid_name(directory, name));
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
        let kind = target_kind(&entry);
        // The walk has the names that are not UTF-8.
        let name = entry.file_name.into_bytes();
        let has_replacement = is_replaced(&name);
        is_complete &= !has_replacement;
        let is_listed = has_replacement || found.contains_key(&name) || !check_name(&name);
        let Some(path) = child_path(directory, &name).filter(|_| !is_listed) else {
            continue;
        };
        found.insert(name, (path, kind));
    }
    Ok(DirectoryListing {
        entries: found
            .into_iter()
            .map(|(name, (path, kind))| ListedEntry {
                name,
                path,
                kind,
                link_target: None,
            })
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

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use exec_local::filesystem::LocalFileSystem;

    use super::*;

    async fn list(directory: &tempfile::TempDir) -> DirectoryListing {
        let path = PathUri::from_native(directory.path()).unwrap();
        entries(&LocalFileSystem::default(), &path).await.unwrap()
    }

    #[tokio::test]
    async fn directory_of_several_pages_is_listed_completely() {
        let directory = tempfile::tempdir().unwrap();
        let count = limits::MAX_DIRECTORY_ENTRIES + 1;
        for number in 0..count {
            fs::write(directory.path().join(number.to_string()), "").unwrap();
        }
        let found = list(&directory).await;
        assert_eq!((found.entries.len(), found.truncated), (count, false));
    }

    #[tokio::test]
    async fn links_have_a_target_and_its_type_or_are_dangling() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "").unwrap();
        for (link, to) in [("a", "file"), ("b", "."), ("c", "none"), ("d", "d")] {
            symlink(to, at(link)).unwrap();
        }
        let found = list(&directory).await;
        let found: Vec<_> = found
            .entries
            .iter()
            .map(|entry| (entry.kind, entry.link_target.as_deref()))
            .collect();
        let expected: [(_, Option<&[u8]>); 5] = [
            (ListedEntryKind::File, Some(b"file")),
            (ListedEntryKind::Directory, Some(b".")),
            (ListedEntryKind::DanglingLink, Some(b"none")),
            (ListedEntryKind::DanglingLink, Some(b"d")),
            (ListedEntryKind::File, None),
        ];
        assert_eq!(found, expected);
    }
}
