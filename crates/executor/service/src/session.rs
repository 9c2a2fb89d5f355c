//! Sessions: who owns which process, and for how long without a connection.

mod finished;
mod kept;
mod life;
mod process;
mod registry;
mod state;
mod watcher;

pub(crate) use self::{
    kept::{Keeping, Kept},
    life::Life,
    process::{Found, OwnerCell, Process},
    registry::Registry,
    state::{AdmitError, Bounds, Session, follow},
    watcher::{Client, Watcher},
};
