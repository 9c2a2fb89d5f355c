//! AWS Signature Version 4 in headers: signs requests and verifies signatures.
//! Invariant: pure. Time is an argument, nothing is sent, and `Debug` and errors never contain a
//! secret. Both sides compute the signature over the same `CanonicalRequest`.
//! Elsewhere: where keys come from (`aws`).

#[cfg(test)]
mod tests;
mod verify;

pub use self::verify::{MAX_SKEW, SignedRequest, VerifyError, claimed_key_id, is_signed, verify};

use std::{
    borrow::Cow,
    fmt,
    time::{Duration, SystemTime},
};

use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use time::{
    OffsetDateTime, PrimitiveDateTime, format_description::BorrowedFormatItem,
    macros::format_description,
};
use url::{Url, form_urlencoded};

use super::SecretString;

/// Region and service that a signature is valid for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SigningScope {
    /// For example `eu-west-1`.
    pub region: String,
    /// For example `execute-api`.
    pub service: String,
}

/// A request to sign.
#[derive(Clone, Copy, Debug)]
pub struct SigningRequest<'a> {
    /// The method, in upper case.
    pub method: &'a str,
    /// The URL. Its host, path and query are signed.
    pub url: &'a Url,
    /// Additional headers to sign, besides the host and the headers that signing adds.
    pub headers: &'a [(HeaderName, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

/// Signs a request and returns the headers to add to it. Secret values are marked as sensitive.
///
/// # Errors
/// Returns an error if the URL has no host or a key contains a character not allowed in a header.
pub fn sign(
    request: SigningRequest<'_>,
    keys: &AwsKeys,
    scope: &SigningScope,
    at: &SigV4Timestamp,
) -> Result<HeaderMap, SignError> {
    let token = keys
        .session_token
        .as_ref()
        .map(|token| trim(token.expose()));
    let mut signed: Vec<CanonicalHeader<'_>> = vec![
        ("host".into(), host(request.url)?),
        (DATE.as_str().into(), at.as_str().to_owned()),
    ];
    signed.extend(
        token
            .clone()
            .map(|token| (SECURITY_TOKEN.as_str().into(), token)),
    );
    for (name, value) in request.headers {
        signed.push((Cow::Borrowed(name.as_str()), trim(value)));
    }
    signed.sort();
    let canonical = CanonicalRequest {
        method: request.method,
        path: request.url.path(),
        query: request.url.query().unwrap_or_default(),
        headers: &signed,
        body: request.body,
    };
    let to_sign = string_to_sign(&canonical.text(), scope, at);
    let signature = hmac::sign(
        &signing_key(&keys.secret_key, scope, at),
        to_sign.as_bytes(),
    );
    let authorization = format!(
        "{ALGORITHM} Credential={}/{}, SignedHeaders={}, Signature={}",
        keys.access_key_id,
        credential_scope(scope, at),
        canonical.signed_headers(),
        HEXLOWER.encode(signature.as_ref()),
    );
    let date = HeaderValue::from_str(at.as_str()).map_err(|_| SignError::Header)?;
    let mut headers = HeaderMap::from_iter([
        (header::AUTHORIZATION, sensitive(&authorization)?),
        (DATE.clone(), date),
    ]);
    if let Some(token) = token {
        headers.insert(SECURITY_TOKEN.clone(), sensitive(&token)?);
    }
    Ok(headers)
}

/// Caller: a request cannot be signed. The error never contains key material.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The URL has no host.
    #[error("URL to sign has no host")]
    NoHost,
    /// A key or the scope contains a character not allowed in a header.
    #[error("a key or the signing scope contains a control character")]
    Header,
}

/// Signature algorithm.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
static DATE: HeaderName = HeaderName::from_static("x-amz-date");
static SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// Returns the SigV4 string to sign.
fn string_to_sign(canonical: &str, scope: &SigningScope, at: &SigV4Timestamp) -> String {
    let (scope, hash) = (credential_scope(scope, at), hash(canonical.as_bytes()));
    format!("{ALGORITHM}\n{at}\n{scope}\n{hash}")
}

fn credential_scope(scope: &SigningScope, at: &SigV4Timestamp) -> String {
    let (date, region, service) = (at.date(), &scope.region, &scope.service);
    format!("{date}/{region}/{service}/{TERMINATOR}")
}

/// Returns the `Host` header value: the port is omitted if it is the scheme's default.
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

/// An AWS key pair.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AwsKeys {
    /// Id of the secret key. Not secret.
    pub access_key_id: String,
    /// Secret key that signs.
    pub secret_key: SecretString,
    /// Session token of temporary keys.
    pub session_token: Option<SecretString>,
}

