//! Support for the tests of every crate: a scripted environment, bounded waits, and the programs of
//! the workspace.
//!
//! Only dev-dependencies name this crate. It knows the traits of an environment and none of their
//! implementations, so tests of any crate can use it. Not here: the suite that all environments
//! pass (`exec-conformance`).
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "runs only in tests, where a failed assertion panics"
)]

pub mod bounded_wait;
pub mod fake_environment;
pub mod fake_network;
pub mod fake_process;
pub mod keeper_process;
pub mod workspace_program;
