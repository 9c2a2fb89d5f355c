//! Connections, sessions and the routing of methods onto an environment.
//!
//! A connection decodes requests, orders them and writes answers; a session owns processes and
//! outlives its connection; a handler turns one request into one call of the environment.
//! Not here: how anything runs (tests run this over a fake), which transport carries it.

mod connection;
mod connection_files;
mod handler;
pub mod meters;
mod method_call;
mod request_guard;
mod send_queue;
mod server_requests;
mod service;
mod session;

pub use self::{
    request_guard::{ContinueTrace, Origin},
    service::{Concurrency, Service, ServiceConfig},
};
