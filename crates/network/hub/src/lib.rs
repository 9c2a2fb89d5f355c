//! Self-hosted registry and rendezvous: reaches machines behind any NAT, with end-to-end
//! encryption.
//!
//! The [`registry`] serves HTTP: it registers environments and authorizes connections to them. The
//! [`rendezvous`] forwards frames between the websockets of executors and harnesses and cannot read
//! them. State is behind [`store::Store`] and connected executors are behind
//! [`circuit::CircuitDialer`], so that a single process and a cluster (module and feature `nats`)
//! behave the same.
//! Elsewhere: the content of frames (`exec-relay`).

pub mod admin;
pub mod audit;
pub mod circuit;
pub mod config;
pub mod direct;
pub mod executor_table;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod hub;
pub mod invites;
pub mod limits;
pub mod metrics;
#[cfg(feature = "nats")]
pub mod nats;
pub mod principal;
pub mod rate_limit;
pub mod registry;
pub mod rendezvous;
pub mod store;
pub mod tokens;
pub mod url;
