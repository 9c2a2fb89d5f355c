//! The client against a server that the test scripts message by message.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the functions below are parts of tests"
)]

mod acknowledgement;
mod attach;
mod backoff;
mod connection;
mod files;
mod http_bodies;
mod processes;
mod protocol_violations;
mod recovery;
mod retry;
mod reused_ids;
mod scripted_connector;
mod scripted_server;
mod server_requests;
mod session_loss;
mod stock_server;
mod tracing;
mod tunnels;
