//! An executor that dials the harness side itself, without relay and without Noise.
//!
//! The registry names a websocket; who accepts it is the client of the messages in it. One link
//! exists at a time: when it ends, the executor dials again. Not here: methods and sessions
//! (`exec-service`), which outlive a link.

mod error;
mod executor;
mod signer;
mod upgrade;

pub use self::{
    error::DirectError,
    executor::{DirectExecutor, Settings},
    signer::{DEFAULT_SERVICE, SigV4},
    upgrade::Proof,
};
