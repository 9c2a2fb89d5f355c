//! The client: connects to an exec-server over any link and presents it as an environment.
//!
//! One task, the driver, owns the connection. It reads, writes, matches responses to calls, orders
//! the events of each process and passes changes to their watches; handles send it messages. When
//! the connection breaks, it reconnects with backoff and resumes the session. When recovery fails,
//! every operation fails immediately. Not here: the links (`exec-transport`), and how processes
//! run.

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
mod network;
mod polled_state;
pub mod process;
