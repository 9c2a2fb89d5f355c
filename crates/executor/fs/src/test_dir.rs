//! Test support: a temporary directory, requests, and bounded waits.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use exec_env::filesystem::FileError;
use exec_wire::path_uri::PathUri;
use rustix::{
    fd::OwnedFd,
    fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat},
    process::{Uid, geteuid},
    thread::set_thread_res_uid,
};
use tempfile::TempDir;

use crate::resolve;

/// A directory that is removed when the test ends.
pub(crate) struct TestDir(TempDir);

impl TestDir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a name in it.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates a file and its missing ancestors.
    pub(crate) fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Creates a link with this target.
    pub(crate) fn link(&self, name: impl AsRef<Path>, text: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        std::os::unix::fs::symlink(text, &path).unwrap();
        path
    }

    pub(crate) fn fifo(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }

    /// Creates nested directories, deeper than a path can express. Returns the first.
    pub(crate) fn deep(&self, name: &str, depth: usize) -> PathBuf {
        let top = self.directory(name);
        let mut current = open_directory(&top);
        for _ in 0..depth {
            mkdirat(&current, "d", Mode::RWXU).unwrap();
            current = resolve::directory_at(&current, "d").unwrap();
        }
        top
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    Done,
    NotFound,
    Invalid,
    Host,
    Other,
}

pub(crate) fn outcome<T>(result: Result<T, FileError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Done,
        Err(FileError::NotFound(_)) => Outcome::NotFound,
        Err(FileError::Invalid(_)) => Outcome::Invalid,
        Err(FileError::Host(_)) => Outcome::Host,
        Err(_) => Outcome::Other,
    }
}

pub(crate) fn text<T>(result: Result<T, FileError>) -> String {
    result
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default()
}

pub(crate) fn uri(path: impl AsRef<Path>) -> PathUri {
    PathUri::from_native(path.as_ref()).unwrap()
}

pub(crate) fn open_directory(path: &Path) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    resolve::open_at(CWD, path, flags, Mode::empty()).unwrap()
}

/// A name that is not UTF-8.
pub(crate) fn odd_name() -> &'static OsStr {
    OsStr::from_bytes(b"odd \xff?#%")
}

/// Returns the sorted names in a directory.
pub(crate) fn names(directory: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    names
}

/// Runs `work`, and fails the test if it blocks.
pub(crate) fn within_seconds<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, waits) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    waits
        .recv_timeout(Duration::from_secs(20))
        .expect("timed out: the operation blocks")
}

/// Runs `work` as an unprivileged user without any files. Makes `scratch` readable for that user.
pub(crate) fn unprivileged<T: Send>(scratch: &TestDir, work: impl FnOnce() -> T + Send) -> T {
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let nobody = Uid::from_raw(65_534);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            if geteuid().is_root() {
                // Applies to this thread and those it starts.
                set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            work()
        });
        worker.join().unwrap()
    })
}
