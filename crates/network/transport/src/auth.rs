//! Authentication of websocket upgrade requests by their `Authorization` header: a capability token
//! or a signed bearer token.
//!
//! Signed tokens are JWTs with HS256 only. `jsonwebtoken` verifies the signature. Its claim
//! validation is disabled because it is more lenient than the protocol (it accepts a fractional
//! `exp`, for example).
//!
//! Invariant: pure. The caller passes the header's bytes and the time; this module reads no file,
//! clock or environment variable, and no secret appears in `Debug` output or in an error.
//! Elsewhere: the `403` for requests with an `Origin` (the listener) and the source of the secrets
//! (the product crate's configuration).

#[cfg(test)]
mod jwt_tests;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use base64_simd::URL_SAFE_NO_PAD;
use data_encoding::HEXLOWER_PERMISSIVE;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::link::Principal;

/// Credentials that an upgrade request must present.
#[derive(Clone, Debug, Default)]
pub enum AuthPolicy {
    /// Every client that can connect is accepted.
    #[default]
    Open,
    /// The client presents the token with this SHA-256 digest.
    CapabilityToken(TokenDigest),
    /// The client presents a JWT signed with the shared secret.
    SignedBearer(JwtRules),
}

impl AuthPolicy {
    /// Checks an upgrade request by the value of its `Authorization` header.
    ///
    /// Returns the client's principal, if its credentials name one.
    ///
    /// [`AuthPolicy::Open`] ignores the header. Only signed tokens use `now`.
    ///
    /// # Errors
    /// Returns the rejection to answer with status 401. Its text is the whole response body.
    pub fn check(
        &self,
        authorization: Option<&[u8]>,
        now: UnixSeconds,
    ) -> Result<Option<Principal>, AuthRejection> {
        match self {
            Self::Open => Ok(None),
            Self::CapabilityToken(expected) => {
                if expected.matches(bearer_token(authorization)?) {
                    Ok(None)
                } else {
                    Err(AuthRejection::InvalidToken)
                }
            }
            Self::SignedBearer(rules) => rules.check(bearer_token(authorization)?, now),
        }
    }

    /// Returns whether clients must present credentials.
    pub fn is_required(&self) -> bool {
        !matches!(self, Self::Open)
    }
}

/// A point in time in whole seconds since 1970-01-01T00:00:00Z, as in JWT claims.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct UnixSeconds(pub u64);

impl From<SystemTime> for UnixSeconds {
    /// Rounds down. A clock before 1970 counts as 1970.
    fn from(time: SystemTime) -> Self {
        let since_epoch = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self(since_epoch.as_secs())
    }
}

/// Why an upgrade request gets status 401. The text is the exact response body.
///
/// The client must act in every case: it presented no credentials, or invalid ones.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthRejection {
    /// There is no `Authorization` header.
    #[error("missing websocket bearer token")]
    MissingToken,
    /// The header is not `Bearer`, a space and a token, in UTF-8.
    #[error("invalid authorization header")]
    InvalidHeader,
    /// The token is not the capability token.
    #[error("invalid websocket bearer token")]
    InvalidToken,
    /// The token is not a well-formed JWT, or is not signed with HS256 and the shared secret.
    #[error("invalid websocket jwt")]
    InvalidJwt,
    /// `exp` has passed by more than the allowed skew.
    #[error("expired websocket jwt")]
    ExpiredJwt,
    /// `nbf` is in the future by more than the allowed skew.
    #[error("websocket jwt is not valid yet")]
    JwtNotYetValid,
    /// `iss` is missing or does not match.
    #[error("websocket jwt issuer mismatch")]
    IssuerMismatch,
    /// `aud` is missing or does not name this server.
    #[error("websocket jwt audience mismatch")]
    AudienceMismatch,
}

/// Extracts the bearer token from an `Authorization` header (RFC 6750 section 2.1): a
/// case-insensitive scheme, one space, and the token with surrounding whitespace trimmed.
fn bearer_token(authorization: Option<&[u8]>) -> Result<&str, AuthRejection> {
    let value = authorization.ok_or(AuthRejection::MissingToken)?;
    let value = str::from_utf8(value).map_err(|_| AuthRejection::InvalidHeader)?;
    let (scheme, token) = value.split_once(' ').ok_or(AuthRejection::InvalidHeader)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(AuthRejection::InvalidHeader);
    }
    Ok(token)
}

/// The SHA-256 of a capability token.
///
/// `Debug` hides it, and it has no `PartialEq`: [`TokenDigest::matches`] compares in constant time.
#[derive(Clone)]
pub struct TokenDigest([u8; Self::LEN]);

impl TokenDigest {
    /// Bytes in a digest.
    const LEN: usize = 32;

    /// Hashes a token with surrounding whitespace trimmed.
    ///
    /// The digest of an empty token matches no request.
    pub fn of_token(token: &str) -> Self {
        Self(Sha256::digest(token.trim()).into())
    }

    /// Returns whether `token`, trimmed, has this digest.
    pub fn matches(&self, token: &str) -> bool {
        Self::of_token(token).0.ct_eq(&self.0).into()
    }
}

impl FromStr for TokenDigest {
    type Err = TokenDigestParseError;

