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
//! The spawner also starts short-lived *socket helpers*, which create sockets in the network
//! namespaces of commands ([`network_namespace`](crate::network_namespace)).
//!
//! A *durable* spawner is started by the [`keeper`]. It outlives the server that sends it commands,
//! and exits after its last supervisor.
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
mod socket_helper;
mod spawner_loop;
mod spawner_process;
mod supervisor;

use std::ffi::OsStr;

use crate::keeper;

pub use self::{
    command_spec::{
        CommandSpec, CommandStdio, InheritedFd, MAX_EXTRA, MAX_FDS, MAX_FRAME_BYTES, ResourceLimit,
    },
    report::{ExitReport, REPORT_BYTES, SpawnError, SpawnStage, SupervisorOrder, SupervisorReport},
    spawner_process::{SpawnerProcess, adopt_orphans, is_subreaper, stop_orphans},
};

pub(crate) use self::{
    spawner_loop::block_signals,
    spawner_process::{OwnChildren, has_exited, stop_orphans_except},
};

/// `argv[0]` of a spawner.
const SPAWNER_NAME: &str = "exec-server-spawner";
/// `argv[0]` of a durable spawner.
pub(crate) const DURABLE_SPAWNER_NAME: &str = "exec-server-durable-spawner";

/// Runs the spawner or the keeper, and never returns, if this process was started as one. Programs
/// on a C library that passes no arguments to initialisers call this at the top of `main`.
pub fn run_if_spawner() {
    let name = std::env::args_os().next();
    let is_named = |role: &str| name.as_deref() == Some(OsStr::new(role));
    if is_named(SPAWNER_NAME) {
        spawner_loop::run(SpawnerKind::Ordinary);
    }
    if is_named(DURABLE_SPAWNER_NAME) {
        spawner_loop::run(SpawnerKind::Durable);
    }
    keeper::run_if_keeper();
}

/// What a spawner does when its request socket closes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SpawnerKind {
    /// Its supervisors have lost their server, too: ends their trees, and exits.
    Ordinary,
    /// Serves its supervisors until the last one has exited. Their control sockets are held
    /// elsewhere, or close on their own.
    Durable,
}

extern "C" fn before_main() {
    run_if_spawner();
}

#[used]
// SAFETY: the section holds pointers to functions without arguments; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;
