//! Runs local processes: one async task owns each child with its pipes or terminal, its stdin queue
//! and its output log.
//!
//! Invariant: only the process task touches the child's descriptors and supervisor. Callers share
//! its state through `SharedState` and wake it. Elsewhere: spawner and supervisors (`exec-spawn`),
//! the protocol's encoding (`exec-wire`), sandbox policy (`exec-sandbox`).

mod launch;
mod local_process;
mod process_task;
pub mod spawner;
mod stdin_queue;
mod stdio;

pub use self::{
    launch::{LaunchStdio, OutputSettings, ProcessLaunch, launch},
    local_process::LocalProcess,
    stdio::register,
};
