//! Socket of this machine's own server.
//!
//! Invariant: the socket is in a directory with mode 0700 that belongs to the account, and that no
//! sandbox can write to. Elsewhere: starting that server (`exec-cli`).

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{self, Path, PathBuf},
};

use crate::settings_source::{VariableLookup, allowed_directories};

/// Path of the local server's socket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LocalSocket(PathBuf);

impl LocalSocket {
    /// Finds the path: `EXEC_SERVER_SOCKET`, else `exec-server/server.sock` in the account's
    /// runtime directory, else `exec-server/run/server.sock` in its state directory. None of these
    /// is below a temporary directory, which sandboxes can usually write to.
    pub fn find(lookup: VariableLookup<'_>) -> Self {
        let path = |name| absolute(name, lookup);
        if let Some(socket) = path("EXEC_SERVER_SOCKET") {
            return Self(socket);
        }
        // After `su` or `sudo`, the variable may still name the directory of another account.
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

    /// Returns directories that no sandbox may write to: the socket's directory, which is created
    /// now, and those of allowed directories and of the state directory's socket, if they exist.
    pub fn protected_directories(lookup: VariableLookup<'_>) -> Vec<PathBuf> {
        // Without it, there is nothing to protect.
        drop(Self::find(lookup).secure());
        Self::existing_directories(lookup)
    }

    /// Returns those of the protected directories that exist.
    pub fn existing_directories(lookup: VariableLookup<'_>) -> Vec<PathBuf> {
        let socket = Self::find(lookup);
        let own = socket.0.parent().filter(|own| check(own).is_ok());
        let state = state_directory(lookup).filter(|directory| check(directory).is_ok());
        let mut directories: Vec<PathBuf> = own.map(Path::to_owned).into_iter().collect();
        directories.extend(state.filter(|state| own != Some(state.as_path())));
        let allowed = allowed_directories(lookup).and_then(|allowed| path::absolute(allowed).ok());
        directories.extend(allowed.filter(|allowed| allowed.is_dir()));
        directories
    }

    /// Returns the directory for durable processes of the local server: beside the socket if
    /// `EXEC_SERVER_SOCKET` names one, else in the account's state directory, which survives a
    /// reboot.
    pub fn durable_directory(lookup: VariableLookup<'_>) -> Option<PathBuf> {
        match absolute("EXEC_SERVER_SOCKET", lookup) {
            Some(socket) => Some(socket.with_extension("state")),
            None => state_directory(lookup).map(|run| run.with_file_name("durable")),
        }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file next to the socket.
    pub fn sibling(&self, extension: &str) -> PathBuf {
        self.0.with_extension(extension)
    }

    /// Creates the directory if it is missing. Rejects one that another account owns or can access.
    pub fn secure(&self) -> Result<(), LocalSocketError> {
        let directory = self.0.parent().unwrap_or(Path::new("/"));
        let checked = match check(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(directory).and_then(|()| check(directory))
            }
            checked => checked,
        };
        checked.map_err(|source| LocalSocketError {
            directory: directory.to_owned(),
            source,
        })
    }
}

/// Host: the directory of the socket belongs to others, or cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot use `{}` for the socket of this machine", directory.display())]
pub struct LocalSocketError {
    /// The directory.
    pub directory: PathBuf,
    /// Cause.
    pub source: io::Error,
}

/// Returns the socket directory in the account's state directory, which survives a reboot.
fn state_directory(lookup: VariableLookup<'_>) -> Option<PathBuf> {
    let state = absolute("XDG_STATE_HOME", lookup)
        .or_else(|| Some(absolute("HOME", lookup)?.join(".local/state")))?;
    Some(state.join("exec-server/run"))
}

/// Returns a variable that holds an absolute path.
fn absolute(name: &str, lookup: VariableLookup<'_>) -> Option<PathBuf> {
    let path = PathBuf::from(lookup(name)?);
    path.is_absolute().then_some(path)
}

/// Creates a directory with mode 0700, and its parents. Tolerates concurrent creation.
fn make(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(directory)
}

/// Checks a directory without following symbolic links.
fn check(directory: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    let wrong = |why| Err(io::Error::other(why));
    if !found.is_dir() {
        return wrong("it is not a directory");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return wrong("it belongs to another account");
    }
    if found.mode() & 0o077 != 0 {
        return wrong("other accounts can use it");
    }
    Ok(())
}
