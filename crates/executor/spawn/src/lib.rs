//! Starts processes: the spawner, its supervisors, and what happens between clone and exec.
//!
//! Everything here is blocking or runs between a clone and an exec. Nearly all `unsafe` of the
//! workspace is here. Not here: the async task that owns each child (`exec-process`), sandbox policy
//! (`exec-sandbox`).
#![expect(
    unsafe_code,
    reason = "clone, exec, shared memory of supervisors, the allocator; each block states its argument"
)]

pub mod enclosure;
mod own_process;
pub mod process_tree;
mod raw;
pub mod spawner;

pub use self::own_process::{
    give_back_startup_code, keep_descriptors_from_programs, release_free_memory,
};
