//! Making signatures.

use std::borrow::Cow;

use aws_lc_rs::hmac;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use url::Url;

use super::{
    Keys, Timestamp,
    canonical::{Canonical, Header, hash, hex, trim},
    keys::TERMINATOR,
};

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
pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";
pub(super) static DATE: HeaderName = HeaderName::from_static("x-amz-date");
pub(super) static SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// The text whose signature proves that of the request.
pub(super) fn string_to_sign(canonical: &str, scope: &Scope, at: &Timestamp) -> String {
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
