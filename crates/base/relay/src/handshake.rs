//! The hybrid Noise handshake: two messages, after which both endpoints hold a [`Channel`].
//!
//! Invariant: what is bound into the transcript (environment, registration, stream) is the same on
//! both sides, or the first message does not decrypt. Lengths are checked before the library sees a
//! byte. Not here: whether a harness is welcome; the executor's registry says that.
//!
//! [`Channel`]: crate::channel::Channel

mod endpoints;
mod noise;
#[cfg(test)]
mod tests;

pub use endpoints::{Initiator, Responder};
pub use noise::{HandshakeError, Scope};
