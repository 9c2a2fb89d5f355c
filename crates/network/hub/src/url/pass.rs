//! What a rendezvous URL allows.

use http::StatusCode;

use crate::{
    exchange::HarnessTag,
    store::{EnvironmentId, RegistrationId},
};

/// What a valid rendezvous URL allows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Pass {
    /// To be the executor of a registration, while that is current.
    Executor {
        /// The environment.
        environment: EnvironmentId,
        /// The registration.
        registration: RegistrationId,
    },
    /// To reach the executor of a registration.
    Harness {
        /// The environment.
        environment: EnvironmentId,
        /// The registration.
        registration: RegistrationId,
        /// The key that the ticket was made for.
        harness: HarnessTag,
    },
}

/// Peer: why a URL opens nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// It is no rendezvous URL.
    #[error("not a rendezvous URL")]
    Unknown,
    /// An executor URL that this hub did not sign.
    #[error("executor URL is not valid")]
    ForgedExecutor,
    /// A harness URL that this hub did not sign.
    #[error("harness URL is not valid")]
    ForgedHarness,
    /// A harness URL whose time is over.
    #[error("harness URL has expired")]
    Expired,
}

impl PassError {
    /// Returns the answer to the upgrade: 4xx makes an executor register again, 401 makes a
    /// harness fetch a fresh ticket.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::ForgedExecutor => StatusCode::FORBIDDEN,
            Self::ForgedHarness | Self::Expired => StatusCode::UNAUTHORIZED,
        }
    }

    /// Returns a short name, for programs and the audit log.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unknown => "not_found",
            Self::ForgedExecutor | Self::ForgedHarness => "invalid_url",
            Self::Expired => "expired_url",
        }
    }
}
