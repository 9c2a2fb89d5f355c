//! The embedded store: one process, one file, nothing to set up.
//! Owners, registrations and the signing key are durable. Presence and authorizations are memory:
//! they mean nothing once the process that holds the sockets is gone.
//! Invariant: one thread writes. What it is asked within one commit shares that commit, so that a
//! thousand executors that register at once do not wait for a thousand disk flushes.

mod live;
mod open;
mod owned;
mod store;
mod tables;
mod writer;

pub use open::OpenError;
pub use store::RedbStore;
#[cfg(test)]
pub(crate) use store::tests::{lose_writer, on_disk};
