//! What travels: protocol types, the method table, error codes, limits and path URIs.
//!
//! Everything above speaks in these types; text becomes an id, a path or a number here and is not
//! checked again deeper down. Not here: sockets, ordering, sessions, anything that runs.

pub mod bytes;
pub mod command;
pub mod config;
pub mod discovery;
pub mod environment;
pub mod error;
pub mod fs;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod http;
pub mod id;
pub mod initialize;
pub mod limits;
pub mod message;
pub mod method;
pub mod network;
pub mod outgoing;
pub mod path_uri;
pub mod process;
pub mod sandbox;
