//! The client: connects to an exec-server over any link and presents it as an environment.
//!
//! One task owns a connection: it reads, writes, matches answers to calls, puts the events of each
//! process in order and hands every change to its watch; handles send it messages. When the connection
//! breaks, it opens another one and resumes the session; when that cannot be, every operation fails at
//! once. Not here: how links work (`exec-transport`), how anything runs.

pub mod backend;
pub mod catalog;
pub mod client;
pub mod connect;
pub mod connection;
pub mod connector;
mod detached;
mod driver;
pub mod error;
mod events;
pub mod filesystem;
mod handshake;
pub mod http;
mod hub;
mod notification;
pub mod options;
mod peer;
pub mod process;
mod question;
mod snapshot;
pub mod trace;
