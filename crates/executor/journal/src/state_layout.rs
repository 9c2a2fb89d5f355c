//! The directories and files of a state directory, with and without its lock.
//!
//! Invariant: everything is opened below a descriptor of the directory, which was checked once, so
//! that renaming it or a part of its path leads nowhere else.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, mkdirat, openat, statat},
    io::{Errno, retry_on_intr},
    pipe::{PipeFlags, SpliceFlags, pipe_with, splice},
};

use crate::{
    journal_error::{JournalError, is_full},
    journal_reader::JournalReader,
    limits::{MAX_RECORDS, SCHEMA},
    private_file::{
        DIRECTORY_MODE, OpenMode, PrivateFile, open_directory, read_file, remove_file, replace_file,
    },
    process_journal::ProcessJournal,
    record_cleanup::{StateUsage, record_usage},
    record_id::RecordId,
    recovered_process::RecoveredProcess,
    session_record::SessionRecord,
};

const SCHEMA_FILE: &str = "schema";
const KEEPER_SOCKET: &str = "keeper.sock";
const PROBE_FILE: &str = "probe";
const PROCESSES: &str = "processes";
const SESSIONS: &str = "sessions";
/// Maximum schema file.
const MAX_SCHEMA_BYTES: usize = 64;

/// Why a state directory cannot be used. Its records are as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateDirError {
    /// Operator: the directory does not exist, and was opened for reading only.
    #[error("state directory `{}` does not exist: start a server with it first", .0.display())]
    Missing(PathBuf),
    /// Operator: the path names another kind of file.
    #[error("`{}` is not a directory: choose another state directory", .0.display())]
    NotADirectory(PathBuf),
    /// Operator: a symbolic link can be redirected.
    #[error("`{}` is a symbolic link: name the directory that it points to", .0.display())]
    SymbolicLink(PathBuf),
    /// Operator: another account owns the directory.
    #[error(
        "`{}` belongs to user {owner}: choose another state directory, or run as that user",
        path.display()
    )]
    OtherOwner {
        /// Directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Operator: other accounts may access the directory.
    #[error("`{}` has mode {mode:o}: other users must not access it; run `chmod 700` on it",
        path.display())]
    Permissions {
        /// Directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Operator: another server uses the directory.
    #[error("state directory `{}` is used by another server: stop it, or choose another one",
        .0.display())]
    Locked(PathBuf),
    /// Caller: the descriptor does not hold the lock of this directory.
    #[error("descriptor is not the lock of state directory `{}`", .0.display())]
    ForeignLock(PathBuf),
    /// Operator: a newer server wrote the directory.
    #[error(
        "state directory `{}` has format {found}, and this server knows up to {SCHEMA}: \
         use a newer server, or choose another directory",
        path.display()
    )]
    NewerSchema {
        /// Directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Operator: the format number cannot be read.
    #[error("`{}` holds no format number: restore it, or choose another state directory",
        .0.display())]
    Schema(PathBuf),
    /// Operator: output cannot be moved into files there.
    #[error("the file system of `{}` does not support splice into files: \
        choose a state directory on a local file system", .0.display())]
    NoSplice(PathBuf),
    /// Host: an operation failed.
    #[error("failed to {action} in state directory `{}`", path.display())]
    Io {
        /// Operation.
        action: &'static str,
        /// Directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

/// Directories of a state directory that another process may use, for reading. Takes no lock.
#[derive(Debug)]
pub struct StateLayout {
    pub(crate) path: PathBuf,
    pub(crate) processes: OwnedFd,
    pub(crate) sessions: OwnedFd,
}

impl StateLayout {
    /// Creates the directory if it does not exist, and opens the directory itself only.
    pub(crate) fn open_root(path: &Path) -> Result<(PathBuf, OwnedFd), StateDirError> {
        let path = normalize(path);
        if let Err(source) = create_directory(&path) {
            // The check below names the reason better if something is there.
            if !path.exists() {
                let action = "create the directory";
                return Err(StateDirError::Io {
                    action,
                    path,
                    source,
                });
            }
        }
        let root = open_checked(&path)?;
        Ok((path, root))
    }

    /// Checks format and file system, and opens the subdirectories, which are created if they do not
    /// exist. The caller holds the lock.
    pub(crate) fn prepare(path: PathBuf, root: &OwnedFd) -> Result<Self, StateDirError> {
        let failed = |action| io_error(action, &path);
        if check_schema(&path, root)?.is_none() {
            let text = format!("{SCHEMA}\n");
            replace_file(root, SCHEMA_FILE, "schema.new", text.as_bytes())
                .map_err(failed("write the format number"))?;
        }
        probe_splice(&path, root)?;
        for name in [PROCESSES, SESSIONS] {
            match mkdirat(root, name, DIRECTORY_MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed("create a directory")(errno.into())),
            }
        }
        Self::open_existing(path, root)
    }

    /// Opens an existing directory.
    pub(crate) fn open(path: &Path) -> Result<Self, StateDirError> {
        let path = normalize(path);
        let root = open_checked(&path)?;
        if check_schema(&path, &root)?.is_none() {
            return Err(StateDirError::Schema(path.join(SCHEMA_FILE)));
        }
        Self::open_existing(path, &root)
    }

    fn open_existing(path: PathBuf, root: &OwnedFd) -> Result<Self, StateDirError> {
        let open = |name| open_directory(root, name).map_err(io_error("open a directory", &path));
        let (processes, sessions) = (open(PROCESSES)?, open(SESSIONS)?);
        Ok(Self {
            path,
            processes,
            sessions,
        })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the keeper's socket.
    pub fn keeper_socket(&self) -> PathBuf {
        self.path.join(KEEPER_SOCKET)
    }

    /// Returns the names in the directory of the records.
    pub(crate) fn record_names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.processes)?.take(2 * MAX_RECORDS) {
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        Ok(names)
    }

    /// Returns the records, ordered by creation.
    pub fn records(&self) -> io::Result<Vec<RecordId>> {
        let names = self.record_names()?;
        let mut records: Vec<RecordId> =
            names.iter().filter_map(|name| name.parse().ok()).collect();
        records.sort_unstable();
        Ok(records)
    }

    /// Opens the directory of a record.
    pub(crate) fn record(&self, id: RecordId) -> Result<OwnedFd, JournalError> {
        open_directory(&self.processes, &id.to_string()).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                JournalError::UnknownRecord(id)
            } else {
                JournalError::opening("processes")(error)
            }
        })
    }

    /// Opens a record for reading.
    pub fn reader(&self, id: RecordId) -> Result<(JournalReader, RecoveredProcess), JournalError> {
        let directory = self.record(id)?;
        let recovered = ProcessJournal::inspect(&directory)?;
        Ok((JournalReader::new(Arc::new(directory)), recovered))
    }

    /// Returns the durable sessions, ordered by id. Damaged files are skipped.
    pub fn sessions(&self) -> Result<Vec<SessionRecord>, JournalError> {
        SessionRecord::load_all(&self.sessions)
    }

    /// Adds up the sizes of all records.
    pub fn usage(&self) -> io::Result<StateUsage> {
        let mut usage = StateUsage::default();
        for id in self.records()? {
            usage.records += 1;
            usage.bytes += record_usage(self, id).map_or(0, |record| record.bytes);
        }
        Ok(usage)
    }
}

