//! AWS Signature Version 4 by headers: making signatures, and checking those of others.
//! Invariant: pure. The time is an argument, nothing is sent, and no text shows a secret.
//! Not here: where keys come from (`aws`).

mod canonical;
#[cfg(test)]
mod tests;
mod verify;

pub use self::verify::{MAX_SKEW, Presented, VerifyError, verify};

use std::{
    borrow::Cow,
    fmt,
    time::{Duration, SystemTime},
};

use aws_lc_rs::hmac;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use time::{
    OffsetDateTime, PrimitiveDateTime, format_description::BorrowedFormatItem,
    macros::format_description,
};
use url::Url;

use self::canonical::{Canonical, Header, hash, hex, trim};

/// Where a signature counts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Scope {
    /// Such as `eu-west-1`.
    pub region: String,
    /// Such as `execute-api`.
    pub service: String,
}

/// A request that is to be signed.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// Where it goes. Its path and query are signed, and its host.
    pub url: &'a Url,
    /// Headers that are signed beside the host and those that signing adds.
    pub headers: &'a [(HeaderName, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

/// The headers that make a request a signed one. `Debug` hides their values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Signature {
    authorization: HeaderValue,
    date: HeaderValue,
    session_token: Option<HeaderValue>,
}

impl Signature {
    /// Signs a request.
    ///
    /// # Errors
    /// When the URL has no host, or a key cannot stand in a header.
    pub fn new(
        request: Request<'_>,
        keys: &Keys,
        scope: &Scope,
        at: &Timestamp,
    ) -> Result<Self, SignError> {
        let mut headers: Vec<Header<'_>> = vec![
            ("host".into(), host(request.url)?),
            (DATE.as_str().into(), at.as_str().to_owned()),
        ];
        if let Some(token) = &keys.session_token {
            headers.push((SECURITY_TOKEN.as_str().into(), trim(token.as_str())));
        }
        for (name, value) in request.headers {
            headers.push((Cow::Borrowed(name.as_str()), trim(value)));
        }
        headers.sort();
        let canonical = Canonical {
            method: request.method,
            path: request.url.path(),
            query: request.url.query().unwrap_or_default(),
            headers: &headers,
            body: request.body,
        };
        let to_sign = string_to_sign(&canonical.text(), scope, at);
        let signature = hmac::sign(&keys.secret_key.derive(scope, at), to_sign.as_bytes());
        let authorization = format!(
            "{ALGORITHM} Credential={}/{}, SignedHeaders={}, Signature={}",
            keys.access_key_id,
            credential_scope(scope, at),
            canonical.signed_headers(),
            hex(signature.as_ref()),
        );
        let token = keys.session_token.as_ref();
        Ok(Self {
            authorization: sensitive(&authorization)?,
            date: HeaderValue::from_str(at.as_str()).map_err(|_| SignError::Header)?,
            session_token: token
                .map(|token| sensitive(&trim(token.as_str())))
                .transpose()?,
        })
    }

    /// Returns the value of `Authorization`.
    pub fn authorization(&self) -> &HeaderValue {
        &self.authorization
    }

    /// Returns the headers beside `Authorization`.
    pub fn others(&self) -> impl Iterator<Item = (HeaderName, &HeaderValue)> {
        let token = self.session_token.as_ref();
        [(DATE.clone(), &self.date)]
            .into_iter()
            .chain(token.map(|token| (SECURITY_TOKEN.clone(), token)))
    }

    /// Adds all of them to those of a request.
    pub fn apply(&self, headers: &mut HeaderMap) {
        headers.insert(header::AUTHORIZATION, self.authorization.clone());
        for (name, value) in self.others() {
            headers.insert(name, value.clone());
        }
    }
}

/// Caller: a request cannot be signed. Nothing of a key is repeated.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The URL names nobody.
    #[error("URL to be signed has no host")]
    NoHost,
    /// A key or a name of the scope has a character that no header carries.
    #[error("a key or the signing scope holds a control character")]
    Header,
}

/// What a signature begins with.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
static DATE: HeaderName = HeaderName::from_static("x-amz-date");
static SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// The text whose signature proves that of the request.
fn string_to_sign(canonical: &str, scope: &Scope, at: &Timestamp) -> String {
    let (scope, hash) = (credential_scope(scope, at), hash(canonical.as_bytes()));
    format!("{ALGORITHM}\n{at}\n{scope}\n{hash}")
}

fn credential_scope(scope: &Scope, at: &Timestamp) -> String {
    let (date, region, service) = (at.date(), &scope.region, &scope.service);
    format!("{date}/{region}/{service}/{TERMINATOR}")
}

/// The host as requests name it: with its port, unless that is the scheme's own.
fn host(url: &Url) -> Result<String, SignError> {
    let host = url.host_str().ok_or(SignError::NoHost)?;
    Ok(match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    })
}

fn sensitive(text: &str) -> Result<HeaderValue, SignError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| SignError::Header)?;
    value.set_sensitive(true);
    Ok(value)
}

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
    fn derive(&self, scope: &Scope, at: &Timestamp) -> hmac::Key {
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

    fn as_str(&self) -> &str {
        &self.0
    }
}

/// What every scope ends with.
const TERMINATOR: &str = "aws4_request";

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

/// A moment, to the second.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Timestamp {
    text: String,
    unix_seconds: u64,
}

impl Timestamp {
    /// Takes a moment. What lies before 1970, or after the year 9999, counts as the nearest there is.
    pub fn new(at: SystemTime) -> Self {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        let unix_seconds = since.unwrap_or_default().as_secs().min(LAST_SECOND);
        let moment = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(unix_seconds);
        Self {
            // Every part that the format names is there.
            text: moment.format(BASIC).unwrap_or_default(),
            unix_seconds,
        }
    }

    /// Reads a moment; `None` if there is no such one.
    pub fn parse(text: &str) -> Option<Self> {
        let moment = PrimitiveDateTime::parse(text, BASIC).ok()?.assume_utc();
        let unix_seconds = u64::try_from(moment.unix_timestamp()).ok()?;
        let read = Self::new(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds));
        // Signatures are over the text: there is one for each moment.
        (read.text == text).then_some(read)
    }

    /// Returns the day, `20150830`.
    pub fn date(&self) -> &str {
        &self.text[..8]
    }

    /// Returns the whole text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns how far another moment is away, before or after.
    pub fn distance(&self, other: &Self) -> Duration {
        Duration::from_secs(self.unix_seconds.abs_diff(other.unix_seconds))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

const BASIC: &[BorrowedFormatItem<'_>] =
    format_description!("[year][month][day]T[hour][minute][second]Z");
/// 9999-12-31T23:59:59Z: years have four digits.
const LAST_SECOND: u64 = 253_402_300_799;
