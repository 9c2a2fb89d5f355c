//! Messages over a channel: cut into records, put in order, and made whole again.
//!
//! A *plain* stream is what stock endpoints speak: nothing is acknowledged, and a lost frame or
//! connection is the end. A *reliable* stream, between two endpoints that announced it, acknowledges,
//! sends again, holds the sender back while the receiving application does not read, and outlives its
//! connection.
//!
//! Invariant: messages come out whole, once, and in the order in which they went in, or the stream
//! ends with an error. Not here: handshakes, and how long a stream without a connection is kept.

mod acks;
mod assembly;
mod endpoint;
mod error;
mod inbox;
mod liveness;
mod outbox;
mod receiver;
mod reliable;
mod reorder;
mod rtt;
#[cfg(test)]
mod tests;
mod window;

pub use endpoint::{Delivery, Stream};
pub use error::StreamError;
pub use outbox::PushError;
