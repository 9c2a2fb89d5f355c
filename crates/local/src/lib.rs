//! The local environment: commands of this machine, with its shell, environment and limits.
//!
//! Joins what runs processes with what describes the host. Not here: the wire, sockets, sessions.

pub mod backend;
pub mod env_policy;
pub mod host;
pub mod shell_snapshot;
mod snapshots;
