//! Requests to registries and to those who vouch for credentials.
//!
//! Every request has one deadline for all of it, and every answer a size that it may not exceed.
//! Redirects are not followed: they would carry secrets to whoever is named. Not here: what is asked.

mod base_url;
#[cfg(test)]
pub(crate) mod tests;

pub use self::base_url::{BaseUrl, BaseUrlError, is_near};

use std::{
    error::Error,
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use reqwest::{Client, ClientBuilder, Response, redirect::Policy};
use tokio::time::timeout;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto::aws_lc_rs};
use url::Url;

/// Connections to one host that are kept for the next request.
const IDLE_PER_HOST: usize = 4;
/// How long they are kept. A hub closes an idle connection after ten seconds, and a request that
/// meets the closing half-way fails for nothing: they must be given up well before.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may take. Less than any request may, so that a host that drops what is sent
/// to it counts as one that was not reached.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client for HTTP/1.1. Clones share connections.
///
/// It takes the proxies of the system. Requests to this machine go around them, and `localhost` is
/// this machine whatever a name server says: secrets are sent there in the clear.
#[derive(Clone, Debug)]
pub struct Http {
    kept: Clients,
    fresh: Clients,
}

impl Http {
    /// Makes a client that accepts certificates as `tls` says.
    ///
    /// # Errors
    /// When the library refuses the configuration.
    pub fn new(tls: &Arc<ClientConfig>) -> Result<Self, HttpError> {
        Ok(Self {
            kept: Clients::new(tls, IDLE_PER_HOST)?,
            fresh: Clients::new(tls, 0)?,
        })
    }

    /// Makes a client that accepts no certificate at all: it is for `http://` only.
    ///
    /// # Errors
    /// When the library refuses the configuration.
    pub fn without_tls() -> Result<Self, HttpError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(HttpError::Tls)?
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        Self::new(&Arc::new(config))
    }

    /// Sends a request and reads the answer. Dropping the future ends the connection.
    pub(crate) async fn send(&self, call: Call) -> Result<Reply, ExchangeError> {
        let within = call.within;
        timeout(within, self.exchange(call))
            .await
            .unwrap_or(Err(ExchangeError::Timeout(within)))
    }

    async fn exchange(&self, call: Call) -> Result<Reply, ExchangeError> {
        let clients = match call.connection {
            Connection::Kept => &self.kept,
            Connection::Fresh => &self.fresh,
        };
        let client = clients.for_url(&call.url);
        let mut request = client.request(call.method, call.url).headers(call.headers);
        if let Some(body) = call.body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let body = body(response, call.limit).await;
        match body {
            // What is read of a refusal is for people, and its status counts however much they are told.
            Err(ExchangeError::TooLarge(_)) if !status.is_success() => {
                let body = Bytes::new();
                Ok(Reply { status, body })
            }
            body => Ok(Reply {
                status,
                body: body?,
            }),
        }
    }
}

/// Clients that keep the same number of connections.
#[derive(Clone, Debug)]
struct Clients {
    away: Client,
    near: Client,
}

impl Clients {
    fn new(tls: &Arc<ClientConfig>, idle_per_host: usize) -> Result<Self, HttpError> {
        let loopback = [
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
        ];
        let builder = || builder(tls).pool_max_idle_per_host(idle_per_host);
        let near = builder()
            .no_proxy()
            .resolve_to_addrs("localhost", &loopback);
        Ok(Self {
            away: builder().build().map_err(HttpError::Client)?,
            near: near.build().map_err(HttpError::Client)?,
        })
    }

    fn for_url(&self, url: &Url) -> &Client {
        if is_near(url) { &self.near } else { &self.away }
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

async fn body(mut response: Response, limit: usize) -> Result<Bytes, ExchangeError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > limit {
            return Err(ExchangeError::TooLarge(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn failed(error: reqwest::Error) -> ExchangeError {
    let error = error.without_url();
    if error.is_connect() {
        ExchangeError::Unreachable(error)
    } else {
        ExchangeError::Interrupted(error)
    }
}

/// One request.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
    pub(crate) connection: Connection,
    /// How long all of it may take.
    pub(crate) within: Duration,
    /// How long the answer may be.
    pub(crate) limit: usize,
}

/// Over which connection a request goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Connection {
    /// One that an earlier request left, if there is any.
    Kept,
    /// A new one. A server may close one that was left just when a request is on its way; who must
    /// not ask twice cannot tell that from a request that was heard.
    Fresh,
}

/// A whole answer.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

// Answers hold signed URLs and authorizations.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// Host: no client could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The library refuses what it was told.
    #[error("HTTP client cannot be set up")]
    Client(#[source] reqwest::Error),
    /// There is no TLS that could be used.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
}

/// Why there is no answer to a request. The URL is not repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Transport: no connection came about. The request was not sent.
    #[error("cannot connect")]
    Unreachable(#[source] reqwest::Error),
    /// Transport: the connection broke before the end of the answer.
    #[error("connection broke before the end of the answer")]
    Interrupted(#[source] reqwest::Error),
    /// Transport: it took too long.
    #[error("no whole answer within {0:?}")]
    Timeout(Duration),
    /// Peer: the answer is longer than any that makes sense.
    #[error("answer is longer than {0} bytes")]
    TooLarge(usize),
}

impl ExchangeError {
    /// Tells whether asking again may help.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Interrupted(_) | Self::Timeout(_) => true,
            Self::TooLarge(_) => false,
        }
    }

    /// Tells whether nobody was reached, such as a server that is not up yet. A server with which no
    /// TLS comes about was reached: who runs it, or trusts it, has to act.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable(error) => !has_tls_error(error),
            Self::Interrupted(_) | Self::Timeout(_) | Self::TooLarge(_) => false,
        }
    }
}

fn has_tls_error(error: &(dyn Error + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    // An error of the system that wraps another has that one's source, and not that one, as its own.
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => has_tls_error(wrapped),
        None => error.source().is_some_and(has_tls_error),
    }
}
