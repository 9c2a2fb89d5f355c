//! A listening unix socket that defends its path.
//!
//! Invariant: a server removes a socket file only while it holds the lock file beside it, and only
//! its own socket, a socket that refuses connections (ECONNREFUSED), or one that displaced its own.
//! Any other result, such as a full backlog or a permission error, removes nothing.
//! Elsewhere: access control ([`listener`](crate::listener)).

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io,
    os::fd::{AsFd, OwnedFd},
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::OFlags,
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};
use tokio::{
    net::{UnixListener, UnixStream},
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use crate::{listen_url::lock_path, socket_path::SocketPath};

/// How often a server checks that its socket file is still its own.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Connections that wait to be accepted. The kernel applies its own limit, too.
const BACKLOG: i32 = 4096;

/// A listening unix socket, its file and the lock file beside it. Dropping it removes both files.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: FileIdentity,
    lock: SocketLock,
    checks: Interval,
    /// Whether the loss of the socket was already logged.
    reported: bool,
    /// Whether another server listens on the same socket, and its files must stay.
    handed_over: bool,
}

impl UnixSocket {
    /// Binds a socket that only its owner can connect to. Replaces the file of a server that has
    /// ended.
    ///
    /// # Errors
    /// `AddrInUse` if another server listens there or holds the lock file, or if that is unknown.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let lock = SocketLock::acquire(path)?;
        if let Some(existing) = FileIdentity::of_socket(path) {
            match probe(path) {
                Err(Errno::CONNREFUSED) => existing.remove(path)?,
                Err(Errno::NOENT) => {}
                Ok(()) | Err(Errno::AGAIN) => return Err(in_use()),
                Err(error) => {
                    let message = format!("failed to probe the existing socket: {error}");
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
                }
            }
        }
        let (listener, identity) = listen(path)?;
        Ok(Self::new(listener, path, identity, lock))
    }

    fn new(listener: UnixListener, path: &Path, identity: FileIdentity, lock: SocketLock) -> Self {
        let mut checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            handed_over: lock.handed_over,
            listener,
            path: path.to_owned(),
            identity,
            lock,
            checks,
            reported: false,
        }
    }

    /// Continues the socket of another server, with its lock. The files are still those of the other
    /// one.
    pub(crate) fn inherit(path: &Path, listener: OwnedFd, lock: OwnedFd) -> io::Result<Self> {
        // Clients check the process that listens: from now on it is this one.
        rustix::net::listen(&listener, BACKLOG)?;
        let listener = std::os::unix::net::UnixListener::from(listener);
        listener.set_nonblocking(true)?;
        // Without a file, the next check binds again.
        let identity = FileIdentity::of(path).unwrap_or_default();
        let lock = SocketLock {
            path: lock_path(path),
            file: lock.into(),
            handed_over: true,
        };
        let listener = UnixListener::from_std(listener)?;
        Ok(Self::new(listener, path, identity, lock))
    }

    /// Makes the files belong to this server, which removes them at its end.
    pub(crate) fn claim(&mut self) {
        self.handed_over = false;
        self.lock.handed_over = false;
    }

    /// Returns duplicates of the socket and of its lock, for another server.
    pub(crate) fn duplicates(&self) -> io::Result<Vec<OwnedFd>> {
        let listener = self.listener.as_fd().try_clone_to_owned()?;
        Ok(vec![listener, self.lock.file.try_clone()?.into()])
    }

    /// Closes the socket without removing its files, which belong to another server now.
    pub(crate) fn leave(mut self) {
        self.handed_over = true;
        self.lock.handed_over = true;
    }

    /// Accepts a connection. Binds again if the socket file was removed or replaced.
    pub(crate) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => return accepted.map(|(stream, _)| stream),
                _now = self.checks.tick() => self.check(),
            }
        }
    }

    /// Binds again if the path no longer names this socket. Open connections are not affected.
    fn check(&mut self) {
        if FileIdentity::of(&self.path).as_ref() == Some(&self.identity) {
            return;
        }
        let bound = self.rebind();
        let path = self.path.display();
        match bound {
            Ok(()) => {
                tracing::warn!(%path, "socket was removed or replaced; listening there again");
                self.reported = false;
            }
            Err(error) if !self.reported => {
                tracing::error!(%path, %error, "failed to bind the socket again after it was removed or replaced");
                self.reported = true;
            }
            Err(_) => {}
        }
    }

    fn rebind(&mut self) -> io::Result<()> {
        if let Some(directory) = self.path.parent()
            && !directory.exists()
        {
            DirBuilder::new().mode(0o700).create(directory)?;
        }
        self.lock.reacquire(&self.path)?;
        // Every server of this project holds the lock while it uses the path.
        if let Some(existing) = FileIdentity::of_socket(&self.path) {
            existing.remove(&self.path)?;
        }
        (self.listener, self.identity) = listen(&self.path)?;
        Ok(())
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if self.handed_over {
            return;
        }
        // Remove it before the listener closes: afterwards another server may bind the path.
        if let Err(error) = self.identity.remove(&self.path) {
            tracing::debug!(%error, "failed to remove the socket file");
        }
    }
}

