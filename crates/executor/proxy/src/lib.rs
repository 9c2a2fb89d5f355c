//! The managed network of a process: a proxy that lets through what a policy allows.
//!
//! [`check`](settings::check) turns the wire's settings into checked ones, [`Proxy`](proxy::Proxy)
//! serves HTTP and SOCKS5 by them, and [`Bridge`](proxy::Bridge) carries connections to a proxy of
//! the client's. Both take listening sockets that may live in another network namespace.
//!
//! Invariant: a connection leaves only to an address that was itself judged; no name is looked up
//! twice. Not here: making namespaces, starting processes, asking clients.

pub mod environment;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod host_policy;
mod http;
pub mod limits;
pub mod outside;
mod policy_gate;
pub mod proxy;
pub mod settings;
mod socks;
pub mod target_host;
mod tunnel;

#[cfg(test)]
mod tests;

// MOVED
pub use self::{proxy as bridge, proxy as listeners};
