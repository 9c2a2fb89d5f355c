//! `exec-server cp`: copies files and directories between this machine and environments.
//!
//! Both ends are file systems behind the same trait, so that there is one way to copy, in either
//! direction and between two environments. Content goes to a hidden part beside its target, and takes
//! the target's name when it is whole; so does a tree that is copied to where nothing is.
//! Invariant: under the target's name there is the old file or the new one, never a piece; what is no file is
//! never replaced.
//! Not here: owners, hard links, extended attributes.

mod arguments;
mod blocks;
mod copier;
mod job;
mod journal;
mod landing;
mod links;
mod meter;
mod modes;
mod part;
mod program;
mod scan;
mod side;
mod target;
mod tree;

pub use self::arguments::Cp;