/// Derives the signing key of one day, region and service.
fn signing_key(secret: &SecretString, scope: &SigningScope, at: &SigV4Timestamp) -> hmac::Key {
    let secret = format!("AWS4{}", secret.expose());
    let first = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let parts = [at.date(), &scope.region, &scope.service, TERMINATOR];
    parts.iter().fold(first, |key, part| {
        let next = hmac::sign(&key, part.as_bytes());
        hmac::Key::new(hmac::HMAC_SHA256, next.as_ref())
    })
}

/// Last component of every credential scope.
const TERMINATOR: &str = "aws4_request";

/// A point in time with a resolution of one second.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SigV4Timestamp {
    text: String,
    unix_seconds: u64,
}

impl SigV4Timestamp {
    /// Converts a time. Times before 1970 or after the year 9999 are clamped.
    pub fn new(at: SystemTime) -> Self {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        let unix_seconds = since.unwrap_or_default().as_secs().min(LAST_SECOND);
        let moment = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(unix_seconds);
        Self {
            // The value provides every component of the format, so formatting cannot fail.
            text: moment.format(BASIC).unwrap_or_default(),
            unix_seconds,
        }
    }

    /// Parses a timestamp. Returns `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let moment = PrimitiveDateTime::parse(text, BASIC).ok()?.assume_utc();
        let unix_seconds = u64::try_from(moment.unix_timestamp()).ok()?;
        let read = Self::new(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds));
        // The signature covers the text, so only the canonical spelling is accepted.
        (read.text == text).then_some(read)
    }

    /// Returns the date, for example `20150830`.
    pub fn date(&self) -> &str {
        &self.text[..8]
    }

    /// Returns the timestamp as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the absolute difference of two timestamps.
    pub fn distance(&self, other: &Self) -> Duration {
        Duration::from_secs(self.unix_seconds.abs_diff(other.unix_seconds))
    }
}

impl fmt::Display for SigV4Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

const BASIC: &[BorrowedFormatItem<'_>] =
    format_description!("[year][month][day]T[hour][minute][second]Z");
/// 9999-12-31T23:59:59Z: years have four digits.
const LAST_SECOND: u64 = 253_402_300_799;

/// A signed header: lower-case name and joined values.
type CanonicalHeader<'a> = (Cow<'a, str>, String);

/// The signed parts of a request.
#[derive(Debug)]
struct CanonicalRequest<'a> {
    method: &'a str,
    /// Path as in the request line.
    path: &'a str,
    /// Query as in the request line, without the question mark.
    query: &'a str,
    /// Sorted by name, without duplicates.
    headers: &'a [CanonicalHeader<'a>],
    body: &'a [u8],
}

impl CanonicalRequest<'_> {
    /// Returns the header names as the `SignedHeaders` list.
    fn signed_headers(&self) -> String {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_ref()).collect();
        names.join(";")
    }

    /// Returns the canonical request text.
    fn text(&self) -> String {
        let (method, path, query) = (
            self.method,
            canonical_path(self.path),
            canonical_query(self.query),
        );
        let mut text = format!("{method}\n{path}\n{query}\n");
        for (name, value) in self.headers {
            text.push_str(name);
            text.push(':');
            text.push_str(value);
            text.push('\n');
        }
        text.push('\n');
        text.push_str(&self.signed_headers());
        text.push('\n');
        text.push_str(&hash(self.body));
        text
    }
}

/// Trims a value and collapses runs of whitespace.
fn trim(value: &str) -> String {
    let words: Vec<&str> = value.split_ascii_whitespace().collect();
    words.join(" ")
}

/// Returns the SHA-256 of `bytes` in hexadecimal.
fn hash(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// Normalises dot segments and repeated slashes, then percent-encodes the path, including existing
/// escapes. Every AWS service except S3 expects this double encoding.
fn canonical_path(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let mut text = String::with_capacity(path.len() + 1);
    for segment in &segments {
        text.push('/');
        text.extend(percent_encoded(segment));
    }
    let is_directory = ["/", "/.", "/.."].iter().any(|end| path.ends_with(end));
    if segments.is_empty() || is_directory {
        text.push('/');
    }
    text
}

/// Decodes, re-encodes and sorts the query parameters.
fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
        .map(|(name, value)| {
            (
                percent_encoded(&name).to_string(),
                percent_encoded(&value).to_string(),
            )
        })
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs.iter().map(|(n, v)| format!("{n}={v}")).collect();
    pairs.join("&")
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
fn percent_encoded(text: &str) -> PercentEncode<'_> {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~');
    utf8_percent_encode(text, RESERVED)
}
