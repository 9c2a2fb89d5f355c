//! A listening unix socket that keeps its path.
//!
//! Invariant: a socket file is removed only by whoever holds the lock file beside it, and only if it
//! is that server's own, or a socket that refuses connections (ECONNREFUSED), or one that displaced
//! the lock holder's. Any other answer, such as a full backlog or a permission error, removes nothing.
//! Not here: who may connect ([`listener`](crate::listener)).

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io,
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

use crate::listen::lock_path;

/// How often a server checks that its socket file is still its own.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A listening unix socket, its file and the lock file beside it. Dropping it removes both files.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: FileIdentity,
    lock: SocketLock,
    checks: Interval,
    /// Whether the loss of the socket was logged already.
    reported: bool,
}

impl UnixSocket {
    /// Binds a socket that only its owner can connect to. The file of a server that has ended is
    /// replaced.
    ///
    /// # Errors
    /// `AddrInUse` if another server listens there or holds the lock file; or if it cannot be told
    /// whether one does.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let lock = SocketLock::acquire(path)?;
        if let Some(found) = FileIdentity::of_socket(path) {
            match probe(path) {
                Err(Errno::CONNREFUSED) => found.remove(path)?,
                Err(Errno::NOENT) => {}
                Ok(()) | Err(Errno::AGAIN) => return Err(in_use()),
                Err(error) => {
                    let what = format!("failed to probe the existing socket: {error}");
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
                }
            }
        }
        let (listener, identity) = listen(path)?;
        let mut checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            listener,
            path: path.to_owned(),
            identity,
            lock,
            checks,
            reported: false,
        })
    }

    /// Accepts a connection. Meanwhile, binds again if the socket file is gone or was replaced.
    pub(crate) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => return accepted.map(|(stream, _)| stream),
                _now = self.checks.tick() => self.check(),
            }
        }
    }

    /// Binds again if the path does not name this socket any more. Connections stay as they are.
    fn check(&mut self) {
        if FileIdentity::of(&self.path).as_ref() == Some(&self.identity) {
            return;
        }
        let bound = self.bind_again();
        let path = self.path.display();
        match bound {
            Ok(()) => {
                tracing::warn!(%path, "socket was removed or replaced; listening there again");
                self.reported = false;
            }
            Err(error) if !self.reported => {
                tracing::error!(%path, %error, "socket was removed or replaced, and cannot be bound again");
                self.reported = true;
            }
            Err(_) => {}
        }
    }

    fn bind_again(&mut self) -> io::Result<()> {
        if let Some(directory) = self.path.parent()
            && !directory.exists()
        {
            DirBuilder::new().mode(0o700).create(directory)?;
        }
        self.lock.acquire_again(&self.path)?;
        // Every server that may have this path holds the lock while it does.
        if let Some(found) = FileIdentity::of_socket(&self.path) {
            found.remove(&self.path)?;
        }
        (self.listener, self.identity) = listen(&self.path)?;
        Ok(())
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // While it listens: once nobody does, another server may put its own in this place.
        if let Err(error) = self.identity.remove(&self.path) {
            tracing::debug!(%error, "socket file was not removed");
        }
    }
}

fn listen(path: &Path) -> io::Result<(UnixListener, FileIdentity)> {
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    let identity = FileIdentity::of(path).ok_or(io::ErrorKind::NotFound)?;
    Ok((listener, identity))
}

/// Connects without waiting: to a socket with a full backlog, a blocking connect would.
fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(socket, &SocketAddrUnix::new(path)?)
}

fn in_use() -> io::Error {
    io::Error::new(
        io::ErrorKind::AddrInUse,
        "another server listens on this socket",
    )
}

/// Which file a path names.
#[derive(Clone, Debug, Eq, PartialEq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        Some(Self::from(&found))
    }

    fn of_socket(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        found.file_type().is_socket().then(|| Self::from(&found))
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
    fn from(found: &fs::Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
        }
    }
}

/// The right to put a socket at a path: a locked file beside it. Dropping it removes the file.
#[derive(Debug)]
struct SocketLock {
    path: PathBuf,
    file: File,
}

impl SocketLock {
    fn acquire(socket: &Path) -> io::Result<Self> {
        let path = lock_path(socket);
        for _attempt in 0..LOCK_ATTEMPTS {
            let file = open_locked(&path)?;
            let lock = Self {
                path: path.clone(),
                file,
            };
            // Otherwise the last holder removed the file between our open and our lock.
            if lock.is_in_place() {
                return Ok(lock);
            }
        }
        Err(in_use())
    }

    /// Makes sure of the lock for a path whose files were removed.
    fn acquire_again(&mut self, socket: &Path) -> io::Result<()> {
        if !self.is_in_place() {
            *self = Self::acquire(socket)?;
        }
        Ok(())
    }

    fn is_in_place(&self) -> bool {
        let locked = self.file.metadata();
        let locked = locked.as_ref().map(FileIdentity::from).ok();
        locked.is_some() && FileIdentity::of(&self.path) == locked
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        if self.is_in_place()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(%error, "lock file was not removed");
        }
    }
}

/// Opens and locks a file, and not through a link.
fn open_locked(path: &Path) -> io::Result<File> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(path);
    let file = opened.map_err(|error| {
        let what = format!("cannot open lock file `{}`: {error}", path.display());
        io::Error::new(error.kind(), what)
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(in_use()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// How often a lock file that vanishes is made anew before another server is blamed.
const LOCK_ATTEMPTS: u32 = 16;

#[cfg(test)]
mod tests;
