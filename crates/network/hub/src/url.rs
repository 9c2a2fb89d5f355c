//! Rendezvous URLs: signed by the registry, verified by the rendezvous.
//!
//! A URL is its own credential: websockets present nothing else. It is signed with the hub's key,
//! so that every node can verify it without stored state.

#[cfg(test)]
mod tests;

use aws_lc_rs::hmac;
use exec_relay::identity::NoisePublicKey;
use http::{StatusCode, uri::Authority};
use url::{Url, form_urlencoded};
use uuid::Uuid;

use crate::{
    circuit::HarnessTag,
    limits,
    store::{EnvironmentId, RegistrationId, SigningKey, Timestamp},
};

/// Path of rendezvous URLs.
const PATH: &str = "/rendezvous/";
/// Separates these signatures from other uses of the key.
const DOMAIN: &str = "exec-hub/rendezvous/v1";
/// Separates harness tags from signatures.
const TAG_DOMAIN: &[u8] = b"exec-hub/harness-tag/v1";
/// Longest accepted query. Ours are below 400 bytes.
const MAX_QUERY_BYTES: usize = 1024;

/// Signs and verifies rendezvous URLs.
#[derive(Debug)]
pub struct UrlSigner {
    key: hmac::Key,
}

impl UrlSigner {
    /// Creates a signer with the hub's key.
    pub fn new(key: &SigningKey) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()),
        }
    }

    /// Returns the URL of an executor, valid while its registration is current. `websocket` is the
    /// hub's own URL, as [`PublicUrl`] returns it.
    pub fn executor_url(
        &self,
        websocket: &str,
        environment: &EnvironmentId,
        registration: &RegistrationId,
    ) -> String {
        let signature = self.sign(&["environment", environment.as_str(), registration.as_str()]);
        format!(
            "{websocket}{PATH}{environment}?role=environment&registration={registration}\
             &sig={signature}"
        )
    }

    /// Returns the URL of a harness, valid for [`limits::HARNESS_URL_LIFETIME`] from `now`.
    pub fn harness_url(
        &self,
        websocket: &str,
        environment: &EnvironmentId,
        registration: &RegistrationId,
        harness: &NoisePublicKey,
        now: Timestamp,
    ) -> String {
        let expires = now.plus(limits::HARNESS_URL_LIFETIME).seconds().to_string();
        let nonce = format!("{}{}", self.tag(harness), Uuid::new_v4().simple());
        let signature = self.sign(&[
            "harness",
            environment.as_str(),
            registration.as_str(),
            &expires,
            &nonce,
        ]);
        format!(
            "{websocket}{PATH}{environment}?role=harness&registration={registration}\
             &expires={expires}&nonce={nonce}&sig={signature}"
        )
    }

    /// Verifies the path and query of a request and returns its claims.
    pub fn check(
        &self,
        path: &str,
        query: Option<&str>,
        now: Timestamp,
    ) -> Result<UrlClaims, RendezvousUrlError> {
        let environment = path.strip_prefix(PATH).ok_or(RendezvousUrlError::Unknown)?;
        let query = query
            .filter(|query| query.len() <= MAX_QUERY_BYTES)
            .and_then(UrlQuery::parse)
            .ok_or(RendezvousUrlError::Unknown)?;
        match query.role.as_str() {
            "environment" => self
                .check_executor(environment, &query)
                .ok_or(RendezvousUrlError::ForgedExecutor),
            "harness" => self.check_harness(environment, &query, now),
            _ => Err(RendezvousUrlError::Unknown),
        }
    }

    fn check_executor(&self, environment: &str, query: &UrlQuery) -> Option<UrlClaims> {
        let signed = ["environment", environment, &query.registration];
        if query.expires.is_some() || query.nonce.is_some() || !self.signed(&signed, &query.sig) {
            return None;
        }
        Some(UrlClaims::Executor {
            environment: environment.parse().ok()?,
            registration: query.registration.parse().ok()?,
        })
    }

    fn check_harness(
        &self,
        environment: &str,
        query: &UrlQuery,
        now: Timestamp,
    ) -> Result<UrlClaims, RendezvousUrlError> {
        let forged = RendezvousUrlError::ForgedHarness;
        let (Some(expires), Some(nonce)) = (&query.expires, &query.nonce) else {
            return Err(forged);
        };
        let signed = ["harness", environment, &query.registration, expires, nonce];
        if !self.signed(&signed, &query.sig) {
            return Err(forged);
        }
        let expires = expires.parse().map_err(|_| forged)?;
        if now >= Timestamp::from_seconds(expires) {
            return Err(RendezvousUrlError::Expired);
        }
        let tag = nonce.get(..HarnessTag::LEN * 2).ok_or(forged)?;
        Ok(UrlClaims::Harness {
            environment: environment.parse().map_err(|_| forged)?,
            registration: query.registration.parse().map_err(|_| forged)?,
            harness: tag.parse().map_err(|_| forged)?,
        })
    }

    /// Returns the tag of a harness key.
    fn tag(&self, harness: &NoisePublicKey) -> HarnessTag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(TAG_DOMAIN);
        // Both have a fixed length.
        context.update(harness.x25519());
        context.update(harness.mlkem768());
        let digest = context.sign();
        HarnessTag::from_bytes(std::array::from_fn(|index| digest.as_ref()[index]))
    }

    fn sign(&self, fields: &[&str]) -> String {
        let signature = hmac::sign(&self.key, &message(fields));
        base64_simd::URL_SAFE_NO_PAD.encode_to_string(signature.as_ref())
    }

    /// Compares in constant time.
    fn signed(&self, fields: &[&str], signature: &str) -> bool {
        base64_simd::URL_SAFE_NO_PAD
            .decode_to_vec(signature)
            .is_ok_and(|signature| hmac::verify(&self.key, &message(fields), &signature).is_ok())
    }
}

