//! Verification of the `Authorization` header.

use std::time::Duration;

use base64_simd::URL_SAFE_NO_PAD;
use exec_transport::auth::{AuthPolicy, JwtRules, SecretTooShort, UnixSeconds};
use http::{HeaderMap, header};
use serde::Deserialize;

use super::ActiveTokens;
use crate::{
    principal::{AuthEvidence, EnvironmentGlobs, Principal, PrincipalName, Role, RoleSet},
    store::Timestamp,
};

/// Authenticates requests. Every request needs a token.
#[derive(Clone, Debug)]
pub struct TokenAuthenticator {
    tokens: ActiveTokens,
    jwt: Option<JwtAuthority>,
}

impl TokenAuthenticator {
    /// Creates an authenticator from tokens and, optionally, a JWT authority.
    pub fn new(tokens: ActiveTokens, jwt: Option<JwtAuthority>) -> Self {
        Self { tokens, jwt }
    }

    /// Authenticates a request by its `Authorization: Bearer` header.
    ///
    /// # Errors
    /// Returns an error if the header is missing, duplicated, or its token is invalid.
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Principal, AuthenticateError> {
        let token = bearer(headers)?;
        if let Some(entry) = self.tokens.find(token) {
            if entry.expires_at.is_some_and(|end| end <= now) {
                return Err(AuthenticateError::Expired);
            }
            return Ok(Principal {
                name: entry.principal.clone(),
                roles: entry.roles.clone(),
                environments: entry.environments.clone(),
                evidence: AuthEvidence::Token(entry.id.to_string()),
            });
        }
        match &self.jwt {
            // Our tokens contain no dots; a JWT contains two.
            Some(jwt) if token.matches('.').count() == 2 => Ok(jwt.check(token, now)?),
            Some(_) | None => Err(AuthenticateError::Unknown),
        }
    }

    /// Returns the tokens in use.
    pub fn tokens(&self) -> &ActiveTokens {
        &self.tokens
    }
}

fn bearer(headers: &HeaderMap) -> Result<&str, AuthenticateError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(AuthenticateError::Missing)?;
    if values.next().is_some() {
        return Err(AuthenticateError::Header);
    }
    let value = value.to_str().map_err(|_| AuthenticateError::Header)?;
    let (scheme, token) = value.split_once(' ').ok_or(AuthenticateError::Header)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(AuthenticateError::Header);
    }
    Ok(token)
}

/// Peer: why authentication failed. The error does not repeat the token.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthenticateError {
    /// The `Authorization` header is missing.
    #[error("missing bearer token")]
    Missing,
    /// The header is not `Bearer` and a token, or it is duplicated.
    #[error("invalid authorization header")]
    Header,
    /// The token is unknown.
    #[error("unknown token")]
    Unknown,
    /// The token has expired.
    #[error("expired token")]
    Expired,
    /// See the source.
    #[error(transparent)]
    Jwt(#[from] JwtError),
}

/// Accepted clock difference between the hub and the signer.
const SKEW: Duration = Duration::from_secs(30);
/// Longest accepted JWT: sixty-four globs and a few names fit easily.
const MAX_BYTES: usize = 8 << 10;

/// Accepts JWTs signed with the shared secret.
#[derive(Clone, Debug)]
pub struct JwtAuthority(AuthPolicy);

impl JwtAuthority {
    /// Creates an authority from the secret and the required issuer and audience, if any.
    ///
    /// # Errors
    /// Returns an error if the secret has less than 32 bytes after trimming whitespace.
    pub fn new(
        secret: &[u8],
        issuer: Option<String>,
        audience: Option<String>,
    ) -> Result<Self, SecretTooShort> {
        let rules = JwtRules::new(secret, issuer, audience, SKEW)?;
        Ok(Self(AuthPolicy::SignedBearer(rules)))
    }

    /// Verifies a token.
    ///
    /// # Errors
    /// Returns an error if the token is invalid or its claims do not describe a principal.
    pub(crate) fn check(&self, token: &str, now: Timestamp) -> Result<Principal, JwtError> {
        if token.len() > MAX_BYTES {
            return Err(JwtError::TooLarge);
        }
        let header = format!("Bearer {token}");
        self.0
            .check(Some(header.as_bytes()), UnixSeconds(now.seconds()))
            .map_err(|_| JwtError::Refused)?;
        // The signature is valid, so the claims can be trusted.
        let payload = token.split('.').nth(1).unwrap_or_default();
        let payload = URL_SAFE_NO_PAD
            .decode_to_vec(payload)
            .map_err(|_| JwtError::Claims)?;
        let claims: HubJwtClaims =
            serde_json::from_slice(&payload).map_err(|_| JwtError::Claims)?;
        // An absent list selects the default. An empty list probably meant to allow nothing.
        if claims.roles.as_ref().is_some_and(Vec::is_empty)
            || claims.environments.as_ref().is_some_and(Vec::is_empty)
        {
            return Err(JwtError::Claims);
        }
        Ok(Principal {
            name: claims.sub,
            roles: claims.roles.map_or_else(RoleSet::default, RoleSet::new),
            environments: EnvironmentGlobs::new(claims.environments.unwrap_or_default())
                .map_err(|_| JwtError::Claims)?,
            evidence: AuthEvidence::Jwt,
        })
    }
}

/// Peer: why a JWT is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    /// The JWT is too long.
    #[error("JWT is longer than {MAX_BYTES} bytes")]
    TooLarge,
    /// Not signed with HS256 and the secret, expired, or for another issuer or audience.
    #[error("JWT is not valid here")]
    Refused,
    /// `sub`, `roles` or `environments` are invalid.
    #[error("JWT claims have an invalid principal, role or environment")]
    Claims,
}

/// The claims that are used besides those that [`JwtRules`] checks. Others are ignored.
#[derive(Deserialize)]
struct HubJwtClaims {
    sub: PrincipalName,
    #[serde(default)]
    roles: Option<Vec<Role>>,
    #[serde(default)]
    environments: Option<Vec<String>>,
}
