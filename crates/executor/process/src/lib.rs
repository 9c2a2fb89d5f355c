//! Runs local processes: one async task owns each child with its pipes or terminal, its stdin queue
//! and its output log.
//!
//! Invariant: only the process task touches the child's descriptors and supervisor. Callers share
//! its state through `SharedState` and wake it. Elsewhere: spawner and supervisors (`exec-spawn`),
//! the protocol's encoding (`exec-wire`), sandbox policy (`exec-sandbox`).

mod child_input;
mod durable_record;
mod durable_store;
mod journaled_stdin;
mod keeper_connection;
mod launch;
mod local_process;
mod process_archive;
mod process_task;
pub mod spawner;
mod stdin_queue;
mod stdio;

pub use self::{
    durable_store::{AdoptedProcess, DurableStore, RecordedProcess, lost_exit},
    launch::{LaunchStdio, ProcessLaunch, launch},
    local_process::LocalProcess,
    stdio::register,
};
