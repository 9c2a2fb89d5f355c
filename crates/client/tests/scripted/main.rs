//! The client against a server that is played by the test, message by message.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the functions below are parts of tests"
)]

mod files;
mod processes;
mod questions;
mod server;
