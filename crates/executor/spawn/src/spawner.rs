//! A small process that starts all the others, and one supervisor for each of them.
//!
//! The server asks its *spawner*, a fresh and single-threaded image of its own executable, to start
//! a command. The spawner clones a *supervisor* that shares its memory, which clones the command's
//! process. The supervisor is the parent of the process and the reaper of everything that descends
//! from it, so that double-forked descendants are found; it reports start and exit over a socket of
//! its own, and kills the tree when it is told to, or when the server's end of that socket closes.
//! A server that is killed leaves nothing behind.
//!
//! Commands without a sandbox can signal all of these processes. A supervisor that is stopped is continued
//! by the spawner, a spawner by the server; each of both can kill a tree whose supervisor does not.
//!
//! A command that is enclosed in namespaces has an *init* between itself and its supervisor, which
//! makes the namespaces and is the first process in them.
//!
//! Invariant: code that runs between a clone and an exec, and all of a supervisor, neither
//! allocates nor locks nor touches thread-local state.

mod child_setup;
mod command_spec;
mod job;
mod namespace_init;
mod report;
mod spawner_loop;
mod spawner_process;
mod start_progress;
mod supervisor;

pub use self::{
    command_spec::{
        Extra, LimitedResource, MAX_EXTRA, MAX_FDS, MAX_FRAME_BYTES, ResourceLimit, Spec,
    },
    report::{ExitReport, REPORT_BYTES, SpawnError, Stage, SupervisorOrder, SupervisorReport},
    spawner_process::{SpawnerProcess, adopt_orphans, is_subreaper, stop_orphans},
};

use std::ffi::OsStr;

/// The name under which the executable is a spawner.
const SPAWNER_NAME: &str = "exec-server-spawner";

/// Serves as a spawner, and never returns, if this process was started as one.
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
