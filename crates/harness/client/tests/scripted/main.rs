//! The client against a server that is played by the test, message by message.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the functions below are parts of tests"
)]

mod acknowledging;
mod attaching;
mod bodies;
mod connection;
mod doors;
mod files;
mod losing;
mod malformed;
mod older;
mod pacing;
mod processes;
mod questions;
mod recovering;
mod repeating;
mod replaced;
mod server;
mod tracing;
