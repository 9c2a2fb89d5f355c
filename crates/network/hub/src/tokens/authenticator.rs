//! The check of the `Authorization` header.

use http::{HeaderMap, header};

use super::{JwtAuthority, JwtError, Tokens};
use crate::{
    principal::{Evidence, Principal},
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
