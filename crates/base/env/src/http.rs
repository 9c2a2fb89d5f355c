//! HTTP requests, made from here or from elsewhere.

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

use crate::environment::Disconnect;

/// What a request comes to.
pub type HttpFuture<T> = BoxFuture<'static, Result<T, HttpError>>;

/// Makes HTTP requests. Callers cannot tell local from remote through it. An error status is a
/// response. Dropping a future gives the request up.
pub trait HttpClient: fmt::Debug + Send + Sync {
    /// Makes a request and reads the whole body, of at most
    /// [`limits::MAX_HTTP_BODY_BYTES`](exec_wire::limits::MAX_HTTP_BODY_BYTES).
    fn request(&self, request: HttpRequest) -> HttpFuture<HttpResponse<Bytes>>;

    /// Makes a request and resolves when its headers have come; the body is read as it comes.
    fn stream(&self, request: HttpRequest) -> HttpFuture<HttpResponse<HttpBody>>;
}

/// A body, part by part. After an error nothing follows; without one it is whole.
pub type HttpBody = BoxStream<'static, Result<Bytes, HttpError>>;

/// A request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The method, as it is sent.
    pub method: String,
    /// An `http` or `https` URL.
    pub url: String,
    /// Headers in their order; a name may repeat. Variables are those of the host that sends it.
    pub headers: Vec<HttpHeader>,
    /// The body.
    pub body: Option<Bytes>,
    /// How long everything may take, the body included.
    pub timeout: Option<Duration>,
    /// What becomes of redirections.
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
    /// Headers in their order, names in lower case. Values that are not text are left out.
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

/// Why there is no response, or not all of it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// Caller: the request cannot be made.
    #[error("{0}")]
    Refused(String),
    /// Host: it could not be sent, or the answer did not come.
    #[error("{0}")]
    Host(String),
    /// Peer: the remote end refused in a way of its own.
    #[error(transparent)]
    Remote(RpcError),
    /// Peer: the remote end broke a promise of the protocol, which the text names.
    #[error("exec-server broke the protocol: {0}")]
    Protocol(String),
    /// Caller: the body was not read as fast as it came, and more came than is kept.
    #[error("body was not read in time: more than {0} bytes waited")]
    Lagged(usize),
    /// Transport: the remote end is gone.
    #[error(transparent)]
    Disconnected(#[from] Disconnect),
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

/// Makes no requests: for an environment that offers none.
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
    HttpError::Refused("this environment makes no HTTP requests".to_owned())
}
