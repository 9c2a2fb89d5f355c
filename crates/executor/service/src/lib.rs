//! Connections, sessions and the dispatch of methods onto an environment.
//!
//! A connection decodes requests, orders them and writes responses. A session owns processes and
//! outlives its connection. A handler turns one request into one call of the environment.
//! Elsewhere: how anything runs (tests use a fake environment) and which transport carries the
//! messages.

mod connection;
mod connection_files;
mod handler;
pub mod metrics;
mod request_guard;
mod send_queue;
mod server_requests;
mod service;
mod session;

pub use self::{
    request_guard::{ContinueTrace, TraceOrigin},
    service::{
        Concurrency, Durability, DurabilityDefault, RestoredCounts, ServerControl, Service,
        ServiceConfig,
    },
};
