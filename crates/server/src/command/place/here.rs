//! The socket of this machine's own server.
//! Invariant: it is in a directory that nobody else can write to or look into, so whoever listens there
//! is ours.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use crate::{
    command::failure::{Failure, FailureKind},
    config::Lookup,
};

/// Where the server of this machine listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Socket(PathBuf);

impl Socket {
    /// Finds it: `EXEC_SERVER_SOCKET`, or else `exec-server/server.sock` in the runtime directory of
    /// the account, or else in a directory of the account's own below `/tmp`.
    pub(crate) fn find(lookup: Lookup<'_>) -> Self {
        let path = |name| {
            lookup(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        if let Some(socket) = path("EXEC_SERVER_SOCKET") {
            return Self(socket);
        }
        // It is set where somebody became another account, and is then a directory of the first.
        let uid = rustix::process::geteuid().as_raw();
        let runtime = path("XDG_RUNTIME_DIR").filter(|runtime| {
            fs::metadata(runtime).is_ok_and(|runtime| runtime.is_dir() && runtime.uid() == uid)
        });
        let directory = match runtime {
            Some(runtime) => runtime.join("exec-server"),
            None => PathBuf::from(format!("/tmp/exec-server-{uid}")),
        };
        Self(directory.join("server.sock"))
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns a file beside it.
    pub(super) fn beside(&self, extension: &str) -> PathBuf {
        self.0.with_extension(extension)
    }

    /// Makes its directory if it is not there, and refuses one that others own or can use.
    pub(super) fn secure(&self) -> Result<(), Failure> {
        let directory = self.0.parent().unwrap_or(Path::new("/"));
        let checked = match check(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(directory).and_then(|()| check(directory))
            }
            checked => checked,
        };
        checked.map_err(|error| {
            let shown = directory.display();
            let what = format!("cannot use `{shown}` for the socket of this machine: {error}");
            Failure::new(FailureKind::Unreachable, what)
                .next("make it a directory of your own with mode 0700, or set EXEC_SERVER_SOCKET")
        })
    }
}

/// Makes a directory for its owner alone. Somebody may have made it meanwhile; who, is for others to see.
fn make(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Looks at a directory, and not through a link.
fn check(directory: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    let wrong = |why| Err(io::Error::other(why));
    if !found.is_dir() {
        return wrong("it is no directory");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return wrong("it belongs to another account");
    }
    if found.mode() & 0o077 != 0 {
        return wrong("other accounts can use it");
    }
    Ok(())
}
