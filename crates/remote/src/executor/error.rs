//! Why an executor gave up.

use crate::{api::EnvironmentId, credentials::CredentialError, registry::RegistryError};

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

impl ExecutorError {
    /// Tells what kind of failure it is.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Register { source, .. } => Failure::of(source),
            Self::Abandoned => Failure::Runtime,
        }
    }
}

/// What a program that fails says with its exit status.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// What was asked for cannot work; nothing was tried.
    Usage,
    /// It was tried.
    Runtime,
}

impl Failure {
    /// Tells what kind of failure a request to a registry had.
    pub fn of(error: &RegistryError) -> Self {
        let is_usage = matches!(
            error,
            RegistryError::Url(_)
                | RegistryError::InTheClear(_)
                | RegistryError::Credential(CredentialError::Reach(_))
        );
        if is_usage { Self::Usage } else { Self::Runtime }
    }
}