/// Creates the directory and its parents.
fn create_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE.bits())
        .create(path)
}

/// Removes what would lead through a symbolic link at the end: `link/` and `link/.`.
fn normalize(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Opens the directory itself, and checks that it is private.
fn open_checked(path: &Path) -> Result<OwnedFd, StateDirError> {
    let failed = |errno: Errno| match errno {
        Errno::NOENT => StateDirError::Missing(path.to_owned()),
        Errno::NOTDIR => StateDirError::NotADirectory(path.to_owned()),
        Errno::LOOP => StateDirError::SymbolicLink(path.to_owned()),
        other => io_error("open it", path)(other.into()),
    };
    let found = statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
        return Err(StateDirError::SymbolicLink(path.to_owned()));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(rustix::fs::CWD, path, flags, Mode::empty());
    let root = retry_on_intr(open).map_err(failed)?;
    check_owner(path, &rustix::fs::fstat(&root).map_err(failed)?)?;
    Ok(root)
}

fn check_owner(path: &Path, stat: &Stat) -> Result<(), StateDirError> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(StateDirError::OtherOwner {
            path: path.to_owned(),
            owner: stat.st_uid,
        });
    }
    if mode.intersects(Mode::RWXG | Mode::RWXO) {
        return Err(StateDirError::Permissions {
            path: path.to_owned(),
            mode: mode.bits(),
        });
    }
    Ok(())
}

/// Returns the format number, or `None` in a new directory.
fn check_schema(path: &Path, root: &OwnedFd) -> Result<Option<u32>, StateDirError> {
    let text = match read_file(root, SCHEMA_FILE, MAX_SCHEMA_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Vec::new(),
        Err(error) => return Err(io_error("read the format number", path)(error)),
    };
    let number = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    match number {
        None | Some(0) => Err(StateDirError::Schema(path.join(SCHEMA_FILE))),
        Some(found) if found > SCHEMA => Err(StateDirError::NewerSchema {
            path: path.to_owned(),
            found,
        }),
        Some(found) => Ok(Some(found)),
    }
}

/// Checks that output can be moved from a pipe into a file of the directory.
fn probe_splice(path: &Path, root: &OwnedFd) -> Result<(), StateDirError> {
    let probe = || -> io::Result<()> {
        remove_file(root, PROBE_FILE)?;
        let file = PrivateFile::open(root, PROBE_FILE, OpenMode::CreateNew)?;
        remove_file(root, PROBE_FILE)?;
        splice_byte(&file)
    };
    match probe() {
        Ok(()) => Ok(()),
        // A server must start on a full disk, so that users can list and remove records.
        Err(error) if is_full(&error) => Ok(()),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            Err(StateDirError::NoSplice(path.to_owned()))
        }
        Err(error) => Err(io_error("write a file", path)(error)),
    }
}

/// Moves a byte from a pipe into a file.
fn splice_byte(file: impl AsFd) -> io::Result<()> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::write(&write, b"x")?;
    splice(&read, None, file, Some(&mut 0), 1, SpliceFlags::NONBLOCK)?;
    Ok(())
}

/// Returns what makes an error of an operation.
pub(crate) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> StateDirError {
    let path = path.to_owned();
    move |source| StateDirError::Io {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_cannot_be_spliced_into_is_an_invalid_argument() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let writable = std::fs::File::create(&path).unwrap();
        splice_byte(&writable).unwrap();
        // The kernel refuses a file in append mode as it refuses a file system without support.
        let append = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        let error = splice_byte(&append).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        let message = StateDirError::NoSplice(path).to_string();
        assert!(
            message.contains("choose a state directory on a local file system"),
            "{message}"
        );
    }
}
