//! Conformance suite for every environment: each promise of the traits is a case.
//!
//! [`conformance_suite!`] makes every case a named test of a [`Subject`](subject::Subject).
//! [`transport_suite!`] runs only the families that depend on the transport, on a shared host.
//! Legitimate differences between subjects are declared in their
//! [`SubjectCapabilities`](subject::SubjectCapabilities), and the cases assert both variants. The
//! subjects themselves are built in `tests/`.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "runs only in tests, where a failed assertion panics"
)]

mod bounded_wait;
pub mod cases;
pub mod concurrent_cases;
pub mod cutting_proxy;
pub mod difference;
mod followed_process;
pub mod hub;
pub mod load_generator;
pub mod pattern;
mod process_marker;
mod request;
pub mod restarted_server;
mod sandbox_policy;
mod scratch_dir;
pub mod server;
pub mod subject;
mod suite;
mod upstream_server;
