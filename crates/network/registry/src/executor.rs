//! An executor that waits for harnesses at a rendezvous.
//!
//! It registers, opens the websocket that the registry names, and serves the streams in it; when the
//! websocket ends it comes back by itself, with the same identity. Every stream becomes a link that
//! somebody else serves. Not here: streams and handshakes (`exec-transport`), methods
//! (`exec-service`).

mod dialing;
mod error;
mod remote;
mod validator;

pub use self::{
    dialing::Dialing,
    error::ExecutorError,
    remote::{Presence, RemoteExecutor, Settings},
};
