//! The spawner: a small process that starts all commands, with one supervisor for each.
//!
//! The server asks its *spawner*, a fresh single-threaded process of the same executable, to start
//! a command. The spawner clones a *supervisor* that shares its memory, and the supervisor clones
//! the command's process. The supervisor is the parent of the command and the subreaper of all its
//! descendants, so double-forked descendants are found, too. It reports start and exit over its own
//! socket. It kills the tree when ordered to, or when the server's end of that socket closes, so a
//! killed server leaves no process behind.
//!
//! Commands without a sandbox can signal all of these processes. The spawner continues a stopped
//! supervisor; the server continues a stopped spawner. Either can kill a tree if its supervisor
//! does not.
//!
//! A command with namespaces has an *init* between itself and its supervisor. Init sets up the
//! namespaces and is the first process in them.
//!
//! The executable becomes a spawner before `main`, by the name under which it is started. Every
//! program that links this crate can be its own spawner, including test binaries.
//!
//! Invariant: code that runs between clone and exec, and all code of a supervisor, neither
//! allocates nor locks nor touches thread-local state.

mod child_setup;
mod command_spec;
mod job;
mod namespace_init;
mod report;
mod spawner_loop;
mod supervisor;

use std::{
    ffi::OsStr,
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

use crate::process_tree::{self as tree, ProcessStat};

pub use self::{
    command_spec::{
        CommandSpec, InheritedFd, LimitedResource, MAX_EXTRA, MAX_FDS, MAX_FRAME_BYTES,
        ResourceLimit,
    },
    report::{ExitReport, REPORT_BYTES, SpawnError, SpawnStage, SupervisorOrder, SupervisorReport},
};

/// `argv[0]` of a spawner.
const SPAWNER_NAME: &str = "exec-server-spawner";

/// Runs the spawner, and never returns, if this process was started as one. Programs on a C library
/// that passes no arguments to initialisers call this at the top of `main`.
pub fn run_if_spawner() {
    if std::env::args_os().next().as_deref() == Some(OsStr::new(SPAWNER_NAME)) {
        spawner_loop::run();
    }
}

extern "C" fn before_main() {
    run_if_spawner();
}

#[used]
// SAFETY: the section holds pointers to functions without arguments; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// Pids of spawners of this process that were not reaped. Global, because orphans become children
/// of the process, whichever handle started their ancestor.
static LIVE_SPAWNERS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

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
    let orphans = tree::adopted_orphans(&live_spawners());
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

/// A spawner process as its parent sees it.
#[derive(Debug)]
pub struct SpawnerProcess {
    pid: i32,
    /// A pidfd, which stays valid when the pid is reused.
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
        // Holds the lock while the pid is unknown, so that it is not taken for an orphan.
        let mut live = live_spawners();
        let child = command.spawn()?;
        let pid = child.id().cast_signed();
        live.push(pid);
        drop(live);
        // The pid cannot be reused before `reap` below.
        let number = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty())?;
        Ok(Self {
            pid,
            descriptor,
            child: Mutex::new(child),
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
        ProcessStat::read(self.pid).is_some_and(ProcessStat::is_stopped)
    }

    /// Reaps the spawner if it has exited.
    pub fn reap(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = live_spawners();
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) => live.retain(|pid| *pid != self.pid),
            Err(error) => tracing::debug!(%error, "failed to reap spawner"),
        }
    }
}

impl Drop for SpawnerProcess {
    fn drop(&mut self) {
        // The spawner exits when its socket closes. If it has not yet, it is reaped when this
        // process exits.
        self.reap();
    }
}

fn live_spawners() -> MutexGuard<'static, Vec<i32>> {
    LIVE_SPAWNERS.lock().unwrap_or_else(PoisonError::into_inner)
}
