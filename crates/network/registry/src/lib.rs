//! Registries: how executors offer themselves through one, and how harnesses find them.
//!
//! A registry is a JSON API over HTTP. It tells an executor where its rendezvous is, and a harness
//! which executor to expect there. Not here: what travels through the rendezvous (`exec-relay`,
//! `exec-transport`), the registry itself (`exec-hub`), environment variables (the product crate).

pub mod api;
pub mod aws;
pub mod credentials;
pub mod delay;
pub mod direct;
pub mod executor;
pub mod forward;
pub mod harness;
pub mod http;
pub mod registry;

pub use self::api::sigv4; // MOVED
