//! Creates, lists and descends directories.
//!
//! On the way down a tree few directories are open at once, however deep the tree is. A closed one
//! is reopened as `..` of its child, and accepted only if it is the same directory, so a tree that
//! is moved meanwhile does not redirect the operation.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, OsStr},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{CreateDirectory, DirectoryCursor, DirectoryEntry, DirectoryListing, ReadDirectory},
    limits,
};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, readlinkat, statat},
    io::{self, Errno, fcntl_dupfd_cloexec},
    path::Arg,
};

use crate::{
    host_path::{host_error, native_path},
    metadata::PERMISSIONS,
    resolve::{self, EntryLocation, LinkPolicy, NEW_DIRECTORY_MODE},
};

/// Creates a directory.
///
/// # Errors
/// Fails if the path exists. With `recursive`, an existing directory is not an error.
pub fn create_directory(create: &CreateDirectory) -> Result<(), FileError> {
    let path = native_path(&create.path)?;
    let links = LinkPolicy::from_request(create.follow_symlinks);
    let created = if create.recursive.unwrap_or(true) {
        resolve::open_or_create_directory(&path, links).map(drop)
    } else {
        create_one(&path, links)
    };
    created.map_err(|error| host_error("create directory", &path, error))
}

fn create_one(path: &Path, links: LinkPolicy) -> io::Result<()> {
    let location = EntryLocation::open_parent(path, links)?;
    mkdirat(location.directory(), location.name(), NEW_DIRECTORY_MODE)
}

/// Lists a directory: all of it, unsorted and without dangling links, or one page.
///
/// # Errors
/// Fails if it cannot be read, or has more than [`limits::MAX_DIRECTORY_ENTRIES`] and is not read
/// by pages. Rejects a page limit that is out of range.
pub fn read_directory(read: &ReadDirectory) -> Result<DirectoryListing, FileError> {
    let limit = read.limit.unwrap_or(limits::MAX_DIRECTORY_ENTRIES);
    if !(1..=limits::MAX_DIRECTORY_ENTRIES).contains(&limit) {
        let max = limits::MAX_DIRECTORY_ENTRIES;
        return Err(FileError::Refused(format!(
            "limit must be between 1 and {max}"
        )));
    }
    let path = native_path(&read.path)?;
    let host_error = |error| host_error("list", &path, error);
    // Opened for listing only: reading names needs no search permission.
    let opened =
        resolve::open(&path, LinkPolicy::Follow, LIST_FLAGS, Mode::empty()).map_err(host_error)?;
    let directory = fcntl_dupfd_cloexec(&opened, 0).map_err(host_error)?;
    let names = DirectoryNames::new(opened).map_err(host_error)?;
    if read.is_paged() {
        return read_page(read, limit, &directory, names).map_err(host_error);
    }
    let mut entries = Vec::new();
    for entry in names {
        let entry = entry.map_err(host_error)?;
        let Some(kind) = target_kind(&directory, entry.file_name(), entry.file_type()) else {
            continue;
        };
        if entries.len() == limits::MAX_DIRECTORY_ENTRIES {
            return Err(too_many(&path));
        }
        entries.push(listed_entry(entry.file_name(), kind));
    }
    Ok(DirectoryListing {
        entries,
        next_cursor: None,
    })
}

fn listed_entry(name: &CStr, kind: FileType) -> DirectoryEntry {
    DirectoryEntry {
        file_name: name.to_string_lossy().into_owned(),
        is_directory: kind == FileType::Directory,
        is_file: kind == FileType::RegularFile,
        ..DirectoryEntry::default()
    }
}

/// Returns the page after the cursor. Reads all names for each page and keeps those of the page:
/// positions in a directory are not stable while it changes, but names are.
fn read_page(
    read: &ReadDirectory,
    limit: usize,
    directory: &OwnedFd,
    names: DirectoryNames,
) -> io::Result<DirectoryListing> {
    let last_name = read.cursor.as_ref().map_or(&b""[..], DirectoryCursor::name);
    // One name more than the page has, to know whether another page follows.
    let mut first = BTreeMap::<CString, FileType>::new();
    for entry in names {
        let entry = entry?;
        let name = entry.file_name();
        let is_full = first.len() > limit;
        let is_behind = || first.last_key_value().is_some_and(|(last, _)| name > last);
        if name.to_bytes() <= last_name || is_full && is_behind() {
            continue;
        }
        first.insert(name.to_owned(), entry.file_type());
        if first.len() > limit + 1 {
            first.pop_last();
        }
    }
    let mut page = DirectoryListing::default();
    let (mut bytes, mut last) = (0, None);
    for (index, (name, listed)) in first.into_iter().enumerate() {
        if index == limit || bytes >= limits::MAX_PAGE_BYTES {
            page.next_cursor = last
                .as_deref()
                .map(CStr::to_bytes)
                .map(DirectoryCursor::after);
            break;
        }
        let entry = match read.details {
            true => detailed_entry(read, directory, &name, listed),
            false => target_kind(directory, &name, listed).map(|kind| listed_entry(&name, kind)),
        };
        if let Some(entry) = entry {
            bytes += limits::WALK_ITEM_BYTES
                + entry.file_name.len()
                + entry.path.as_ref().map_or(0, |path| path.as_str().len())
                + entry
                    .link_target
                    .as_ref()
                    .map_or(0, |target| 2 * target.len());
            page.entries.push(entry);
        }
        last = Some(name);
    }
    Ok(page)
}

