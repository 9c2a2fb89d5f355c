//! The check of the `Authorization` header.

use std::time::Duration;

use base64_simd::URL_SAFE_NO_PAD;
use exec_transport::auth::{Auth, JwtRules, SecretTooShort, UnixSeconds};
use http::{HeaderMap, header};
use serde::Deserialize;

use super::Tokens;
use crate::{
    principal::{Environments, Evidence, Principal, PrincipalName, Role, Roles},
    store::Timestamp,
};

/// Tells who makes a request. Nobody gets in without a token.
#[derive(Clone, Debug)]
pub struct Authenticator {
    tokens: Tokens,
    jwt: Option<JwtAuthority>,
}

impl Authenticator {
    /// Takes the tokens, and whoever may sign JWTs.
    pub fn new(tokens: Tokens, jwt: Option<JwtAuthority>) -> Self {
        Self { tokens, jwt }
    }

    /// Finds out who makes a request by its `Authorization: Bearer` header.
    ///
    /// # Errors
    /// When there is no such header, or more than one, or what it presents does not count.
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
                evidence: Evidence::Token(entry.id.to_string()),
            });
        }
        match &self.jwt {
            // Our own tokens have no dots, and a JWT has two.
            Some(jwt) if token.matches('.').count() == 2 => Ok(jwt.check(token, now)?),
            Some(_) | None => Err(AuthenticateError::Unknown),
        }
    }

    /// The tokens in use.
    pub fn tokens(&self) -> &Tokens {
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

/// Peer: why a request is nobody's. What it presented is not repeated.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthenticateError {
    /// There is no `Authorization` header.
    #[error("missing bearer token")]
    Missing,
    /// The header is not `Bearer` and a token, or there are two.
    #[error("invalid authorization header")]
    Header,
    /// No such token.
    #[error("unknown token")]
    Unknown,
    /// Its time is over.
    #[error("expired token")]
    Expired,
    /// See the source.
    #[error(transparent)]
    Jwt(#[from] JwtError),
}

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
