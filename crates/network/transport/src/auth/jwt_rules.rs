//! Signed bearer tokens: JWTs with HS256 only.
//! `jsonwebtoken` verifies the signature. Its claim validation is disabled because it is more
//! lenient than the protocol (it accepts a fractional `exp`, for example).

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    time::Duration,
};

use base64_simd::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};

use super::{AuthRejection, UnixSeconds};
use crate::link::Principal;

/// Requirements on a signed bearer token. `Debug` hides the secret.
#[derive(Clone)]
pub struct JwtRules {
    key: DecodingKey,
    issuer: Option<String>,
    audience: Option<String>,
    skew: Duration,
}

impl JwtRules {
    /// Minimum length of the secret in bytes: the length of the hash (RFC 7518 section 3.2).
    pub const MIN_SECRET_BYTES: usize = 32;

    /// Creates rules for tokens signed with `secret`, trimmed of ASCII whitespace.
    ///
    /// A given `issuer` or `audience` is required in the token. `skew` is the allowed clock
    /// difference, counted in whole seconds.
    ///
    /// # Errors
    /// Fails if the trimmed secret is shorter than [`JwtRules::MIN_SECRET_BYTES`].
    pub fn new(
        secret: &[u8],
        issuer: Option<String>,
        audience: Option<String>,
        skew: Duration,
    ) -> Result<Self, SecretTooShort> {
        let secret = secret.trim_ascii();
        if secret.len() < Self::MIN_SECRET_BYTES {
            return Err(SecretTooShort);
        }
        Ok(Self {
            key: DecodingKey::from_secret(secret),
            issuer,
            audience,
            skew,
        })
    }

    /// Validates a token and returns its subject, if it has one.
    pub(super) fn check(
        &self,
        token: &str,
        now: UnixSeconds,
    ) -> Result<Option<Principal>, AuthRejection> {
        let decoded = decode::<JwtClaims>(token, &self.key, &signature_validation())
            .map_err(|_| AuthRejection::InvalidJwt)?;
        // RFC 7515 section 4.1.11: a token with an unknown critical extension is invalid, and this
        // server knows no extensions.
        if has_critical_header(token) {
            return Err(AuthRejection::InvalidJwt);
        }
        self.check_claims(&decoded.claims, now)?;
        Ok(match decoded.claims.sub {
            Some(JwtSubject::Name(name)) => Some(Principal(name.into())),
            Some(JwtSubject::Other(_)) | None => None,
        })
    }

    fn check_claims(&self, claims: &JwtClaims, now: UnixSeconds) -> Result<(), AuthRejection> {
        // 128-bit arithmetic cannot overflow here, so a hostile `exp` cannot wrap around.
        let (now, skew) = (i128::from(now.0), i128::from(self.skew.as_secs()));
        if now > i128::from(claims.exp) + skew {
            return Err(AuthRejection::ExpiredJwt);
        }
        if claims.nbf.is_some_and(|nbf| now < i128::from(nbf) - skew) {
            return Err(AuthRejection::JwtNotYetValid);
        }
        if self.issuer.is_some() && self.issuer != claims.iss {
            return Err(AuthRejection::IssuerMismatch);
        }
        if let Some(audience) = &self.audience
            && !claims
                .aud
                .as_ref()
                .is_some_and(|aud| aud.0.contains(audience))
        {
            return Err(AuthRejection::AudienceMismatch);
        }
        Ok(())
    }
}

impl fmt::Debug for JwtRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtRules")
            .field("issuer", &self.issuer)
            .field("audience", &self.audience)
            .field("skew", &self.skew)
            .finish_non_exhaustive()
    }
}

/// Caller: the shared secret is too short.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "shared secret must have at least {} bytes",
    JwtRules::MIN_SECRET_BYTES
)]
pub struct SecretTooShort;

/// Configures `jsonwebtoken` to verify the HS256 signature only.
fn signature_validation() -> Validation {
    let mut validation = Validation::new(Algorithm::HS256);
    validation.required_spec_claims = HashSet::new();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

/// Returns whether the header of a verified token has the member `crit`, with any value. The
/// library treats `null` as absent.
fn has_critical_header(token: &str) -> bool {
    let header = token.split('.').next().unwrap_or_default();
    let header = URL_SAFE_NO_PAD.decode_to_vec(header).ok();
    let header: Option<HashMap<String, IgnoredAny>> =
        header.and_then(|header| serde_json::from_slice(&header).ok());
    header.is_none_or(|header| header.contains_key("crit"))
}

/// The validated claims. Serde's integers reject floats and strings.
#[derive(Deserialize)]
struct JwtClaims {
    exp: i64,
    nbf: Option<i64>,
    iss: Option<String>,
    aud: Option<JwtAudience>,
    sub: Option<JwtSubject>,
}

/// `sub`: a value that is not a string yields no principal, but does not invalidate the token.
#[derive(Deserialize)]
#[serde(untagged)]
enum JwtSubject {
    Name(String),
    Other(IgnoredAny),
}

/// `aud`: one name or an array of them (RFC 7519 section 4.1.3).
struct JwtAudience(Vec<String>);

impl<'de> Deserialize<'de> for JwtAudience {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JwtAudienceVisitor)
    }
}

struct JwtAudienceVisitor;

impl<'de> Visitor<'de> for JwtAudienceVisitor {
    type Value = JwtAudience;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an array of strings")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<JwtAudience, E> {
        Ok(JwtAudience(vec![name.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<JwtAudience, A::Error> {
        let mut audience = Vec::new();
        while let Some(name) = names.next_element()? {
            audience.push(name);
        }
        Ok(JwtAudience(audience))
    }
}
