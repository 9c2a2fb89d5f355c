//! Processes: spawn, pseudo-terminals, pipes, tree kill, and the output log of each.
//!
//! One task owns one child: its descriptors, its supervisor, its log; others send it messages.
//! Not here: the protocol's encoding, environments, sandbox policy.
#![expect(
    unsafe_code,
    reason = "clone, exec, shared memory of supervisors, the allocator; each block states its argument"
)]

mod descriptors;
pub mod enclosure;
mod input;
mod memory;
mod owner;
mod pipe;
mod process;
mod pty;
mod raw;
mod register;
mod shared;
mod signals;
pub mod spawner;
mod text;
mod tree;

pub use self::{
    descriptors::keep_descriptors_from_programs,
    memory::release_free_memory,
    process::{Launch, LaunchIo, LocalProcess, Settings, launch},
    register::register,
    text::give_back_startup_code,
};
