//! What watches a server: whether it lives, whether it is ready, and what it has counted.
//! Not here: who may ask. A [door](super::Door) asks for a token where one is needed; a [`Lookout`] is
//! for a listener of its own that nobody but this machine reaches.

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::{BoxFuture, FutureExt, ready};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};

use super::{
    handshake::plain,
    site::{Answer, Peer, Site},
};

/// Makes the text of `/metrics`, in the format of Prometheus.
#[derive(Clone)]
pub struct Exposition(Arc<dyn Fn() -> String + Send + Sync>);

impl Exposition {
    /// Has `render` make the text, once for each request.
    pub fn new(render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(render))
    }

    /// Makes the answer to a request that may see it.
    pub(super) fn answer(&self) -> Response<Full<Bytes>> {
        let mut response = plain(StatusCode::OK, (self.0)());
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposition").finish_non_exhaustive()
    }
}

/// A site with nothing but what watches a server.
#[derive(Debug)]
pub struct Lookout {
    /// What `/metrics` answers.
    pub metrics: Exposition,
    /// Set while the server drains.
    pub draining: Arc<AtomicBool>,
}

impl Site for Lookout {
    type Upgrade = Infallible;

    fn answer(&self, request: Request<Incoming>, _: Peer) -> BoxFuture<'_, Answer<Infallible>> {
        let response = match request.uri().path() {
            "/healthz" | "/readyz" | "/metrics" if !reads(request.method()) => only_read(),
            "/healthz" => plain(StatusCode::OK, ""),
            "/readyz" => readiness(&self.draining),
            "/metrics" => self.metrics.answer(),
            _ => plain(StatusCode::NOT_FOUND, ""),
        };
        ready(Answer::Reply(response)).boxed()
    }
}

pub(super) fn readiness(draining: &AtomicBool) -> Response<Full<Bytes>> {
    let status = match draining.load(Ordering::Relaxed) {
        true => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::OK,
    };
    plain(status, "")
}

pub(super) fn reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Refuses a method that changes something.
pub(super) fn only_read() -> Response<Full<Bytes>> {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "");
    let allowed = HeaderValue::from_static("GET, HEAD");
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}
