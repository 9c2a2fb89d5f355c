//! The client: connects to an exec-server over any link and presents it as an environment.
//!
//! One task owns a connection: it reads, writes, matches answers to calls, puts the events of each
//! process in order and hands every change to its watch; handles send it messages. When the connection
//! breaks, it opens another one and resumes the session; when that cannot be, every operation fails at
//! once. Not here: how links work (`exec-transport`), how anything runs.

pub mod backend;
pub mod catalog;
pub mod client;
mod client_shared;
pub mod connect;
mod driver;
pub mod error;
mod events;
pub mod filesystem;
mod handshake;
pub mod http;
mod notification;
pub mod process;
mod server_kind;

#[doc(hidden)]
pub mod connection {
    pub use crate::client::ConnectionState; // MOVED
}
#[doc(hidden)]
pub mod connector {
    pub use crate::connect::{Connector, Continuity, Pause}; // MOVED
}
#[doc(hidden)]
pub mod options {
    pub use crate::client::ExecServerClientConnectOptions; // MOVED
}
#[doc(hidden)]
pub mod trace {
    pub use exec_transport::trace::TraceSource; // MOVED
}
