//! Environments by their ids: who starts them, when, and which handle is current.
//!
//! An id names the same executor for good; the handle under it is of this process and can be replaced.
//! Invariant: what is ready and the handle that is ready are read together, under one lock, and a
//! start that was overtaken by a replacement changes nothing.
//! Not here: how an environment is opened (whoever brings an [`EnvironmentSource`]), nor whether a
//! connection is up at this moment, which is its client's business.

mod id;
mod registry;
mod snapshot;
mod source;
mod start;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use self::{
    id::{EnvironmentId, EnvironmentIdError},
    registry::{EnvironmentError, EnvironmentManager, InsertError},
    snapshot::EnvironmentSnapshot,
    source::{EnvironmentSource, OpenError, Start},
    state::EnvironmentState,
    table::{MAX_ENVIRONMENTS, RETRY_AFTER},
};
