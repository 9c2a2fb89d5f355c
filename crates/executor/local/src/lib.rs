//! The local environment: commands and files of this machine.
//!
//! Joins what runs processes, what works on files and what describes the host. Not here: the wire, sockets, sessions.

pub mod backend;
pub mod catalog;
mod command_network;
pub mod env_policy;
pub mod filesystem;
pub mod host;
pub mod http_client;
pub mod shell_snapshot;
