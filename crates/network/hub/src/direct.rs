//! Direct executors: they dial the hub and speak JSON-RPC on the socket, without relay and Noise.
//!
//! An executor registers, opens its socket and waits; a harness opens `GET /direct/<environment>`
//! with its token, and the two are joined message by message, one harness at a time. When either
//! ends, the other is closed, and the executor dials again.
//! **This path is not end-to-end encrypted**: the hub can read every message. TLS guards the two
//! ways to it. Who needs more takes the relay.
//! Invariant: of two executors the newer wins, and the older is told to end. Whose an environment is
//! the store knows; the table here holds sockets and who registered them, so that losing it costs a
//! reconnect and nothing else. Executor and harness must come to the same node.

mod identify;
mod keys;
mod pipe;
mod register;
mod seat;
mod service;
mod table;
#[cfg(test)]
mod tests;
mod upgrade;

pub use keys::{AccessKeys, KeysError};
pub use service::{Direct, Listed};
pub use upgrade::DirectUpgrade;
