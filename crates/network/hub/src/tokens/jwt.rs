//! Signed JWTs: HS256 with a shared secret, and claims that say who and what.

use std::time::Duration;

use base64_simd::URL_SAFE_NO_PAD;
use exec_transport::auth::{Auth, JwtRules, SecretTooShort, UnixSeconds};
use serde::Deserialize;

use crate::{
    principal::{Environments, Evidence, Principal, PrincipalName, Role, Roles},
    store::Timestamp,
};

/// How far the clocks of the hub and of who signs may be apart.
const SKEW: Duration = Duration::from_secs(30);
/// The largest that is looked at: sixty-four globs and a few names fit easily.
const MAX_BYTES: usize = 8 << 10;

/// Lets those in who hold a JWT that was signed with the shared secret.
#[derive(Clone, Debug)]
pub struct JwtAuthority(Auth);

impl JwtAuthority {
    /// Takes the secret, and whom tokens must come from and be meant for, if that matters.
    ///
    /// # Errors
    /// When the secret has less than 32 bytes without the blanks around it.
    pub fn new(
        secret: &[u8],
        issuer: Option<String>,
        audience: Option<String>,
    ) -> Result<Self, SecretTooShort> {
        let rules = JwtRules::new(secret, issuer, audience, SKEW)?;
        Ok(Self(Auth::SignedBearer(rules)))
    }

    /// Decides on a token.
    ///
    /// # Errors
    /// When it does not count here and now, or its claims make no principal.
    pub(crate) fn check(&self, token: &str, now: Timestamp) -> Result<Principal, JwtError> {
        if token.len() > MAX_BYTES {
            return Err(JwtError::TooLarge);
        }
        let header = format!("Bearer {token}");
        self.0
            .check(Some(header.as_bytes()), UnixSeconds(now.seconds()))
            .map_err(|_| JwtError::Refused)?;
        // The signature holds: what follows are the words of who knows the secret.
        let payload = token.split('.').nth(1).unwrap_or_default();
        let payload = URL_SAFE_NO_PAD
            .decode_to_vec(payload)
            .map_err(|_| JwtError::Claims)?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| JwtError::Claims)?;
        // Absent means the usual. An empty list is somebody who meant to allow nothing.
        if claims.roles.as_ref().is_some_and(Vec::is_empty)
            || claims.environments.as_ref().is_some_and(Vec::is_empty)
        {
            return Err(JwtError::Claims);
        }
        Ok(Principal {
            name: claims.sub,
            roles: claims.roles.map_or_else(Roles::default, Roles::new),
            environments: Environments::new(claims.environments.unwrap_or_default())
                .map_err(|_| JwtError::Claims)?,
            evidence: Evidence::Jwt,
        })
    }
}

/// Peer: why a JWT does not count.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    /// Longer than any.
    #[error("JWT is longer than {MAX_BYTES} bytes")]
    TooLarge,
    /// Not signed with HS256 and the secret, expired, or meant for somebody else.
    #[error("JWT is not valid here")]
    Refused,
    /// `sub`, `roles` or `environments` are not what they should be.
    #[error("JWT claims name no principal, or roles or environments there are none of")]
    Claims,
}

/// What a JWT says beside what [`JwtRules`] looks at. Other claims are nobody's business here.
#[derive(Deserialize)]
struct Claims {
    sub: PrincipalName,
    #[serde(default)]
    roles: Option<Vec<Role>>,
    #[serde(default)]
    environments: Option<Vec<String>>,
}