fn listen(path: &Path) -> io::Result<(UnixListener, FileIdentity)> {
    let listener = UnixListener::bind(SocketPath::open(path)?.as_path())?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    let identity = FileIdentity::of(path).ok_or(io::ErrorKind::NotFound)?;
    Ok((listener, identity))
}

/// Connects without blocking: a blocking connect would wait on a full backlog.
fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let path = SocketPath::open(path)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    connect(socket, &SocketAddrUnix::new(path.as_path())?)
}

fn in_use() -> io::Error {
    io::Error::new(
        io::ErrorKind::AddrInUse,
        "another server listens on this socket",
    )
}

/// Identifies the file at a path.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok()?;
        Some(Self::from(&metadata))
    }

    fn of_socket(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok()?;
        metadata
            .file_type()
            .is_socket()
            .then(|| Self::from(&metadata))
    }

    /// Removes the file at a path if it is still this one.
    fn remove(&self, path: &Path) -> io::Result<()> {
        if Self::of(path).as_ref() == Some(self) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

impl From<&fs::Metadata> for FileIdentity {
    fn from(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// The right to bind a socket at a path: a locked file beside it. Dropping it removes the file.
#[derive(Debug)]
struct SocketLock {
    path: PathBuf,
    file: File,
    /// Whether another server holds the same lock.
    handed_over: bool,
}

impl SocketLock {
    fn acquire(socket: &Path) -> io::Result<Self> {
        let path = lock_path(socket);
        for _attempt in 0..LOCK_ATTEMPTS {
            let file = open_locked(&path)?;
            let lock = Self {
                path: path.clone(),
                file,
                handed_over: false,
            };
            // Otherwise the previous holder removed the file between our open and our lock.
            if lock.is_at_path() {
                return Ok(lock);
            }
        }
        Err(in_use())
    }

    /// Acquires the lock again if its file was removed.
    fn reacquire(&mut self, socket: &Path) -> io::Result<()> {
        if !self.is_at_path() {
            *self = Self::acquire(socket)?;
        }
        Ok(())
    }

    fn is_at_path(&self) -> bool {
        let locked = self.file.metadata();
        let locked = locked.as_ref().map(FileIdentity::from).ok();
        locked.is_some() && FileIdentity::of(&self.path) == locked
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        if !self.handed_over
            && self.is_at_path()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(%error, "failed to remove the lock file");
        }
    }
}

/// Opens and locks a file without following symbolic links.
fn open_locked(path: &Path) -> io::Result<File> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(path);
    let file = opened.map_err(|error| {
        let message = format!("cannot open lock file `{}`: {error}", path.display());
        io::Error::new(error.kind(), message)
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(in_use()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// How often to recreate a vanishing lock file before reporting the address as in use.
const LOCK_ATTEMPTS: u32 = 16;

#[cfg(test)]
mod tests;
