//! Paths of unix sockets of any length.

use std::{
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, open};

/// Longest path that a socket address holds, without its terminating NUL byte.
const MAX_ADDRESS_BYTES: usize = 107;

/// Path of a unix socket as its address needs it: a path that is too long for an address leads
/// through a descriptor of its directory.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl SocketPath {
    /// Opens the directory of the path if the path is too long.
    ///
    /// # Errors
    /// Fails if that directory cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(Self::short(path));
        };
        if path.as_os_str().as_bytes().len() <= MAX_ADDRESS_BYTES {
            return Ok(Self::short(path));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(directory, flags, Mode::empty())?;
        Ok(Self {
            path: PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name),
            _directory: Some(directory),
        })
    }

    /// Connects a blocking stream.
    ///
    /// # Errors
    /// Fails if nothing listens there.
    pub fn connect(path: &Path) -> io::Result<UnixStream> {
        UnixStream::connect(Self::open(path)?.as_path())
    }

    /// Returns the path for the address. It is valid while this value lives.
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    fn short(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            _directory: None,
        }
    }
}
