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

mod boot;
mod child;
mod error;
mod frame;
mod init;
mod job;
mod process;
mod progress;
mod report;
mod serve;
mod supervise;

pub use self::{
    boot::run_if_spawner,
    error::{SpawnError, Stage},
    frame::{Extra, Limit, MAX_EXTRA, MAX_FDS, MAX_FRAME_BYTES, Resource, Spec},
    process::{SpawnerProcess, adopt_orphans, adopts_orphans, end_orphans},
    report::{ExitReport, Order, REPORT_BYTES, Report},
};
