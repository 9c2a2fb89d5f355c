//! Executors against a registry, a rendezvous, a destination and a harness that the tests play
//! themselves, over real sockets of this machine. Time is virtual: it passes when nobody has anything
//! to do.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the functions below are parts of tests"
)]

mod dialling;
mod forwarding;
mod harness;
mod messages;
mod stage;
mod stand;
mod waiting;