/// Encodes the fields unambiguously: each ends with a byte that no field of a valid URL contains,
/// and the first field determines their number.
fn message(fields: &[&str]) -> Vec<u8> {
    let mut message = Vec::with_capacity(256);
    for field in std::iter::once(&DOMAIN).chain(fields) {
        message.extend_from_slice(field.as_bytes());
        message.push(0);
    }
    message
}

/// The parameters of a query. Each is allowed once, and no others.
struct UrlQuery {
    role: String,
    registration: String,
    sig: String,
    expires: Option<String>,
    nonce: Option<String>,
}

impl UrlQuery {
    fn parse(query: &str) -> Option<Self> {
        let (mut role, mut registration, mut sig) = (None, None, None);
        let (mut expires, mut nonce) = (None, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let member = match name.as_ref() {
                "role" => &mut role,
                "registration" => &mut registration,
                "sig" => &mut sig,
                "expires" => &mut expires,
                "nonce" => &mut nonce,
                _ => return None,
            };
            if value.contains('\0') || member.replace(value.into_owned()).is_some() {
                return None;
            }
        }
        Some(Self {
            role: role?,
            registration: registration.unwrap_or_default(),
            sig: sig.unwrap_or_default(),
            expires,
            nonce,
        })
    }
}

/// The claims of a valid rendezvous URL.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum UrlClaims {
    /// Act as the executor of a registration while it is current.
    Executor {
        /// The environment.
        environment: EnvironmentId,
        /// The registration.
        registration: RegistrationId,
    },
    /// Connect to the executor of a registration.
    Harness {
        /// The environment.
        environment: EnvironmentId,
        /// The registration.
        registration: RegistrationId,
        /// Tag of the harness key that the URL was issued for.
        harness: HarnessTag,
    },
}

/// Peer: why a URL is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousUrlError {
    /// Not a rendezvous URL.
    #[error("not a rendezvous URL")]
    Unknown,
    /// An executor URL with an invalid signature.
    #[error("executor URL is not valid")]
    ForgedExecutor,
    /// A harness URL with an invalid signature.
    #[error("harness URL is not valid")]
    ForgedHarness,
    /// An expired harness URL.
    #[error("harness URL has expired")]
    Expired,
}

impl RendezvousUrlError {
    /// Returns the status of the refused upgrade: 4xx makes an executor register again, 401 makes a
    /// harness request a new grant.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::ForgedExecutor => StatusCode::FORBIDDEN,
            Self::ForgedHarness | Self::Expired => StatusCode::UNAUTHORIZED,
        }
    }

    /// Returns the error code for clients and the audit log.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unknown => "not_found",
            Self::ForgedExecutor | Self::ForgedHarness => "invalid_url",
            Self::Expired => "expired_url",
        }
    }
}

/// The hub's address in URLs: configured by the operator, or taken from the client's request.
#[derive(Clone, Debug)]
pub struct PublicUrl(AddressSource);

#[derive(Clone, Debug)]
enum AddressSource {
    Fixed(Url),
    /// The `Host` header, with this scheme.
    HostHeader(&'static str),
}

impl PublicUrl {
    /// Parses the operator's setting: an `http`, `https`, `ws` or `wss` URL, possibly with a path
    /// under which a proxy serves the hub.
    pub fn fixed(url: &str) -> Result<Self, PublicUrlError> {
        let mut url = Url::parse(url.trim()).map_err(|_| PublicUrlError::Public)?;
        let scheme = match url.scheme() {
            "http" | "ws" => PLAIN,
            "https" | "wss" => TLS,
            _ => return Err(PublicUrlError::Public),
        };
        if !url.has_host()
            || !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some()
        {
            return Err(PublicUrlError::Public);
        }
        url.set_scheme(scheme)
            .map_err(|()| PublicUrlError::Public)?;
        Ok(Self(AddressSource::Fixed(url)))
    }

    /// Uses the `Host` header of each request, without TLS.
    pub const fn plain() -> Self {
        Self(AddressSource::HostHeader(PLAIN))
    }

    /// Uses the `Host` header of each request, with TLS.
    pub const fn tls() -> Self {
        Self(AddressSource::HostHeader(TLS))
    }

    /// Returns the configured host name, if it is not an IP address.
    pub fn host_name(&self) -> Option<&str> {
        match &self.0 {
            AddressSource::Fixed(url) => url.domain(),
            AddressSource::HostHeader(_) => None,
        }
    }

    /// Returns the hub's websocket URL without trailing slash, for a client that sent this `Host`
    /// header.
    pub fn websocket(&self, host: Option<&str>) -> Result<String, PublicUrlError> {
        let scheme = match &self.0 {
            AddressSource::Fixed(url) => return Ok(url.as_str().trim_end_matches('/').to_owned()),
            AddressSource::HostHeader(scheme) => scheme,
        };
        let host: Authority = host
            .ok_or(PublicUrlError::Host)?
            .parse()
            .map_err(|_| PublicUrlError::Host)?;
        if host.as_str().contains('@') || host.host().is_empty() {
            return Err(PublicUrlError::Host);
        }
        Ok(format!("{scheme}://{host}"))
    }
}

const PLAIN: &str = "ws";
const TLS: &str = "wss";

/// Why the hub's address is unknown.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PublicUrlError {
    /// Caller: the public URL is invalid.
    #[error(
        "public URL must be http(s)://host[:port][/path] without credentials, query or fragment"
    )]
    Public,
    /// Peer: the `Host` header is missing or invalid.
    #[error("request has no usable Host header")]
    Host,
}
