//! Why a direct executor gave up.

use exec_transport::connect::{AddressError, ConnectError, HeaderError};

use crate::{api::EnvironmentId, credentials::CredentialError, registry::RegistryError};

/// Why a direct executor gave up. Everything else it outlives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// As the source says: the registry does not take the environment.
    #[error("cannot register environment `{environment}`")]
    Register {
        /// The environment.
        environment: EnvironmentId,
        /// Why.
        source: RegistryError,
    },
    /// Caller: the upgrade cannot be authenticated.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// Peer: the registry named a URL that cannot be dialled. It is not repeated.
    #[error("URL that the registry named is refused")]
    Address(#[from] AddressError),
    /// Caller: what is to be sent with the upgrade cannot be.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Peer: who is dialled does not want this executor.
    #[error("executor is not wanted where it was sent")]
    Refused(#[source] ConnectError),
    /// We: nobody takes the links any more.
    #[error("nobody serves the connections of this executor any more")]
    Abandoned,
}
