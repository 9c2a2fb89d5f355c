//! Why a store did not do what it was asked.

use std::{error::Error, sync::Arc};

use crate::limits;

/// Why the store cannot serve at all right now.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Host: the store is unreachable or cannot write. Asking again later may work.
    #[error("the store is unavailable")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// Host: what the store holds is not what the hub wrote.
    #[error("the store holds a damaged record of {what}")]
    Damaged {
        /// Which record, without its content.
        what: String,
    },
    /// We: the store is shutting down.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Wraps what the storage underneath said.
    pub fn unavailable(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(Arc::from(cause.into()))
    }
}

/// Why an environment was not made somebody's. In every case it is whose it was.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Caller: another principal owns the environment.
    #[error("the environment belongs to another principal")]
    Foreign,
    /// Caller: it owns as many environments as one principal may.
    #[error(
        "this principal owns {} environments, which is as many as one may own; remove one first",
        limits::ENVIRONMENTS_PER_PRINCIPAL
    )]
    Limit,
    /// Caller: the hub keeps no more environments.
    #[error("the hub holds as many environments as it can")]
    Full,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a registration was not made. In every case the current one stays.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Caller: another principal owns the environment.
    #[error("the environment belongs to another principal")]
    Foreign,
    /// Caller: another executor took this one's place and still holds it. Waiting may help.
    #[error("another executor has taken over this environment")]
    Conflict,
    /// Caller: it owns as many environments as one principal may.
    #[error(
        "this principal owns {} environments, which is as many as one may own; remove one first",
        limits::ENVIRONMENTS_PER_PRINCIPAL
    )]
    Limit,
    /// Caller: the hub keeps no more environments.
    #[error("the hub holds as many environments as it can")]
    Full,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<ClaimError> for RegisterError {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Foreign => Self::Foreign,
            ClaimError::Limit => Self::Limit,
            ClaimError::Full => Self::Full,
            ClaimError::Store(error) => Self::Store(error),
        }
    }
}

/// Why an executor's socket was not attached.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Peer: its registration is not the current one, or the environment is gone.
    #[error("the registration is not current")]
    Superseded,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why an authorization was not kept.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorizeError {
    /// Caller: too many of its own wait for their use. They expire within a minute.
    #[error("too many harness authorizations of this principal are waiting")]
    Limit,
    /// Host: too many of all principals wait. They expire within a minute.
    #[error("too many harness authorizations are waiting")]
    Full,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}
