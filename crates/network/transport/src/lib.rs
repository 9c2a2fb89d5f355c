//! Links that carry messages: websocket, stdio, unix socket, memory, and streams through a relay.
//!
//! A [`Link`](link::Link) reads and writes whole messages and does not interpret them. Elsewhere:
//! methods, sessions and ordering.

pub mod auth;
mod confinement;
pub mod connect;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod http;
pub mod lines;
pub mod link;
pub mod listen_url;
pub mod listener;
pub mod memory;
mod peer_account;
pub mod relay;
pub mod tls;
pub mod trace;
mod unix_socket;
pub mod websocket;
