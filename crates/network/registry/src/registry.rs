//! Asking a registry.
//!
//! Whatever a registry answers is checked here: nothing deeper looks again. Which failures are worth
//! another try is known here too; `register` tries by itself. Not here: when a harness tries again
//! (`harness`), who is asking (`credentials`).

mod client;
mod error;
mod registering;
#[cfg(test)]
mod tests;

pub use self::{
    client::{REQUEST_TIMEOUT, Registry},
    error::{Member, RegistryError},
};
