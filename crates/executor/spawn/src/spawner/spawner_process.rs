//! A spawner as its parent sees it, and the orphans that a dead one leaves.

use std::{
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::{self, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, child_subreaper, getpid, pidfd_open,
        pidfd_send_signal, set_child_subreaper, waitpid,
    },
};

use super::SPAWNER_NAME;
use crate::process_tree::{self as tree, ProcessStat};

/// Spawners of this process that have not been reaped. They belong to the process like its children do:
/// orphans come to the process, not to whoever started their ancestor.
static LIVE_SPAWNERS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Makes this process the one that orphans of its commands come to when supervisor and spawner were
/// killed, so that it can kill them. For programs that start processes through spawners only, or in their
/// own session: other children are left alone.
///
/// # Errors
/// When the kernel refuses.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Tells whether orphans of this process's commands come to it.
pub fn is_subreaper() -> bool {
    matches!(child_subreaper(), Ok(Some(_)))
}

/// Continues the orphans that dead spawners left to this process, or kills them if `kill` is set.
/// Returns whether there were any.
pub fn stop_orphans(kill: bool) -> bool {
    let orphans = tree::adopted_orphans(&live_spawners());
    for pid in &orphans {
        // Supervisors among them were continued by the kernel and know what to do.
        if kill {
            tree::kill_descendants(*pid);
            tree::signal(*pid, Signal::KILL);
        } else {
            tree::signal(*pid, Signal::CONT);
        }
        // Not reaped by anybody else: nobody here started it.
        let _ = waitpid(Pid::from_raw(*pid), WaitOptions::NOHANG);
    }
    !orphans.is_empty()
}

/// A spawner as its parent sees it.
#[derive(Debug)]
pub struct SpawnerProcess {
    pid: i32,
    /// Names the process, also when its number is another's.
    descriptor: OwnedFd,
    child: Mutex<process::Child>,
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
        // Whoever looks for orphans waits until it is known that this is none.
        let mut live = live_spawners();
        let child = command.spawn()?;
        let pid = child.id().cast_signed();
        live.push(pid);
        drop(live);
        // Its number is its own until it is reaped, which happens below only.
        let number = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty())?;
        Ok(Self {
            pid,
            descriptor,
            child: Mutex::new(child),
        })
    }

    /// Returns a descriptor of the process, readable from its death on.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.descriptor.try_clone()
    }

    /// Continues it, in case that somebody stopped it.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Err(errno) = pidfd_send_signal(&self.descriptor, signal) {
            tracing::debug!(%errno, ?signal, "spawner was not signalled");
        }
    }

    /// Tells whether a signal has stopped it, or a tracer holds it.
    pub fn is_stopped(&self) -> bool {
        ProcessStat::read(self.pid).is_some_and(ProcessStat::is_stopped)
    }

    /// Reaps it, if it has ended.
    pub fn reap(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = live_spawners();
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) => live.retain(|pid| *pid != self.pid),
            Err(error) => tracing::debug!(%error, "spawner was not reaped"),
        }
    }
}

impl Drop for SpawnerProcess {
    fn drop(&mut self) {
        // It ends when its socket closes. One that is still on its way out is reaped with this process.
        self.reap();
    }
}

fn live_spawners() -> MutexGuard<'static, Vec<i32>> {
    LIVE_SPAWNERS.lock().unwrap_or_else(PoisonError::into_inner)
}
