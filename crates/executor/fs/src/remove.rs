//! Removes a file, a link or a tree.
//!
//! Only names in open directories are removed: a link that replaces an entry is removed itself,
//! never followed.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use exec_env::filesystem::FileError;
use exec_wire::fs::RemovePath;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FileType, statat, unlinkat},
    io::{self, Errno},
};

use crate::{
    CancelFlag,
    directory::{DirectoryNames, DirectoryStack},
    host_path::{host_error, invalid_request, link_refused, native_path},
    resolve::{self, EntryLocation, LinkPolicy},
};

/// Removes a path. Entries that others remove meanwhile do not matter; entries that others add are
/// removed, too, unless they keep adding.
///
/// # Errors
/// Fails at the first entry that cannot be removed. Earlier entries stay removed.
pub fn remove(remove: &RemovePath, stop: &CancelFlag) -> Result<(), FileError> {
    let path = native_path(&remove.path)?;
    let links = LinkPolicy::from_request(remove.follow_symlinks);
    let recursive = remove.recursive.unwrap_or(true);
    if path == Path::new("/") {
        return Err(invalid_request("remove", &path, "it is the root"));
    }
    if recursive && links == LinkPolicy::Refuse {
        let text = "unsupported: removing a tree without following symbolic links";
        return Err(FileError::Host(text.to_owned()));
    }
    let removed = match remove_one(&path, links) {
        Ok(UnlinkOutcome::Removed) => Ok(()),
        Ok(UnlinkOutcome::IsDirectory(location)) if recursive => {
            let (above, name) = location.into_parts();
            TreeRemoval::new(&path, above, stop).remove(name)
        }
        Ok(UnlinkOutcome::IsDirectory(location)) => {
            unlinkat(location.directory(), location.name(), AtFlags::REMOVEDIR)
                .map_err(|error| host_error("remove", &path, error))
        }
        Err(error) => Err(error),
    };
    if remove.force.unwrap_or(true) && matches!(removed, Err(FileError::NotFound(_))) {
        return Ok(());
    }
    removed
}

enum UnlinkOutcome {
    Removed,
    /// The path is a directory.
    IsDirectory(EntryLocation),
}

fn remove_one(path: &Path, links: LinkPolicy) -> Result<UnlinkOutcome, FileError> {
    let host_error = |error| host_error("remove", path, error);
    let location = EntryLocation::open_parent(path, links).map_err(host_error)?;
    let (directory, name) = (location.directory(), location.name());
    if links == LinkPolicy::Refuse {
        let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(host_error)?;
        if FileType::from_raw_mode(named.st_mode) == FileType::Symlink {
            return Err(link_refused("remove", path));
        }
    }
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => Ok(UnlinkOutcome::Removed),
        Err(Errno::ISDIR) => Ok(UnlinkOutcome::IsDirectory(location)),
        Err(error) => Err(host_error(error)),
    }
}

/// A removal in progress, from the leaves upwards.
struct TreeRemoval<'a> {
    path: &'a Path,
    stop: &'a CancelFlag,
    levels: DirectoryStack,
    /// The directories from the top down to the current one.
    entered: Vec<RemovalFrame>,
}

/// A directory with only subdirectories left.
struct RemovalFrame {
    visit: RemovalVisit,
    directories: Vec<OsString>,
}

/// A directory to enter.
struct RemovalVisit {
    name: OsString,
    /// How often the directory was not empty after all its entries were removed.
    refilled: usize,
}

impl<'a> TreeRemoval<'a> {
    fn new(path: &'a Path, above: OwnedFd, stop: &'a CancelFlag) -> Self {
        Self {
            path,
            stop,
            levels: DirectoryStack::new(above),
            entered: Vec::new(),
        }
    }

    fn remove(mut self, name: OsString) -> Result<(), FileError> {
        let mut next = Some(RemovalVisit { name, refilled: 0 });
        loop {
            self.stop.check()?;
            if let Some(visit) = next.take() {
                self.enter(visit)?;
            }
            let Some(mut entered) = self.entered.pop() else {
                return Ok(());
            };
            next = match entered.directories.pop() {
                Some(name) => {
                    self.entered.push(entered);
                    Some(RemovalVisit { name, refilled: 0 })
                }
                None => self.leave(entered.visit)?,
            };
        }
    }

    /// Enters a directory and removes everything in it except subdirectories.
    fn enter(&mut self, visit: RemovalVisit) -> Result<(), FileError> {
        let name = visit.name.as_os_str();
        let directory = match resolve::directory_at(self.levels.current(), name) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(()),
            // Another kind of file has replaced it.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return ignore_missing(unlinkat(self.levels.current(), name, AtFlags::empty()))
                    .map_err(|error| self.host_error(name, error));
            }
            Err(error) => return Err(self.host_error(name, error)),
        };
        let listing = match DirectoryNames::of(&directory) {
            Ok(listing) => listing,
            Err(Errno::NOENT) => return Ok(()),
            // An empty directory can be removed without permission to read it.
            Err(error) => {
                return unlinkat(self.levels.current(), name, AtFlags::REMOVEDIR)
                    .map_err(|_| self.host_error(name, error));
            }
        };
        self.levels
            .enter(directory)
            .map_err(|error| self.host_error(name, error))?;
        self.entered.push(RemovalFrame {
            visit,
            directories: Vec::new(),
        });
        let directories = self.remove_files(listing)?;
        if let Some(entered) = self.entered.last_mut() {
            entered.directories = directories;
        }
        Ok(())
    }

    fn remove_files(&self, listing: DirectoryNames) -> Result<Vec<OsString>, FileError> {
        let mut directories = Vec::new();
        for entry in listing {
            self.stop.check()?;
            let entry = entry.map_err(|error| self.host_error(OsStr::new("."), error))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if entry.file_type() == FileType::Directory {
                directories.push(name.to_owned());
                continue;
            }
            match unlinkat(self.levels.current(), name, AtFlags::empty()) {
                Err(Errno::ISDIR) => directories.push(name.to_owned()),
                removed => ignore_missing(removed).map_err(|error| self.host_error(name, error))?,
            }
        }
        Ok(directories)
    }

    /// Removes the current directory. Returns it if entries were added meanwhile and it must be
    /// entered again.
    fn leave(&mut self, mut visit: RemovalVisit) -> Result<Option<RemovalVisit>, FileError> {
        self.levels
            .leave()
            .map_err(|error| self.host_error(&visit.name, error))?;
        match unlinkat(self.levels.current(), &visit.name, AtFlags::REMOVEDIR) {
            // Entries were added, or something else has replaced it.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR)
                if visit.refilled < MAX_REFILLED =>
            {
                visit.refilled += 1;
                Ok(Some(visit))
            }
            removed => ignore_missing(removed)
                .map(|()| None)
                .map_err(|error| self.host_error(&visit.name, error)),
        }
    }

    /// Builds an error for an entry of the current directory.
    fn host_error(&self, name: &OsStr, error: impl Into<std::io::Error>) -> FileError {
        let mut path = PathBuf::from(self.path);
        if !self.entered.is_empty() {
            // The first frame is the last component of the path itself.
            path.extend(
                self.entered
                    .iter()
                    .skip(1)
                    .map(|entered| &entered.visit.name),
            );
            path.push(name);
        }
        host_error("remove", &path, error)
    }
}

/// Treats an entry that is already gone as removed.
fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Most attempts to empty a directory to which others add.
const MAX_REFILLED: usize = 16;

#[cfg(test)]
mod tests;
