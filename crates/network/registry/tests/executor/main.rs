//! Tests of executors against a scripted registry, rendezvous, forward destination and harness over
//! loopback sockets. Time is paused: it advances only when every task is idle.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the functions below are parts of tests"
)]

mod direct;
mod forwarding;
mod registry_server;
mod relay_client;
mod rendezvous;
