//! HTTP requests, sent from a local or remote host.

use std::{fmt, time::Duration};

use bytes::Bytes;
use exec_wire::{
    error::{ErrorCode, RpcError},
    http::{HttpHeader, HttpResponseHeader, RedirectPolicy},
};
use futures_util::{
    future::{BoxFuture, FutureExt, ready},
    stream::BoxStream,
};

use crate::environment::DisconnectReason;

/// Future of an HTTP request.
pub type HttpFuture<T> = BoxFuture<'static, Result<T, HttpError>>;

/// Makes HTTP requests, from this host or a remote one. An error status is a response. Dropping a
/// future cancels the request.
pub trait HttpClient: fmt::Debug + Send + Sync {
    /// Makes a request and reads the whole body, of at most
    /// [`limits::MAX_HTTP_BODY_BYTES`](exec_wire::limits::MAX_HTTP_BODY_BYTES).
    fn request(&self, request: HttpRequest) -> HttpFuture<HttpResponse<Bytes>>;

    /// Makes a request and resolves with the headers. The body is streamed.
    fn stream(&self, request: HttpRequest) -> HttpFuture<HttpResponse<HttpBody>>;
}

/// A streamed body. An error ends it; without an error it is complete.
pub type HttpBody = BoxStream<'static, Result<Bytes, HttpError>>;

/// A request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The method, sent unchanged.
    pub method: String,
    /// An `http` or `https` URL.
    pub url: String,
    /// Headers in order; a name may repeat. Variables are resolved on the host that sends the
    /// request.
    pub headers: Vec<HttpHeader>,
    /// The body.
    pub body: Option<Bytes>,
    /// Time limit for the whole request, including the body.
    pub timeout: Option<Duration>,
    /// Redirect policy.
    pub redirects: RedirectPolicy,
}

impl HttpRequest {
    /// Builds a request without headers, body or time limit.
    pub fn new(method: &str, url: &str) -> Self {
        Self {
            method: method.to_owned(),
            url: url.to_owned(),
            headers: Vec::new(),
            body: None,
            timeout: None,
            redirects: RedirectPolicy::default(),
        }
    }
}

/// A response.
pub struct HttpResponse<B> {
    /// The status.
    pub status: u16,
    /// Headers in order, names in lower case. Non-text values are omitted.
    pub headers: Vec<HttpResponseHeader>,
    /// The body.
    pub body: B,
}

impl<B> fmt::Debug for HttpResponse<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpResponse")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// Why a response is missing or incomplete.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// Caller: the request is invalid.
    #[error("{0}")]
    Refused(String),
    /// Host: the request could not be sent, or the response did not arrive.
    #[error("{0}")]
    Host(String),
    /// Peer: the server returned any other error.
    #[error(transparent)]
    Remote(RpcError),
    /// Peer: the server violated the protocol. The text says how.
    #[error("exec-server violated the protocol: {0}")]
    Protocol(String),
    /// Caller: the body was read too slowly, and its buffer overflowed.
    #[error("body was read too slowly: more than {0} bytes are buffered")]
    Lagged(usize),
    /// Transport: the session is lost.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
}

impl From<HttpError> for RpcError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Refused(text) => Self::invalid_params(text),
            HttpError::Host(text) => Self::internal(text),
            HttpError::Remote(error) => error,
            HttpError::Protocol(_) | HttpError::Lagged(_) | HttpError::Disconnected(_) => {
                Self::internal(error.to_string())
            }
        }
    }
}

impl From<RpcError> for HttpError {
    fn from(error: RpcError) -> Self {
        match error.code {
            ErrorCode::INVALID_PARAMS => Self::Refused(error.message),
            ErrorCode::INTERNAL => Self::Host(error.message),
            _ => Self::Remote(error),
        }
    }
}

/// Rejects every request, for environments without HTTP.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHttpClient;

impl HttpClient for NoHttpClient {
    fn request(&self, _: HttpRequest) -> HttpFuture<HttpResponse<Bytes>> {
        ready(Err(unsupported())).boxed()
    }

    fn stream(&self, _: HttpRequest) -> HttpFuture<HttpResponse<HttpBody>> {
        ready(Err(unsupported())).boxed()
    }
}

fn unsupported() -> HttpError {
    HttpError::Refused("this environment does not support HTTP requests".to_owned())
}
