//! What the service asks and tells a client about the network of processes, and what it keeps of them
//! for a client that acknowledges. The client is played by the test, message by message; the
//! environment runs nothing.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the functions below are parts of tests"
)]

mod detached_processes;
mod fake_environment;
mod metrics;
mod network_policy;
mod retention;
mod test_client;
