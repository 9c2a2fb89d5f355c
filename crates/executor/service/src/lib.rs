//! Connections, sessions and the routing of methods onto an environment.
//!
//! A connection decodes requests, orders them and writes answers; a session owns processes and
//! outlives its connection; a handler turns one request into one call of the environment.
//! Not here: how anything runs (tests run this over a fake), which transport carries it.

mod answer;
mod asked;
mod call;
mod connection;
mod files;
mod handler;
pub mod meters;
mod notify;
mod observed;
mod outbox;
mod service;
mod session;
mod streams;
mod task;

pub use self::{
    observed::{ContinueTrace, Origin},
    service::{Concurrency, Service, ServiceConfig},
};
