//! The transport over a scripted process.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a panic is how a test fails"
)]

mod failing;
mod fake_server;
mod messages;
