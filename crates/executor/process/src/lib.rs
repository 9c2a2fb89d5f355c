//! Processes: the task that owns each child, its pipes or terminal, its input and its output log.
//!
//! One task owns one child: its descriptors, its supervisor, its log; others send it messages.
//! Not here: spawner and supervisors (`exec-spawn`), the protocol's encoding, environments, sandbox
//! policy.

mod launch;
mod local_process;
mod process_task;
mod shared_state;
pub mod spawner;
mod stdin_queue;
mod stdio;

pub use exec_spawn::enclosure; // MOVED
pub use exec_spawn::{give_back_startup_code, keep_descriptors_from_programs, release_free_memory}; // MOVED

pub use self::{
    launch::{Launch, LaunchIo, Settings, launch},
    local_process::LocalProcess,
    stdio::register,
};
