//! The executor's end of a relay: one websocket, many streams, each a link for whoever serves it.
//!
//! Invariant: a harness that the [validator](Validator) has not approved gets a reset that says
//! nothing, or learns that the registry rejects the executor itself. Reliable streams outlive their connection, parked, for a while.

mod admission;
mod connection;
mod inbound;
mod pending;
mod serve;
mod streams;
#[cfg(test)]
mod tests;
mod validate;
mod vigil;

pub use self::{
    serve::{Ended, Executor},
    validate::{Claim, ValidationOutcome, Validator},
};
