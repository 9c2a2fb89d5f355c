//! Tests with real processes: the server, the examples, and environments.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod embedding;
mod examples;
mod managed;
mod names;
mod program;
mod relay;
mod statuses;
