//! What signatures are made with.

use std::fmt;

use aws_lc_rs::hmac;

use super::{Scope, Timestamp};

/// The keys of a principal.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Keys {
    /// Names the secret. It is no secret itself.
    pub access_key_id: String,
    /// Signs.
    pub secret_key: SecretKey,
    /// Goes with keys that are valid for a while only.
    pub session_token: Option<SessionToken>,
}

/// A secret that signs. `Debug` hides it.
#[derive(Clone, Eq, PartialEq)]
pub struct SecretKey(String);

/// The token of temporary keys. `Debug` hides it.
#[derive(Clone, Eq, PartialEq)]
pub struct SessionToken(String);

impl SecretKey {
    /// Takes a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Derives the key of one day, region and service.
    pub(super) fn derive(&self, scope: &Scope, at: &Timestamp) -> hmac::Key {
        let first = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{}", self.0).as_bytes());
        let parts = [at.date(), &scope.region, &scope.service, TERMINATOR];
        parts.iter().fold(first, |key, part| {
            let next = hmac::sign(&key, part.as_bytes());
            hmac::Key::new(hmac::HMAC_SHA256, next.as_ref())
        })
    }
}

impl SessionToken {
    /// Takes a token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What every scope ends with.
pub(super) const TERMINATOR: &str = "aws4_request";

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionToken(..)")
    }
}
