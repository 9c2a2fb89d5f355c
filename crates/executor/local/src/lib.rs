//! The local environment: commands, files, HTTP requests and configuration of this machine.
//!
//! Joins `exec-process`, `exec-fs`, `exec-sandbox` and `exec-proxy` behind the traits of
//! `exec-env`. Elsewhere: the wire format, transports and sessions.

pub mod backend;
pub mod catalog;
pub mod durable_state;
pub mod env_policy;
pub mod filesystem;
pub mod host;
pub mod http_client;
pub mod local_network;
mod process_network;
mod session_processes;
pub mod shell_snapshot;
pub mod tunnel_socket;
