//! The managed network of a process: its proxy, decisions, and unreachable destinations.
//!
//! Programs inside are shell functions that send plain bytes to the proxy. Destinations are servers
//! of the test on loopback. Where a decision would lead beyond, the server under test runs in an
//! empty network namespace. Sandboxes without a managed network are in `sandbox`.

mod advisory_proxy;
mod bad_settings;
mod client_proxy;
mod datagrams;
mod decision_records;
mod decision_requests;
mod enforced_proxy;
mod fixture;
mod local_addresses;
mod profiles;
mod proxy_variables;
