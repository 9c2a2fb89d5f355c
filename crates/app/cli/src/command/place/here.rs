//! The socket of this machine's own server.
//! Invariant: it is in a directory of the account's own with mode 0700, which no sandbox of a server
//! can write to. The client checks who listens all the same.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use crate::{
    command::failure::{Failure, FailureKind},
    settings_source::Lookup,
};

/// Where the server of this machine listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Socket(PathBuf);

impl Socket {
    /// Finds it: `EXEC_SERVER_SOCKET`, or else `exec-server/server.sock` in the runtime directory of
    /// the account, or else `exec-server/run/server.sock` in its directory for state. None of them is
    /// below a directory for temporary files, which sandboxes can usually write to.
    pub(crate) fn find(lookup: Lookup<'_>) -> Self {
        let path = |name| absolute(name, lookup);
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
            None => state_directory(lookup)
                .unwrap_or_else(|| PathBuf::from(format!("/run/user/{uid}/exec-server"))),
        };
        Self(directory.join("server.sock"))
    }

    /// Returns the directories that no sandbox may write to: that of the socket, which is made now, and
    /// that of the socket that commands without a runtime directory use, if it exists.
    pub(crate) fn protected_directories(lookup: Lookup<'_>) -> Vec<PathBuf> {
        let socket = Self::find(lookup);
        let own = socket.secure().ok().and_then(|()| socket.0.parent());
        let state = state_directory(lookup).filter(|directory| check(directory).is_ok());
        let mut directories: Vec<PathBuf> = own.map(Path::to_owned).into_iter().collect();
        directories.extend(state.filter(|state| own != Some(state.as_path())));
        directories
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

/// Returns the directory for sockets among the account's state, which a reboot does not empty.
fn state_directory(lookup: Lookup<'_>) -> Option<PathBuf> {
    let state = absolute("XDG_STATE_HOME", lookup)
        .or_else(|| Some(absolute("HOME", lookup)?.join(".local/state")))?;
    Some(state.join("exec-server/run"))
}

/// Returns a variable that holds an absolute path.
fn absolute(name: &str, lookup: Lookup<'_>) -> Option<PathBuf> {
    let path = PathBuf::from(lookup(name)?);
    path.is_absolute().then_some(path)
}

/// Makes a directory for its owner alone, and those above it. Another program may make it meanwhile.
fn make(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(directory)
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
