//! Whole files, written at once: in place, or by a new file that takes the old one's name.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use exec_env::filesystem::FileError;
use exec_wire::fs::WriteFile;
use rustix::{
    fd::OwnedFd,
    fs::Mode,
    io::{self, Errno},
};

use crate::{
    error::{failed, half_written, invalid},
    native::native,
    regular::{NEW_FILE, Regular, TO_WRITE},
    replace,
    resolve::{self, Links},
};

/// Creates a file or replaces what it holds. The data member of `write` is not looked at.
///
/// # Errors
/// Fails if the path cannot be written, or names something else than a regular file. Nothing has
/// changed then, unless the error says otherwise.
pub fn write_file(write: &WriteFile, data: &[u8]) -> Result<(), FileError> {
    let path = native(&write.path)?;
    let mode = permissions(&path, write.mode)?;
    let target = Target {
        links: Links::asked(write.follow_symlinks),
        parents: if write.create_parents {
            Parents::Make
        } else {
            Parents::Expect
        },
        mode,
        path,
    };
    if write.atomic {
        replace::replace(&target, data)
    } else {
        overwrite(&target, data)
    }
}

/// What is written to, and how.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) links: Links,
    pub(crate) parents: Parents,
    pub(crate) mode: Option<Mode>,
}

impl Target {
    /// Tries `open`, and again after making the directories above the file if they are missing.
    pub(crate) fn with_parents<T>(
        &self,
        open: impl Fn() -> io::Result<T>,
    ) -> Result<io::Result<T>, FileError> {
        match (open(), self.path.parent()) {
            (Err(Errno::NOENT), Some(above)) if self.parents == Parents::Make => {
                resolve::made_directory(above, self.links)
                    .map_err(|error| failed("create directory", above, error))?;
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
pub(crate) enum Parents {
    /// They are made.
    Make,
    /// It is an error.
    Expect,
}

fn overwrite(target: &Target, data: &[u8]) -> Result<(), FileError> {
    let path = &target.path;
    let opened = Regular::to_write(target.with_parents(|| target.open())?, path)?;
    if let Some(mode) = target.mode {
        opened
            .set_mode(mode)
            .map_err(|error| failed("set the mode of", path, error))?;
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
        .map_err(|error| half_written(path, error))?;
    if let Some(mode) = target.mode {
        opened
            .restore_mode(mode)
            .map_err(|error| failed("set the mode of", path, error))?;
    }
    Ok(())
}

fn permissions(path: &Path, mode: Option<u32>) -> Result<Option<Mode>, FileError> {
    let Some(mode) = mode else {
        return Ok(None);
    };
    if mode & !0o7777 != 0 {
        let reason = format!("mode {mode:#o} has more than permission bits");
        return Err(invalid("write", path, reason));
    }
    Ok(Some(Mode::from_raw_mode(mode)))
}

#[cfg(test)]
mod tests;
