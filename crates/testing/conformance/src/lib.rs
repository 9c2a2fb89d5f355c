//! One suite for every environment: each promise of the traits is a case.
//!
//! [`conformance_suite!`] makes every case a named test of a [`Subject`](subject::Subject). What
//! legitimately differs between subjects is declared in their
//! [`Capabilities`](subject::Capabilities), and the cases assert both sides of it. Not here: the
//! subjects themselves, which are built in `tests/`.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "everything here runs in tests, where a panic is how a case fails"
)]

pub mod balancer;
pub mod cases;
pub mod cutting;
pub mod difference;
pub mod hub;
pub mod load;
mod marked;
pub mod nats;
mod outcome;
pub mod pattern;
mod policy;
mod request;
mod running;
mod scratch;
pub mod server;
pub mod subject;
mod suite;
mod under;
mod upstream;
mod within;
