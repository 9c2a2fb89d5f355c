//! The three ways a listener treats an upgrade request.

use std::time::SystemTime;

use super::{AuthRejection, JwtRules, TokenDigest, bearer};
use crate::link::Principal;

/// What an upgrade request must present to be let in.
#[derive(Clone, Debug, Default)]
pub enum Auth {
    /// Everyone who can connect is let in.
    #[default]
    Open,
    /// The client presents the one token whose SHA-256 this is.
    CapabilityToken(TokenDigest),
    /// The client presents a JWT signed with the shared secret.
    SignedBearer(JwtRules),
}

impl Auth {
    /// Decides on an upgrade request by the value of its `Authorization` header.
    ///
    /// Returns who the client is, if its credentials name somebody.
    ///
    /// With [`Auth::Open`] the header is not looked at. `now` matters to signed tokens only.
    ///
    /// # Errors
    /// The rejection to answer with status 401; its text is the whole response body.
    pub fn check(
        &self,
        authorization: Option<&[u8]>,
        now: UnixSeconds,
    ) -> Result<Option<Principal>, AuthRejection> {
        match self {
            Self::Open => Ok(None),
            Self::CapabilityToken(expected) => {
                if expected.matches(bearer::token(authorization)?) {
                    Ok(None)
                } else {
                    Err(AuthRejection::InvalidToken)
                }
            }
            Self::SignedBearer(rules) => rules.check(bearer::token(authorization)?, now),
        }
    }

    /// Whether a client has to present anything.
    pub fn is_required(&self) -> bool {
        !matches!(self, Self::Open)
    }
}

/// A point in time: whole seconds since 1970-01-01T00:00:00Z, as JWT claims count them.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct UnixSeconds(pub u64);

impl From<SystemTime> for UnixSeconds {
    /// Rounds down; a clock that stands before 1970 counts as 1970.
    fn from(time: SystemTime) -> Self {
        let since_epoch = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self(since_epoch.as_secs())
    }
}
