//! Starts processes: the spawner, its supervisors, clone and exec, and the sandbox set-up in
//! between; and the keeper, which holds descriptors of processes that outlive their server.
//!
//! All code here is blocking and free of tokio. Nearly all `unsafe` code of the workspace is in
//! this crate. Elsewhere: the async task that owns each child (`exec-process`), sandbox policy
//! (`exec-sandbox`).
#![expect(
    unsafe_code,
    reason = "clone, exec, shared memory of supervisors, the allocator; each block states its argument"
)]

pub mod keeper;
pub mod network_namespace;
mod own_process;
pub mod process_tree;
mod raw;
pub mod sandbox_setup;
pub mod spawner;

pub use self::own_process::{
    release_free_memory, set_descriptors_close_on_exec, set_foreground_group,
};
