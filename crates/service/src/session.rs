//! Sessions: who owns which process, and for how long without a connection.

mod process;
mod registry;
mod state;
mod watcher;

pub(crate) use self::{
    process::{Found, Process},
    registry::Registry,
    state::{AdmitError, Session, follow},
    watcher::{Client, Watcher},
};
