//! Why an executor gave up.

use crate::{api::EnvironmentId, registry::RegistryError};

/// Why an executor gave up. Everything else it outlives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// As the source says: the registry does not take the environment. Nobody knows whether another
    /// registration has replaced ours, so it is not tried again.
    #[error("cannot register environment `{environment}`")]
    Register {
        /// The environment.
        environment: EnvironmentId,
        /// Why.
        source: RegistryError,
    },
    /// We: nobody takes the links any more.
    #[error("nobody serves the connections of this executor any more")]
    Abandoned,
}
