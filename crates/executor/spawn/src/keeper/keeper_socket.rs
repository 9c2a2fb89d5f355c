//! The keeper's socket in the file system: connecting to it, and starting a keeper that listens.
//!
//! All of this happens under a lock of the directory, so that two starters start one keeper and no
//! client meets a keeper that is about to exit. Paths go through `/proc/self/fd`, because a socket
//! address is limited to 107 bytes.

use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{
        AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock, open, openat, statat,
        unlinkat,
    },
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with},
    pipe::{PipeFlags, pipe_with},
};

use super::{KEEPER_NAME, KeeperError};
use crate::spawner::OwnChildren;

/// How often to try to lock the directory.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Keepers that this process has started and not reaped.
static STARTED_KEEPERS: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// The locked directory of a keeper's socket. Unlocked when dropped.
#[derive(Debug)]
pub(super) struct LockedDirectory {
    directory: OwnedFd,
    name: OsString,
}

impl LockedDirectory {
    /// Locks the directory of `socket`.
    pub(super) fn lock(socket: &Path, deadline: Instant) -> Result<Self, KeeperError> {
        let name = socket
            .file_name()
            .ok_or(KeeperError::socket(Errno::INVAL))?;
        let parent = match socket.parent() {
            Some(parent) if parent != Path::new("") => parent,
            Some(_) | None => Path::new("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(parent, flags, Mode::empty()).map_err(KeeperError::socket)?;
        loop {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_RETRY);
                }
                Err(Errno::AGAIN | Errno::INTR) => return Err(KeeperError::Busy),
                Err(errno) => return Err(KeeperError::socket(errno)),
            }
        }
        Ok(Self {
            directory,
            name: name.to_owned(),
        })
    }

    /// Connects to the keeper. `None`: none is running.
    pub(super) fn connect(&self) -> Result<Option<OwnedFd>, KeeperError> {
        let socket = new_socket()?;
        let result = self
            .address()
            .and_then(|address| connect(&socket, &address));
        match result {
            Ok(()) => Ok(Some(socket)),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            // The backlog is full: the keeper is stopped.
            Err(Errno::AGAIN) => Err(KeeperError::Unresponsive { pid: 0 }),
            Err(errno) => Err(KeeperError::socket(errno)),
        }
    }

    /// Starts a keeper, and waits until clients can connect.
    pub(super) fn start(&self, program: &Path, deadline: Instant) -> Result<(), KeeperError> {
        self.remove_stale_socket()?;
        let socket = new_socket()?;
        self.address()
            .and_then(|address| bind(&socket, &address))
            .map_err(KeeperError::socket)?;
        let file = SocketFile::of(&self.directory, &self.name).map_err(KeeperError::socket)?;
        let started = self.start_process(program, socket, &file, deadline);
        if started.is_err() {
            file.remove_from(&self.directory);
        }
        started
    }

    fn start_process(
        &self,
        program: &Path,
        socket: OwnedFd,
        file: &SocketFile,
        deadline: Instant,
    ) -> Result<(), KeeperError> {
        // A duplicate would share the lock.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            openat(&self.directory, ".", flags, Mode::empty()).map_err(KeeperError::socket)?;
        let (ready, at_start) = pipe_with(PipeFlags::CLOEXEC).map_err(KeeperError::socket)?;
        let mut command = Command::new(program);
        command
            .arg0(KEEPER_NAME)
            .args(file.to_arguments())
            .env_clear()
            .current_dir("/")
            .stdin(socket)
            .stdout(directory)
            .stderr(at_start);
        let mut own = OwnChildren::lock();
        let child = command.spawn().map_err(KeeperError::Start)?;
        let pid = child.id().cast_signed();
        own.insert(pid);
        drop(own);
        started_keepers().push(child);
        // Closes this process's copies of what the keeper inherited.
        drop(command);
        // The pipe closes when the keeper listens, or has exited.
        let mut fds = [PollFd::new(&ready, PollFlags::IN)];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(0) => return Err(KeeperError::Unresponsive { pid }),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(KeeperError::socket(errno)),
            }
        }
    }

    /// Removes the socket of a keeper that was killed.
    fn remove_stale_socket(&self) -> Result<(), KeeperError> {
        match SocketFile::of(&self.directory, &self.name) {
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(KeeperError::socket(errno)),
            Ok(_) => {
                unlinkat(&self.directory, &self.name, AtFlags::empty()).map_err(KeeperError::socket)
            }
        }
    }

    fn address(&self) -> Result<SocketAddrUnix, Errno> {
        let directory = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        SocketAddrUnix::new(PathBuf::from(directory).join(&self.name))
    }
}

fn new_socket() -> Result<OwnedFd, KeeperError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(KeeperError::socket)
}

/// Reaps keepers of this process that have exited.
pub(super) fn reap_keepers() {
    started_keepers().retain_mut(|child| match child.try_wait() {
        Ok(None) => true,
        Ok(Some(_)) | Err(_) => {
            OwnChildren::lock().remove(child.id().cast_signed());
            false
        }
    });
}

fn started_keepers() -> MutexGuard<'static, Vec<Child>> {
    STARTED_KEEPERS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Name and inode of a keeper's socket. A file with the same name and another inode belongs to
/// another keeper.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct SocketFile {
    name: OsString,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Looks up a socket.
    fn of(directory: &OwnedFd, name: &OsStr) -> Result<Self, Errno> {
        let stat: Stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(Errno::NOTSOCK);
        }
        Ok(Self {
            name: name.to_owned(),
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }

    fn to_arguments(&self) -> [OsString; 3] {
        let number = |number: u64| OsString::from(number.to_string());
        [self.name.clone(), number(self.device), number(self.inode)]
    }

    /// Reads what [`Self::to_arguments`] returned.
    pub(super) fn from_arguments(arguments: &[OsString]) -> Option<Self> {
        let [name, device, inode] = arguments else {
            return None;
        };
        Some(Self {
            name: name.clone(),
            device: device.to_str()?.parse().ok()?,
            inode: inode.to_str()?.parse().ok()?,
        })
    }

    /// Returns whether the directory has this very file.
    pub(super) fn is_in(&self, directory: &OwnedFd) -> bool {
        Self::of(directory, &self.name).is_ok_and(|file| file == *self)
    }

    /// Removes the file, if it is still this one. The directory must be locked.
    pub(super) fn remove_from(&self, directory: &OwnedFd) {
        if self.is_in(directory) {
            // A file that stays is replaced by the next starter.
            let _ = unlinkat(directory, &self.name, AtFlags::empty());
        }
    }
}

/// Opens a program for execution by another process. Links such as `/proc/self/exe` are followed
/// here, where they mean the right file.
pub(super) fn open_program(program: &Path) -> Result<OwnedFd, KeeperError> {
    open(program, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| KeeperError::Start(errno.into()))
}
