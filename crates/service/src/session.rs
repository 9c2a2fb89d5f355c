//! Sessions: who owns which process, and for how long without a connection.

mod process;
mod registry;
mod state;

pub(crate) use self::{
    process::{Found, Process},
    registry::Registry,
    state::{AdmitError, Session, follow},
};
