//! Shell snapshots: a login shell's state, captured once and replayed before each command.
//!
//! The caller runs [`capture::argv`], hands its output to [`parse::captured`], keeps the result in
//! a [`cache::SnapshotCache`] and starts commands as [`replay`] rewrites them. Whatever fails on
//! the way, the command runs unchanged.
//!
//! Invariant: a replayed command sees the functions, aliases, options and exported variables that
//! it would see after the profiles ran; aliases are active exactly if they would be there.
//! Not here: running shells, time limits, the descriptor that carries the state. Variables that the
//! profiles do not export, traps and resource limits are not part of the state.

pub mod cache;
pub mod capture;
mod kind;
pub mod parse;
pub mod replay;
#[cfg(test)]
mod tests;

pub use self::kind::{ShellKind, SnapshotError, applies};
