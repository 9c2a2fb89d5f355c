//! HTTP client for registries and for issuers of credentials.
//!
//! Every request has one deadline for the whole exchange and a maximum response size. Redirects are
//! not followed, because they would carry secrets to another host. [`BaseUrl`] is the URL of a
//! registry or issuer. Elsewhere: the requests themselves.

#[cfg(test)]
pub(crate) mod tests;

use std::{
    error::Error,
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use reqwest::{Client, ClientBuilder, Response, redirect::Policy};
use tokio::time::timeout;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto::aws_lc_rs};
use url::{Host, Url};

use crate::api::RegistryEnvironmentId;

/// Idle connections pooled per host.
const IDLE_PER_HOST: usize = 4;
/// How long idle connections are pooled. A hub closes them after ten seconds, and a request that
/// races with the close fails, so they must be dropped well before.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connect timeout. Shorter than any request timeout, so that a host that drops packets counts as
/// unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An HTTP/1.1 client. Clones share connections.
///
/// It uses the system's proxies. Requests to loopback addresses bypass them, and `localhost` always
/// resolves to loopback, because secrets are sent there without TLS.
#[derive(Clone, Debug)]
pub struct HttpClient {
    pooled: PooledClients,
    fresh: PooledClients,
}

impl HttpClient {
    /// Creates a client with the given TLS configuration.
    ///
    /// # Errors
    /// Returns an error if the HTTP library rejects the configuration.
    pub fn new(tls: &Arc<ClientConfig>) -> Result<Self, HttpClientError> {
        Ok(Self {
            pooled: PooledClients::new(tls, IDLE_PER_HOST)?,
            fresh: PooledClients::new(tls, 0)?,
        })
    }

    /// Creates a client that trusts no certificate. It is for `http://` only.
    ///
    /// # Errors
    /// Returns an error if the HTTP library rejects the configuration.
    pub fn without_tls() -> Result<Self, HttpClientError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(HttpClientError::Tls)?
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        Self::new(&Arc::new(config))
    }

    /// Sends a request and reads the response. Dropping the future closes the connection.
    pub(crate) async fn send(&self, call: HttpCall) -> Result<HttpReply, ExchangeError> {
        let within = call.within;
        timeout(within, self.exchange(call))
            .await
            .unwrap_or(Err(ExchangeError::Timeout(within)))
    }

    async fn exchange(&self, call: HttpCall) -> Result<HttpReply, ExchangeError> {
        let clients = match call.connection {
            ConnectionReuse::Pooled => &self.pooled,
            ConnectionReuse::Fresh => &self.fresh,
        };
        let client = clients.for_url(&call.url);
        let mut request = client.request(call.method, call.url).headers(call.headers);
        if let Some(body) = call.body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(exchange_error)?;
        let status = response.status();
        let body = read_body(response, call.limit).await;
        match body {
            // The body of an error response is only informative; the status matters even if the
            // body is too long.
            Err(ExchangeError::TooLarge(_)) if !status.is_success() => {
                let body = Bytes::new();
                Ok(HttpReply { status, body })
            }
            body => Ok(HttpReply {
                status,
                body: body?,
            }),
        }
    }
}

/// Clients with the same connection pool settings.
#[derive(Clone, Debug)]
struct PooledClients {
    remote: Client,
    local: Client,
}

impl PooledClients {
    fn new(tls: &Arc<ClientConfig>, idle_per_host: usize) -> Result<Self, HttpClientError> {
        let loopback = [
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
        ];
        let builder = || builder(tls).pool_max_idle_per_host(idle_per_host);
        let local = builder()
            .no_proxy()
            .resolve_to_addrs("localhost", &loopback);
        Ok(Self {
            remote: builder().build().map_err(HttpClientError::Client)?,
            local: local.build().map_err(HttpClientError::Client)?,
        })
    }

    fn for_url(&self, url: &Url) -> &Client {
        if is_loopback(url) {
            &self.local
        } else {
            &self.remote
        }
    }
}

