//! Removes a file, a link or a tree.
//!
//! Only names are removed, and only in directories that are open: a link that is put in the place of
//! something is removed itself, never followed.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use exec_env::filesystem::FileError;
use exec_wire::fs::Remove;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FileType, statat, unlinkat},
    io::{self, Errno},
};

use crate::{
    Stop,
    directory::Listing,
    directory_stack::Levels,
    host_path::{failed, invalid, native},
    resolve::{self, Links, Place},
};

/// Removes what a path names. What others remove meanwhile is removed; what they add is, too, unless
/// they keep adding.
///
/// # Errors
/// Fails at the first thing that cannot be removed. What was removed before stays so.
pub fn remove(remove: &Remove, stop: &Stop) -> Result<(), FileError> {
    let path = native(&remove.path)?;
    let links = Links::asked(remove.follow_symlinks);
    let recursive = remove.recursive.unwrap_or(true);
    if path == Path::new("/") {
        return Err(invalid("remove", &path, "it is the root"));
    }
    if recursive && links == Links::Refuse {
        let text = "unsupported: removing a tree without following symbolic links";
        return Err(FileError::Host(text.to_owned()));
    }
    let removed = match remove_one(&path, links) {
        Ok(Removed::Name) => Ok(()),
        Ok(Removed::Nothing(place)) if recursive => {
            let (above, name) = place.into_parts();
            Tree::new(&path, above, stop).remove(name)
        }
        Ok(Removed::Nothing(place)) => remove_empty(&path, &place),
        Err(error) => Err(error),
    };
    if remove.force.unwrap_or(true) && matches!(removed, Err(FileError::NotFound(_))) {
        return Ok(());
    }
    removed
}

enum Removed {
    Name,
    /// It is a directory.
    Nothing(Place),
}

fn remove_one(path: &Path, links: Links) -> Result<Removed, FileError> {
    let failed = |error| failed("remove", path, error);
    let place = Place::of(path, links).map_err(failed)?;
    let (directory, name) = (place.directory(), place.name());
    if links == Links::Refuse {
        let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if FileType::from_raw_mode(named.st_mode) == FileType::Symlink {
            return Err(invalid("remove", path, "path contains a symbolic link"));
        }
    }
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => Ok(Removed::Name),
        Err(Errno::ISDIR) => Ok(Removed::Nothing(place)),
        Err(error) => Err(failed(error)),
    }
}

fn remove_empty(path: &Path, place: &Place) -> Result<(), FileError> {
    unlinkat(place.directory(), place.name(), AtFlags::REMOVEDIR)
        .map_err(|error| failed("remove", path, error))
}

/// A tree that is being removed, from its leaves up.
struct Tree<'a> {
    path: &'a Path,
    stop: &'a Stop,
    levels: Levels,
    /// The directories from the top down to the current one.
    entered: Vec<Entered>,
}

/// A directory that has nothing but directories left.
struct Entered {
    visit: Visit,
    directories: Vec<OsString>,
}

/// A directory to go into.
struct Visit {
    name: OsString,
    /// How often it was found not to be empty after everything in it was removed.
    refilled: usize,
}

impl<'a> Tree<'a> {
    fn new(path: &'a Path, above: OwnedFd, stop: &'a Stop) -> Self {
        Self {
            path,
            stop,
            levels: Levels::new(above),
            entered: Vec::new(),
        }
    }

    fn remove(mut self, name: OsString) -> Result<(), FileError> {
        let mut next = Some(Visit { name, refilled: 0 });
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
                    Some(Visit { name, refilled: 0 })
                }
                None => self.leave(entered.visit)?,
            };
        }
    }

    /// Goes into a directory and removes everything but the directories in it.
    fn enter(&mut self, visit: Visit) -> Result<(), FileError> {
        let name = visit.name.as_os_str();
        let directory = match resolve::directory_at(self.levels.current(), name) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(()),
            // Something else has taken its place.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return gone(unlinkat(self.levels.current(), name, AtFlags::empty()))
                    .map_err(|error| self.failed(name, error));
            }
            Err(error) => return Err(self.failed(name, error)),
        };
        let listing = match Listing::of(&directory) {
            Ok(listing) => listing,
            Err(Errno::NOENT) => return Ok(()),
            // An empty one can be removed without being read.
            Err(error) => {
                return unlinkat(self.levels.current(), name, AtFlags::REMOVEDIR)
                    .map_err(|_| self.failed(name, error));
            }
        };
        self.levels
            .enter(directory)
            .map_err(|error| self.failed(name, error))?;
        self.entered.push(Entered {
            visit,
            directories: Vec::new(),
        });
        let directories = self.remove_files(listing)?;
        if let Some(entered) = self.entered.last_mut() {
            entered.directories = directories;
        }
        Ok(())
    }

    fn remove_files(&self, listing: Listing) -> Result<Vec<OsString>, FileError> {
        let mut directories = Vec::new();
        for entry in listing {
            self.stop.check()?;
            let entry = entry.map_err(|error| self.failed(OsStr::new("."), error))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if entry.file_type() == FileType::Directory {
                directories.push(name.to_owned());
                continue;
            }
            match unlinkat(self.levels.current(), name, AtFlags::empty()) {
                Err(Errno::ISDIR) => directories.push(name.to_owned()),
                removed => gone(removed).map_err(|error| self.failed(name, error))?,
            }
        }
        Ok(directories)
    }

    /// Removes the current directory, or returns what must be entered again: somebody adds to it.
    fn leave(&mut self, mut visit: Visit) -> Result<Option<Visit>, FileError> {
        self.levels
            .leave()
            .map_err(|error| self.failed(&visit.name, error))?;
        match unlinkat(self.levels.current(), &visit.name, AtFlags::REMOVEDIR) {
            // Somebody added to it, or put something else in its place.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR)
                if visit.refilled < MAX_REFILLED =>
            {
                visit.refilled += 1;
                Ok(Some(visit))
            }
            removed => gone(removed)
                .map(|()| None)
                .map_err(|error| self.failed(&visit.name, error)),
        }
    }

    /// Names what could not be removed in the current directory.
    fn failed(&self, name: &OsStr, error: impl Into<std::io::Error>) -> FileError {
        let mut path = PathBuf::from(self.path);
        if !self.entered.is_empty() {
            // The first is the path's own name.
            path.extend(
                self.entered
                    .iter()
                    .skip(1)
                    .map(|entered| &entered.visit.name),
            );
            path.push(name);
        }
        failed("remove", &path, error)
    }
}

/// Takes a name that somebody else has removed for removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// How often a directory is emptied while somebody adds to it.
const MAX_REFILLED: usize = 16;

#[cfg(test)]
mod tests;
