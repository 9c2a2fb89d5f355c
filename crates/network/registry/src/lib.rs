//! Client side of a registry: how executors register and how harnesses reach them.
//!
//! A registry is a JSON API over HTTP. It gives an executor the URL of its rendezvous, and a
//! harness the URL and the public key of the executor to expect there. Elsewhere: the frames that
//! travel through the rendezvous (`exec-relay`, `exec-transport`), the server side (`exec-hub`),
//! environment variables (the product crate).

pub mod api;
pub mod aws;
pub mod backoff;
pub mod credentials;
pub mod direct;
pub mod executor;
pub mod forward;
pub mod harness;
pub mod http;
pub mod invite;
pub mod registry;