    /// Parses a digest of 64 hexadecimal digits in either case. Trims the text.
    fn from_str(hex: &str) -> Result<Self, Self::Err> {
        let digest = HEXLOWER_PERMISSIVE.decode(hex.trim().as_bytes()).ok();
        let digest = digest.and_then(|digest| digest.try_into().ok());
        digest.map(Self).ok_or(TokenDigestParseError)
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest(..)")
    }
}

/// Caller: the text is not a SHA-256 digest. The error omits it, because it may be the token
/// itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected a SHA-256 digest of 64 hexadecimal digits")]
pub struct TokenDigestParseError;

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

    /// Validates a token and returns all its claims.
    ///
    /// # Errors
    /// Fails if the token is invalid, expired, or for another issuer or audience.
    pub fn verify(&self, token: &str, now: UnixSeconds) -> Result<Box<RawValue>, AuthRejection> {
        self.decode(token, now).map(|(_, all)| all)
    }

    /// Validates a token and returns its subject, if it has one.
    fn check(&self, token: &str, now: UnixSeconds) -> Result<Option<Principal>, AuthRejection> {
        Ok(match self.decode(token, now)?.0.sub {
            Some(JwtSubject::Name(name)) => Some(Principal(name.into())),
            Some(JwtSubject::Other(_)) | None => None,
        })
    }

    /// Validates a token and returns the validated claims, and all of them.
    fn decode(
        &self,
        token: &str,
        now: UnixSeconds,
    ) -> Result<(JwtClaims, Box<RawValue>), AuthRejection> {
        let decoded = decode::<Box<RawValue>>(token, &self.key, &signature_validation())
            .map_err(|_| AuthRejection::InvalidJwt)?;
        // RFC 7515 section 4.1.11: a token with an unknown critical extension is invalid, and this
        // server knows no extensions.
        if has_critical_header(token) {
            return Err(AuthRejection::InvalidJwt);
        }
        let claims = serde_json::from_str(decoded.claims.get());
        let claims = claims.map_err(|_| AuthRejection::InvalidJwt)?;
        self.check_claims(&claims, now)?;
        Ok((claims, decoded.claims))
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
                .is_some_and(|aud| aud.contains(audience))
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
#[derive(Deserialize)]
#[serde(untagged)]
enum JwtAudience {
    One(String),
    Many(Vec<String>),
}

impl JwtAudience {
    fn contains(&self, name: &str) -> bool {
        match self {
            Self::One(audience) => audience == name,
            Self::Many(audiences) => audiences.iter().any(|audience| audience == name),
        }
    }
}

#[cfg(test)]
mod bearer_tests {
    use super::*;

    #[test]
    fn scheme_is_case_insensitive_and_blanks_are_trimmed() {
        let accepted = [
            "Bearer t0k",
            "bearer t0k",
            "BEARER t0k",
            "Bearer   t0k",
            "Bearer \tt0k \t",
            "bEaReR t0k ",
        ];
        for header in accepted {
            assert_eq!(
                bearer_token(Some(header.as_bytes())),
                Ok("t0k"),
                "{header:?}"
            );
        }
    }

    #[test]
    fn malformed_authorization_header_is_rejected() {
        let refused: [&[u8]; 10] = [
            b"",
            b"Bearer",
            b"Bearer ",
            b"Bearer  \t ",
            b"Bearer\tt0k",
            b" Bearer t0k",
            b"Basic dTpw",
            b"Bearert0k",
            b"t0k",
            b"Bearer \xff\xfe",
        ];
        for header in refused {
            assert_eq!(
                bearer_token(Some(header)),
                Err(AuthRejection::InvalidHeader),
                "{header:?}"
            );
        }
    }

    #[test]
    fn request_without_header_is_rejected_as_missing_token() {
        assert_eq!(bearer_token(None), Err(AuthRejection::MissingToken));
    }
}

#[cfg(test)]
mod capability_tests {
    use super::*;

    /// SHA-256 of `abc` (FIPS 180-4, example 1).
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn digest_hex_is_case_insensitive() {
        for hex in [ABC.to_owned(), ABC.to_uppercase(), format!(" {ABC}\n")] {
            let digest: TokenDigest = hex.parse().unwrap();
            assert!(digest.matches("abc"));
            assert!(!digest.matches("abd"));
            assert!(!digest.matches(""));
        }
    }

    #[test]
    fn surrounding_whitespace_is_trimmed_before_hashing() {
        assert!(TokenDigest::of_token(" abc\r\n").matches("abc"));
        assert!(!TokenDigest::of_token("a bc").matches("abc"));
    }

    #[test]
    fn text_other_than_64_hex_digits_is_rejected() {
        let short = &ABC[1..];
        let (long, foreign) = (format!("{ABC}0"), format!("{short}g"));
        let (prefixed, signed) = (format!("0x{}", &ABC[2..]), format!("+{short}"));
        for hex in ["", short, &long, &foreign, &prefixed, &signed, "abc"] {
            assert_eq!(
                hex.parse::<TokenDigest>().err(),
                Some(TokenDigestParseError),
                "{hex:?}"
            );
        }
    }

    #[test]
    fn debug_hides_the_digest() {
        assert_eq!(
            format!("{:?}", TokenDigest::of_token("abc")),
            "TokenDigest(..)"
        );
    }
}
