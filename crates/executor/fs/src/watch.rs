//! Watching a file or a directory: every change is told, or it is said that some were not.
//!
//! Written on inotify itself, because a file must be told that appears in a directory younger than
//! its watch, and because a client that does not read must cost bounded memory: both need the order
//! of watching and listing, and the queue, in one hand.
//!
//! What a client can rely on: if it looks at each path it is told, below those that are created or
//! renamed, and at everything after an overflow, it knows the tree.
//! - Each path is told once in a batch, with what became of it since the last one ([`gathered`]).
//! - A rename inside what is watched tells both paths as renamed, and nothing of what lies below.
//!   What comes from outside is created, with all that lies below; what goes outside is removed.
//! - A directory that is found late is listed after it is watched, and what it holds is told as
//!   created. So a path may be told as created twice, but no file is missed.
//! - While a part of the tree cannot be watched, because there are too many directories, every batch
//!   says overflow. Directories that the server may not read are left out in silence.
//! - When a watched directory is removed or goes elsewhere, also with a directory above it, it is
//!   told as removed and the changes end. A watched file may come back; its changes end with its
//!   directory.
//! - Links below are not followed. One directory that is mounted at two places is told at one.
//!
//! Not here: the kernel's queue (`inotify`), which client watches what, the wire's encoding.

mod begin;
mod directories;
mod entries;
mod gathered;
mod outbox;
mod scan;
#[cfg(test)]
mod tests;
mod tree;

pub use begin::watch;
