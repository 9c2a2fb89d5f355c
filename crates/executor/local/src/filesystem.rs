//! Files of this machine, for callers that do not block.
//!
//! What the kernel holds in memory is answered at once, on the caller's thread; everything else runs
//! on threads that may block, and what a policy restricts in processes that it encloses. Changes run
//! in one line, in the order in which they were called.
//! Not here: the operations themselves (`exec-fs`), the enclosed processes (`exec-sandbox`).

mod here;
mod line;
mod local;
mod memory;
mod offload;
mod open;
mod policy;

pub use self::local::LocalFileSystem;
