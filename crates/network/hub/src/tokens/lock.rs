//! Changing a file that others read: one writer at a time, and never a half-written file.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

/// How long another writer may take. It needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// A lock that cannot be had is asked for this often: the system offers no wait with an end.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// The right to replace a file. Ends with the value, or with the process.
#[derive(Debug)]
pub(super) struct Locked {
    path: PathBuf,
    /// Open for as long as the right lasts. A file of its own: the other one is replaced.
    _lock: File,
}

impl Locked {
    /// Waits for the right to replace `path`, whose directory is made when it is not there. Blocks.
    pub(super) fn wait(path: &Path) -> io::Result<Self> {
        // A link is not to be replaced, but what it leads to.
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error),
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory(&path))?;
        let lock = private()
            .truncate(false)
            .create(true)
            .open(beside(&path, "lock"))?;
        let since = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { path, _lock: lock }),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {
                    if since.elapsed() > PATIENCE {
                        return Err(io::Error::new(
                            io::ErrorKind::TimedOut,
                            "another process holds the lock of the file",
                        ));
                    }
                    thread::sleep(ASK_AGAIN);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The file, links followed.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts `content` in the file's place, for the owner's eyes. Readers see the old or the new.
    pub(super) fn replace(&self, content: &[u8]) -> io::Result<()> {
        let new = beside(&self.path, &Uuid::new_v4().simple().to_string());
        let written = private()
            .create_new(true)
            .open(&new)
            .and_then(|mut file| {
                file.write_all(content)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&new, &self.path));
        if written.is_err() {
            // The first failure is the one to report.
            let _may_not_exist = fs::remove_file(&new);
        }
        written?;
        File::open(directory(&self.path))?.sync_all()
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// A hidden name in the same directory: `.tokens.toml.lock`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}
