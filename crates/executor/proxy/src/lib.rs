//! Managed network of a process: a proxy for HTTP, CONNECT and SOCKS5 that enforces an allow-list.
//!
//! [`check_settings`](proxy::check_settings) validates the settings of a request,
//! [`ProxyServer`](proxy::ProxyServer) serves HTTP and SOCKS5 accordingly, and
//! [`ProxyBridge`](proxy::ProxyBridge) forwards connections to a proxy that the client runs. Both
//! accept listening sockets from another network namespace.
//!
//! Invariant: every connection goes to an address that the policy has checked, and no name is
//! resolved twice. Not here: creating namespaces, starting processes, asking clients.

pub mod environment;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod host_policy;
mod http;
pub mod limits;
pub mod policy_gate;
pub mod proxy;
mod socks;
pub mod target_host;
mod tunnel;

#[cfg(test)]
mod tests;