/// Returns an entry with its details. `None`: it was removed meanwhile.
fn detailed_entry(
    read: &ReadDirectory,
    directory: &OwnedFd,
    name: &CStr,
    listed: FileType,
) -> Option<DirectoryEntry> {
    let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    if matches!(named, Err(Errno::NOENT)) {
        return None;
    }
    // Without permission to search the directory, only the listed type is known.
    let kind = |stat: &io::Result<Stat>| match stat {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
        Err(_) => listed,
    };
    let is_link = kind(&named) == FileType::Symlink;
    let found = match is_link {
        true => statat(directory, name, AtFlags::empty()),
        false => named,
    };
    let mut entry = DirectoryEntry {
        path: match name.to_str() {
            Ok(_) => None,
            Err(_) => read.path.child(OsStr::from_bytes(name.to_bytes())),
        },
        mode: found.ok().map(|stat| stat.st_mode & PERMISSIONS),
        ..listed_entry(name, kind(&found))
    };
    if is_link && let Ok(target) = readlinkat(directory, name, Vec::new()) {
        entry = entry.with_link_target(target.into_bytes());
    }
    Some(entry)
}

/// Returns the type of an entry, following links. `None`: a dangling link. `Unknown`: it cannot be
/// inspected.
fn target_kind(directory: &OwnedFd, name: &CStr, listed: FileType) -> Option<FileType> {
    if !matches!(listed, FileType::Symlink | FileType::Unknown) {
        return Some(listed);
    }
    match statat(directory.as_fd(), name, AtFlags::empty()) {
        Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => None,
        Err(_) => Some(FileType::Unknown),
    }
}

fn too_many(path: &Path) -> FileError {
    FileError::Host(format!(
        "directory `{}` has more than {} entries",
        path.display(),
        limits::MAX_DIRECTORY_ENTRIES
    ))
}

/// The names in a directory, without `.` and `..`. Ends early if the directory is removed.
pub(crate) struct DirectoryNames(Dir);

impl DirectoryNames {
    /// Starts at the first name, even if the directory was opened with `O_PATH`.
    pub(crate) fn of(directory: impl AsFd) -> io::Result<Self> {
        let opened = resolve::open_at(directory, ".", LIST_FLAGS, Mode::empty())?;
        Self::new(opened)
    }

    /// Starts at the current position of a directory that was opened for reading.
    pub(crate) fn new(opened: OwnedFd) -> io::Result<Self> {
        Dir::new(opened).map(Self)
    }
}

impl Iterator for DirectoryNames {
    type Item = io::Result<rustix::fs::DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.0.read()? {
                Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Err(Errno::NOENT) => return None,
                entry => return Some(entry),
            }
        }
    }
}

/// Returns the type of an entry itself, even if the directory does not report it.
pub(crate) fn kind(directory: impl AsFd, name: impl Arg, listed: FileType) -> io::Result<FileType> {
    if listed != FileType::Unknown {
        return Ok(listed);
    }
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// Flags to open a directory for listing.
pub(crate) const LIST_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NONBLOCK);

/// The directories from the top of a tree down to the current one.
#[derive(Debug)]
pub(crate) struct DirectoryStack {
    current: OwnedFd,
    above: Vec<StackLevel>,
}

impl DirectoryStack {
    /// Starts at the top.
    pub(crate) fn new(top: OwnedFd) -> Self {
        Self {
            current: top,
            above: Vec::new(),
        }
    }

    /// Enters a subdirectory of the current directory.
    pub(crate) fn enter(&mut self, directory: OwnedFd) -> std::io::Result<()> {
        let above = std::mem::replace(&mut self.current, directory);
        self.above.push(StackLevel::Open(above));
        if let Some(distant) = self.above.len().checked_sub(OPEN_LEVELS + 1) {
            self.above[distant].close()?;
        }
        Ok(())
    }

    /// Returns to the parent directory. Does nothing at the top.
    pub(crate) fn leave(&mut self) -> std::io::Result<()> {
        self.current = match self.above.pop() {
            None => return Ok(()),
            Some(StackLevel::Open(directory)) => directory,
            Some(StackLevel::Closed(identity)) => {
                let flags = resolve::BASE_FLAGS;
                let directory = resolve::open_at(&self.current, "..", flags, Mode::empty())?;
                if InodeId::of(&directory)? != identity {
                    return Err(std::io::Error::other("directory was moved meanwhile"));
                }
                directory
            }
        };
        Ok(())
    }

    /// Returns the current directory.
    pub(crate) fn current(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }
}

#[derive(Debug)]
enum StackLevel {
    Open(OwnedFd),
    Closed(InodeId),
}

impl StackLevel {
    fn close(&mut self) -> std::io::Result<()> {
        if let Self::Open(directory) = self {
            *self = Self::Closed(InodeId::of(directory)?);
        }
        Ok(())
    }
}

/// Most ancestors that stay open. Trees are seldom deeper, and the whole server shares its
/// descriptors.
const OPEN_LEVELS: usize = 16;

/// Identifies a file by device and inode number.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct InodeId {
    device: u64,
    inode: u64,
}

impl InodeId {
    /// Returns the identity of an open file.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        fstat(file).map(|stat| Self::from(&stat))
    }
}

impl From<&Stat> for InodeId {
    fn from(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}
