//! A spawner process as the server sees it, and the orphans that dead spawners leave behind.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{self, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, child_subreaper, getpid,
        pidfd_open, pidfd_send_signal, set_child_subreaper, waitid, waitpid,
    },
};

use super::SPAWNER_NAME;
use crate::process_tree::{self as tree, ProcessStat};

/// Pids of spawners and keepers that are not orphans, although they may be children of this process
/// in another session. Global, because orphans become children of the process, whichever handle
/// started their ancestor.
static OWN_CHILDREN: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Locked access to the pids that [`stop_orphans`] leaves alone.
#[derive(Debug)]
pub(crate) struct OwnChildren(MutexGuard<'static, Vec<i32>>);

impl OwnChildren {
    /// Locks the list. Hold it while starting a process, so that the process is not taken for an
    /// orphan while its pid is unknown.
    pub(crate) fn lock() -> Self {
        Self(OWN_CHILDREN.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a pid.
    pub(crate) fn insert(&mut self, pid: i32) {
        self.0.push(pid);
    }

    /// Removes a pid as often as it was added once.
    pub(crate) fn remove(&mut self, pid: i32) {
        if let Some(index) = self.0.iter().position(|own| *own == pid) {
            self.0.swap_remove(index);
        }
    }
}

/// Makes this process a subreaper: it adopts orphans of its commands after supervisor and spawner
/// were killed, and can kill them. For programs that start processes only through spawners or in
/// their own session; other children are not touched.
///
/// # Errors
/// Fails if the kernel refuses.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Returns whether this process adopts orphans of its commands.
pub fn is_subreaper() -> bool {
    matches!(child_subreaper(), Ok(Some(_)))
}

/// Continues the orphans that dead spawners left to this process, or kills them if `kill` is set.
/// Returns whether there were any.
pub fn stop_orphans(kill: bool) -> bool {
    let own = OwnChildren::lock();
    stop_orphans_except(&own.0, kill)
}

/// As [`stop_orphans`], with the pids of the children that are not orphans.
pub(crate) fn stop_orphans_except(own: &[i32], kill: bool) -> bool {
    let orphans = tree::adopted_orphans(own);
    for pid in &orphans {
        // The kernel has continued supervisors among them, which kill their own trees.
        if kill {
            tree::kill_descendants(*pid);
            tree::signal(*pid, Signal::KILL);
        } else {
            tree::signal(*pid, Signal::CONT);
        }
        // Nothing else reaps it, because nothing in this process started it.
        let _ = waitpid(Pid::from_raw(*pid), WaitOptions::NOHANG);
    }
    !orphans.is_empty()
}

/// A spawner process as the server sees it: its child, or a durable spawner that the keeper
/// started.
#[derive(Debug)]
pub struct SpawnerProcess {
    pid: i32,
    /// A pidfd, which stays valid when the pid is reused.
    descriptor: OwnedFd,
    /// `None`: a durable spawner.
    child: Option<Mutex<process::Child>>,
}

impl SpawnerProcess {
    /// Starts `program` as a spawner that serves the other end of `socket`.
    pub fn start(program: &Path, socket: OwnedFd) -> io::Result<Self> {
        let mut command = process::Command::new(program);
        command
            .arg0(SPAWNER_NAME)
            .env_clear()
            .current_dir("/")
            .stdin(socket)
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        let mut own = OwnChildren::lock();
        let child = command.spawn()?;
        let pid = child.id().cast_signed();
        own.insert(pid);
        drop(own);
        // The pid cannot be reused before `reap` below.
        let number = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty())?;
        Ok(Self {
            pid,
            descriptor,
            child: Some(Mutex::new(child)),
        })
    }

    /// Takes over the pidfd of a durable spawner.
    ///
    /// # Errors
    /// Fails if the descriptor is not a pidfd.
    pub fn from_pidfd(descriptor: OwnedFd) -> io::Result<Self> {
        let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        let info = fs::read_to_string(path)?;
        let number = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        let pid = number
            .and_then(|number| number.trim().parse().ok())
            .ok_or(Errno::BADF)?;
        // If the keeper dies, this process may become the spawner's parent.
        OwnChildren::lock().insert(pid);
        Ok(Self {
            pid,
            descriptor,
            child: None,
        })
    }

    /// Returns a pidfd, which becomes readable when the process exits.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.descriptor.try_clone()
    }

    /// Continues the spawner, in case it was stopped.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal to the spawner.
    pub fn signal(&self, signal: Signal) {
        if let Err(errno) = pidfd_send_signal(&self.descriptor, signal) {
            tracing::debug!(%errno, ?signal, "failed to signal spawner");
        }
    }

    /// Returns whether a signal or a tracer has stopped the spawner.
    pub fn is_stopped(&self) -> bool {
        ProcessStat::read(self.pid).is_some_and(ProcessStat::is_stopped) && !self.has_exited()
    }

    /// Returns whether the spawner has exited.
    pub fn has_exited(&self) -> bool {
        has_exited(&self.descriptor)
    }

    /// Reaps the spawner if it has exited and is a child of this process.
    pub fn reap(&self) {
        let Some(child) = &self.child else {
            // It is a child of this process if the keeper has died and this process is a subreaper.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let _ = waitid(WaitId::PidFd(self.descriptor.as_fd()), options);
            return;
        };
        let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own = OwnChildren::lock();
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) => own.remove(self.pid),
            Err(error) => tracing::debug!(%error, "failed to reap spawner"),
        }
    }
}

impl Drop for SpawnerProcess {
    fn drop(&mut self) {
        // The spawner exits when its socket closes. If it has not yet, it is reaped when this
        // process exits.
        self.reap();
        if self.child.is_none() {
            OwnChildren::lock().remove(self.pid);
        }
    }
}

/// Returns whether the process of a pidfd has exited.
pub(crate) fn has_exited(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}
