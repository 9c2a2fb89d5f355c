//! Checking signatures, for a hub that lets signed requests in.

use std::{borrow::Cow, time::Duration};

use aws_lc_rs::hmac;
use http::{HeaderMap, HeaderName, header};

use super::{
    Scope, SecretKey, Timestamp,
    canonical::{Canonical, Header, trim},
};
use crate::sigv4::{ALGORITHM, DATE, SECURITY_TOKEN, TERMINATOR, string_to_sign};

/// How far the clock of who signs may be from ours. A signature can be replayed for as long.
pub const MAX_SKEW: Duration = Duration::from_secs(5 * 60);

/// A request that says it is signed.
#[derive(Clone, Copy, Debug)]
pub struct Presented<'a> {
    /// The method.
    pub method: &'a str,
    /// The path of the request line, as it came.
    pub path: &'a str,
    /// The query of the request line, as it came, without the question mark.
    pub query: &'a str,
    /// All headers.
    pub headers: &'a HeaderMap,
    /// The whole body.
    pub body: &'a [u8],
}

/// Checks a signature; returns the id of the access key that made it. `secret` looks a key up: that of
/// temporary keys is not known to be theirs before it has compared the session token.
///
/// # Errors
/// When the request is not signed by that key, for this service, at this time.
pub fn verify(
    request: Presented<'_>,
    service: &str,
    now: &Timestamp,
    secret: impl FnOnce(&str) -> Option<SecretKey>,
) -> Result<String, VerifyError> {
    let claim = Claim::parse(one(request.headers, &header::AUTHORIZATION)?)?;
    let at = Timestamp::parse(one(request.headers, &DATE)?).ok_or(VerifyError::Malformed)?;
    if claim.date != at.date() {
        return Err(VerifyError::Malformed);
    }
    if claim.service != service {
        return Err(VerifyError::Service);
    }
    if at.distance(now) > MAX_SKEW {
        return Err(VerifyError::Skew);
    }
    let headers = claim.headers(request.headers)?;
    let canonical = Canonical {
        method: request.method,
        path: request.path,
        query: request.query,
        headers: &headers,
        body: request.body,
    };
    let scope = Scope {
        region: claim.region.to_owned(),
        service: claim.service.to_owned(),
    };
    let known = secret(claim.access_key_id);
    let is_known = known.is_some();
    // An unknown key costs the same work, so that time does not tell which ids there are.
    let key = known.unwrap_or_else(|| SecretKey::new("nobody"));
    let to_sign = string_to_sign(&canonical.text(), &scope, &at);
    let signature = unhex(claim.signature).ok_or(VerifyError::Malformed)?;
    let fits = hmac::verify(&key.derive(&scope, &at), to_sign.as_bytes(), &signature).is_ok();
    if fits && is_known {
        Ok(claim.access_key_id.to_owned())
    } else {
        Err(VerifyError::Signature)
    }
}

/// Peer: a request is not let in. What it presented is not repeated.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A header that signed requests have is not there, or is there twice.
    #[error("request is not signed")]
    Unsigned,
    /// What is there is no signature.
    #[error("signature is malformed")]
    Malformed,
    /// It leaves out what it must cover.
    #[error("signature does not cover the host, the date and the session token")]
    Uncovered,
    /// It counts for another service.
    #[error("signature is for another service")]
    Service,
    /// It was made too long ago, or will be.
    #[error("signature was made at another time; compare the clocks")]
    Skew,
    /// Nobody whom we know made it, of this request.
    #[error("signature does not match")]
    Signature,
}

/// What `Authorization` says.
struct Claim<'a> {
    access_key_id: &'a str,
    date: &'a str,
    region: &'a str,
    service: &'a str,
    signed_headers: Vec<&'a str>,
    signature: &'a str,
}

impl<'a> Claim<'a> {
    fn parse(text: &'a str) -> Result<Self, VerifyError> {
        let rest = text.strip_prefix(ALGORITHM).ok_or(VerifyError::Unsigned)?;
        let rest = rest.strip_prefix(' ').ok_or(VerifyError::Unsigned)?;
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for part in rest.split(',') {
            let (name, value) = part.trim().split_once('=').ok_or(VerifyError::Malformed)?;
            let place = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed_headers,
                "Signature" => &mut signature,
                _ => return Err(VerifyError::Malformed),
            };
            if place.replace(value).is_some() {
                return Err(VerifyError::Malformed);
            }
        }
        let (Some(credential), Some(signed_headers), Some(signature)) =
            (credential, signed_headers, signature)
        else {
            return Err(VerifyError::Malformed);
        };
        // An id may hold slashes; what follows it does not.
        let mut parts = credential.rsplitn(5, '/');
        let mut next = || {
            parts
                .next()
                .filter(|part| !part.is_empty())
                .ok_or(VerifyError::Malformed)
        };
        if next()? != TERMINATOR {
            return Err(VerifyError::Malformed);
        }
        let (service, region, date, access_key_id) = (next()?, next()?, next()?, next()?);
        Ok(Self {
            access_key_id,
            date,
            region,
            service,
            signed_headers: signed_headers.split(';').collect(),
            signature,
        })
    }

    /// Returns the headers that are signed, checked for those that must be.
    fn headers(&self, all: &'a HeaderMap) -> Result<Vec<Header<'a>>, VerifyError> {
        // Sorted and each once, or else one text could stand for two lists.
        if !self.signed_headers.is_sorted_by(|one, two| one < two) {
            return Err(VerifyError::Malformed);
        }
        let covers = |name: &HeaderName| self.signed_headers.contains(&name.as_str());
        let token_is_covered = !all.contains_key(&SECURITY_TOKEN) || covers(&SECURITY_TOKEN);
        if !covers(&header::HOST) || !covers(&DATE) || !token_is_covered {
            return Err(VerifyError::Uncovered);
        }
        let mut headers = Vec::with_capacity(self.signed_headers.len());
        for name in &self.signed_headers {
            let mut values = Vec::new();
            for value in all.get_all(*name) {
                values.push(trim(value.to_str().map_err(|_| VerifyError::Malformed)?));
            }
            if values.is_empty() {
                return Err(VerifyError::Signature);
            }
            headers.push((Cow::Borrowed(*name), values.join(",")));
        }
        // Each of them stands for the whole request, and a second one could stand for another.
        for name in [&header::HOST, &SECURITY_TOKEN] {
            if all.get_all(name).iter().count() > 1 {
                return Err(VerifyError::Malformed);
            }
        }
        Ok(headers)
    }
}

/// Returns the one value of a header.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a str, VerifyError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map_err(|_| VerifyError::Malformed),
        (Some(_) | None, _) => Err(VerifyError::Unsigned),
    }
}

/// Reads a signature: 64 hexadecimal digits in lower case.
fn unhex(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}
