//! Why there are no headers for a request.

use super::{ReachError, SignInError};

/// Why a request cannot be authenticated. No secret is repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// Caller: the secret is not for this registry.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// Caller: the token has expired, and no newer one has come.
    #[error("executor credential has expired")]
    Expired,
    /// Caller: the stored sign-in cannot be used.
    #[error("stored sign-in cannot be used")]
    SignIn(#[from] SignInError),
    /// Host: nothing could be signed.
    #[error("request cannot be signed: {0}")]
    Sign(String),
}
