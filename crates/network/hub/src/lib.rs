//! Self-hosted registry and rendezvous: any machine behind any NAT, end to end encrypted.
//!
//! The [`registry`] answers HTTP: who an environment is, and who may talk to it. The
//! [`rendezvous`] carries frames between the websockets of executors and harnesses; it cannot read
//! them. What is remembered sits behind [`store::Store`], and who is connected behind
//! [`exchange::Exchange`], so that one process and many ([`nats`]) are the same hub.
//! Not here: what travels inside the frames.

pub mod admin;
pub mod audit;
pub mod circuit;
pub mod circuit_dialer;
pub mod config;
pub mod direct;
pub mod executor_table;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod hub;
pub mod limits;
pub mod metrics;
pub mod nats;
pub mod principal;
pub mod rate_limit;
pub mod registry;
pub mod rendezvous;
pub mod store;
pub mod tokens;
pub mod url;
