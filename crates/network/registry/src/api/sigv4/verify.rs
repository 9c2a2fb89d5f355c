//! Verification of SigV4 signatures, for a hub that accepts signed requests.

use std::{borrow::Cow, time::Duration};

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use http::{HeaderMap, HeaderName, header};

use super::{
    ALGORITHM, CanonicalHeader, CanonicalRequest, DATE, SECURITY_TOKEN, SecretString,
    SigV4Timestamp, SigningScope, TERMINATOR, signing_key, string_to_sign, trim,
};

/// Accepted clock difference between signer and verifier. Also the time during which a signature
/// can be replayed.
pub const MAX_SKEW: Duration = Duration::from_secs(5 * 60);

/// A request that carries a signature.
#[derive(Clone, Copy, Debug)]
pub struct SignedRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// Path of the request line as received.
    pub path: &'a str,
    /// Query of the request line as received, without the question mark.
    pub query: &'a str,
    /// All headers.
    pub headers: &'a HeaderMap,
    /// The whole body.
    pub body: &'a [u8],
}

/// Returns whether a request is meant to carry a signature.
pub fn is_signed(headers: &HeaderMap) -> bool {
    let authorization = headers.get(header::AUTHORIZATION);
    authorization.is_some_and(|value| value.as_bytes().starts_with(ALGORITHM.as_bytes()))
}

/// Returns the id of the access key that a signature claims to be of, without verifying it.
///
/// # Errors
/// Returns an error if the request is not signed or the signature is malformed.
pub fn claimed_key_id(headers: &HeaderMap) -> Result<&str, VerifyError> {
    AuthorizationHeader::of(headers).map(|claim| claim.access_key_id)
}

/// Verifies a signature and returns the id of the access key that made it. `secret` looks up the
/// key. For temporary keys, `secret` must also compare the session token.
///
/// # Errors
/// Returns an error if the key did not sign this request for this service and time.
pub fn verify(
    request: SignedRequest<'_>,
    service: &str,
    now: &SigV4Timestamp,
    secret: impl FnOnce(&str) -> Option<SecretString>,
) -> Result<String, VerifyError> {
    let claim = AuthorizationHeader::of(request.headers)?;
    let at = SigV4Timestamp::parse(single_value(request.headers, &DATE)?)
        .ok_or(VerifyError::Malformed)?;
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
    let canonical = CanonicalRequest {
        method: request.method,
        path: request.path,
        query: request.query,
        headers: &headers,
        body: request.body,
    };
    let scope = SigningScope {
        region: claim.region.to_owned(),
        service: claim.service.to_owned(),
    };
    let known = secret(claim.access_key_id);
    let is_known = known.is_some();
    // Unknown keys take the same time, so that timing does not reveal which ids exist.
    let key = known.unwrap_or_else(|| SecretString::new("unknown-key"));
    let to_sign = string_to_sign(&canonical.text(), &scope, &at);
    let signature = decode_hex(claim.signature).ok_or(VerifyError::Malformed)?;
    let fits = hmac::verify(
        &signing_key(&key, &scope, &at),
        to_sign.as_bytes(),
        &signature,
    )
    .is_ok();
    if fits && is_known {
        Ok(claim.access_key_id.to_owned())
    } else {
        Err(VerifyError::Signature)
    }
}

/// Peer: a request is rejected. The error never repeats what the request contained.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A required header is missing or duplicated.
    #[error("request is not signed")]
    Unsigned,
    /// The signature cannot be parsed.
    #[error("signature is malformed")]
    Malformed,
    /// The signature does not cover a required header.
    #[error("signature does not cover the host, the date and the session token")]
    Uncovered,
    /// The signature is for another service.
    #[error("signature is for another service")]
    Service,
    /// The signature's time is too far from ours.
    #[error("signature time differs too much; check both clocks")]
    Skew,
    /// The signature is not by a known key, or is for another request.
    #[error("signature does not match")]
    Signature,
}

/// The parsed `Authorization` header.
struct AuthorizationHeader<'a> {
    access_key_id: &'a str,
    date: &'a str,
    region: &'a str,
    service: &'a str,
    signed_headers: Vec<&'a str>,
    signature: &'a str,
}

impl<'a> AuthorizationHeader<'a> {
    fn of(headers: &'a HeaderMap) -> Result<Self, VerifyError> {
        Self::parse(single_value(headers, &header::AUTHORIZATION)?)
    }

    fn parse(text: &'a str) -> Result<Self, VerifyError> {
        let rest = text.strip_prefix(ALGORITHM).ok_or(VerifyError::Unsigned)?;
        let rest = rest.strip_prefix(' ').ok_or(VerifyError::Unsigned)?;
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for part in rest.split(',') {
            let (name, value) = part.trim().split_once('=').ok_or(VerifyError::Malformed)?;
            let field = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed_headers,
                "Signature" => &mut signature,
                _ => return Err(VerifyError::Malformed),
            };
            if field.replace(value).is_some() {
                return Err(VerifyError::Malformed);
            }
        }
        let (Some(credential), Some(signed_headers), Some(signature)) =
            (credential, signed_headers, signature)
        else {
            return Err(VerifyError::Malformed);
        };
        // The access key id may contain slashes; the other components do not.
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

    /// Returns the signed headers and checks that all required ones are covered.
    fn headers(&self, all: &'a HeaderMap) -> Result<Vec<CanonicalHeader<'a>>, VerifyError> {
        // The list must be sorted without duplicates; otherwise one signed text could stand for two
        // lists.
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
        // A duplicate of these headers could let one signature authenticate two different requests.
        for name in [&header::HOST, &SECURITY_TOKEN] {
            if all.get_all(name).iter().count() > 1 {
                return Err(VerifyError::Malformed);
            }
        }
        Ok(headers)
    }
}

/// Returns the only value of a header.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a str, VerifyError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map_err(|_| VerifyError::Malformed),
        (Some(_) | None, _) => Err(VerifyError::Unsigned),
    }
}

/// Decodes a signature: 64 lower-case hexadecimal digits.
fn decode_hex(text: &str) -> Option<[u8; 32]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}
