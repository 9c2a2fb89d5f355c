//! Integration tests of the service: sessions, retention, network policy and metrics. The test
//! plays the client message by message; the environment is a fake that runs nothing.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the functions below are parts of tests"
)]

mod detached_processes;
mod metrics;
mod network_policy;
mod retention;
mod test_client;
