//! Filters of system calls: which are refused, and why.
//!
//! Everything that is not named is allowed: what a command may reach is decided by namespaces, mounts
//! and Landlock; a filter refuses what they cannot. Not here: applying a filter (`exec-process`).

mod assembler;
mod rules;

#[cfg(test)]
mod tests;

pub use self::rules::{Filter, Sockets, filter};