fn builder(tls: &Arc<ClientConfig>) -> ClientBuilder {
    Client::builder()
        .redirect(Policy::none())
        .referer(false)
        .http1_only()
        .pool_idle_timeout(IDLE_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .tls_backend_preconfigured(ClientConfig::clone(tls))
}

async fn read_body(mut response: Response, limit: usize) -> Result<Bytes, ExchangeError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(exchange_error)? {
        if body.len() + chunk.len() > limit {
            return Err(ExchangeError::TooLarge(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn exchange_error(error: reqwest::Error) -> ExchangeError {
    let error = error.without_url();
    if error.is_connect() {
        ExchangeError::Unreachable(error)
    } else {
        ExchangeError::Interrupted(error)
    }
}

/// One request.
pub(crate) struct HttpCall {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
    pub(crate) connection: ConnectionReuse,
    /// Timeout of the whole exchange.
    pub(crate) within: Duration,
    /// Maximum length of the response body.
    pub(crate) limit: usize,
}

impl HttpCall {
    /// Timeout unless a request needs more.
    const TIMEOUT: Duration = Duration::from_secs(10);
    /// Enough for any response but a set of keys. The longest has a key of 1.6 KiB, an authorization
    /// of 4 KiB and a URL; error texts are cut to 4096 characters.
    const MAX_RESPONSE_BYTES: usize = 64 << 10;

    /// Creates a request that may be repeated.
    pub(crate) fn get(url: Url, headers: HeaderMap) -> Self {
        Self {
            method: Method::GET,
            url,
            headers,
            body: None,
            connection: ConnectionReuse::Pooled,
            within: Self::TIMEOUT,
            limit: Self::MAX_RESPONSE_BYTES,
        }
    }

    /// Creates a request with a JSON body that must not be repeated.
    pub(crate) fn post_json(url: Url, mut headers: HeaderMap, body: Vec<u8>) -> Self {
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        Self {
            method: Method::POST,
            body: Some(Bytes::from(body)),
            connection: ConnectionReuse::Fresh,
            ..Self::get(url, headers)
        }
    }
}

/// Which connection a request uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ConnectionReuse {
    /// An idle pooled connection, if there is one.
    Pooled,
    /// A new connection. A server may close a pooled connection just when a request is sent on it.
    /// Requests that must not be repeated cannot distinguish this from a request that was
    /// processed.
    Fresh,
}

/// A complete response.
pub(crate) struct HttpReply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

// Responses contain signed URLs and authorizations, so `Debug` omits the body.
impl fmt::Debug for HttpReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpReply")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// Host: the client could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpClientError {
    /// The HTTP library rejected the configuration.
    #[error("failed to set up the HTTP client")]
    Client(#[source] reqwest::Error),
    /// TLS is not available.
    #[error("failed to set up TLS")]
    Tls(#[source] rustls::Error),
}

/// Why a request has no response. The error does not contain the URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Transport: connecting failed. The request was not sent.
    #[error("failed to connect")]
    Unreachable(#[source] reqwest::Error),
    /// Transport: the connection broke before the end of the response.
    #[error("connection broke before the end of the response")]
    Interrupted(#[source] reqwest::Error),
    /// Transport: the timeout elapsed.
    #[error("no complete response within {0:?}")]
    Timeout(Duration),
    /// Peer: the response exceeds the limit.
    #[error("response is longer than {0} bytes")]
    TooLarge(usize),
}

impl ExchangeError {
    /// Returns whether a retry may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Interrupted(_) | Self::Timeout(_) => true,
            Self::TooLarge(_) => false,
        }
    }

    /// Returns whether no server was reached, such as one that is not up yet. A server that fails
    /// the TLS handshake was reached: its operator or our trust configuration must change.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable(error) => !has_tls_error(error),
            Self::Interrupted(_) | Self::Timeout(_) | Self::TooLarge(_) => false,
        }
    }
}

/// Returns whether an error or one of its sources is a failure of TLS.
pub fn has_tls_error(error: &(dyn Error + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    // `io::Error::source` skips the wrapped error itself, so look at it first.
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => has_tls_error(wrapped),
        None => error.source().is_some_and(has_tls_error),
    }
}

/// The URL that API paths are appended to, without surrounding whitespace and trailing slashes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BaseUrl {
    text: String,
    parsed: Url,
}

impl BaseUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// Returns an error if it is not an HTTP URL or has more than a path.
    pub fn parse(text: &str) -> Result<Self, BaseUrlError> {
        let text = text.trim().trim_end_matches('/');
        if text.is_empty() {
            return Err(BaseUrlError::Empty);
        }
        let parsed = Url::parse(text).map_err(BaseUrlError::Malformed)?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host().is_none() {
            return Err(BaseUrlError::Scheme(parsed.scheme().to_owned()));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(BaseUrlError::UserInfo);
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(BaseUrlError::Query);
        }
        Ok(Self {
            text: text.to_owned(),
            parsed,
        })
    }

    /// Returns the URL of an operation on an environment.
    pub(crate) fn operation(
        &self,
        environment: &RegistryEnvironmentId,
        operation: &str,
    ) -> Result<Url, url::ParseError> {
        self.join(&format!("cloud/environment/{environment}/{operation}"))
    }

    /// Appends a path textually.
    pub(crate) fn join(&self, path: &str) -> Result<Url, url::ParseError> {
        Url::parse(&format!("{}/{path}", self.text))
    }

    /// Returns the URL.
    pub fn url(&self) -> &Url {
        &self.parsed
    }

    /// Returns whether requests are encrypted or stay on this host.
    pub fn is_private(&self) -> bool {
        self.parsed.scheme() == "https" || is_loopback(&self.parsed)
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns whether a URL names this host: `localhost` or a literal loopback address.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.to_canonical().is_loopback(),
        None => false,
    }
}

/// Caller: the text is not a valid base URL.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BaseUrlError {
    /// The text is empty.
    #[error("URL is empty")]
    Empty,
    /// The text is not a URL.
    #[error("URL is malformed")]
    Malformed(#[source] url::ParseError),
    /// The scheme is not HTTP.
    #[error("URL begins with http:// or https://, not with `{0}:`")]
    Scheme(String),
    /// User names and passwords in URLs are not supported.
    #[error("URL holds a user name or a password")]
    UserInfo,
    /// Paths are appended, so a query or fragment is not allowed.
    #[error("URL has a query or a fragment")]
    Query,
}
