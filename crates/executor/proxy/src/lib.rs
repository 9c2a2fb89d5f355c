//! The managed network of a process: a proxy that lets through what a policy allows.
//!
//! [`check`](settings::check) turns the wire's settings into checked ones, [`Proxy`](proxy::Proxy)
//! serves HTTP and SOCKS5 by them, and [`Bridge`](bridge::Bridge) carries connections to a proxy of
//! the client's. Both take listening sockets that may live in another network namespace.
//!
//! Invariant: a connection leaves only to an address that was itself judged; no name is looked up
//! twice. Not here: making namespaces, starting processes, asking clients.

mod accept;
pub mod address;
pub mod bridge;
pub mod environment;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gate;
pub mod host;
mod http;
pub mod limits;
pub mod listeners;
pub mod outside;
pub mod pattern;
pub mod policy;
pub mod proxy;
pub mod settings;
mod socks;
mod timestamp;
mod tunnel;

#[cfg(test)]
mod tests;
