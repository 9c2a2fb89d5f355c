//! Wire protocol: protocol types, method table, error codes, limits and path URIs.
//!
//! All other crates use these types. Text becomes an id, a path or a number here and is not
//! validated again elsewhere. Sockets, request ordering and sessions are in the crates above.

pub mod base64_bytes;
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
pub mod outgoing_message;
pub mod path_uri;
pub mod process;
pub mod sandbox;
#[cfg(feature = "schema")]
pub mod schema;
pub mod server;
pub mod signal_name;
pub mod tunnel;
