//! The HTTP side of a listener. A server's [endpoint](HttpEndpoint) has the routes `/`, `/healthz`,
//! `/readyz` and `/metrics`; a [`service`] brings its own routes.

mod connection;
mod handshake;
pub mod service;

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::future::{BoxFuture, FutureExt, ready};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use tokio::sync::Semaphore;

use self::{
    connection::{ConnectionTimeouts, PendingUpgrade, serve_connection},
    handshake::{check_request, method_not_allowed, text_response, upgrade_response},
    service::{HttpOutcome, HttpPeer, HttpService},
};
use crate::{
    auth::{AuthPolicy, UnixSeconds},
    link::{Link, LinkRole, Principal},
    websocket::{LinkOptions, MessageBudget},
};

pub(crate) use self::connection::{PendingConnection, PendingConnections, SplitStream};
#[cfg(any(test, fuzzing))]
pub use self::handshake::http_handshake;
pub use self::{
    connection::PendingLimits,
    handshake::{AllowedHosts, HostNames, HostNamesParseError, wants_websocket},
};

/// Configuration of a server's HTTP routes.
#[derive(Clone, Debug)]
pub struct HttpEndpoint {
    /// Authentication for websockets and metrics.
    pub auth: Arc<AuthPolicy>,
    /// Renderer of `/metrics`. Absent: the route does not exist.
    pub metrics: Option<MetricsEndpoint>,
    /// Set while the server drains: it is alive but not ready.
    pub draining: Arc<AtomicBool>,
    /// Host names that requests may use. Unix sockets accept any.
    pub hosts: AllowedHosts,
    /// Limits for connections that are not yet a websocket.
    pub pending: PendingLimits,
}

/// How long a request in progress may still take when its connection has timed out.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

impl HttpEndpoint {
    fn timeouts(&self) -> ConnectionTimeouts {
        ConnectionTimeouts {
            total: self.pending.timeout,
            last_request: LAST_REQUEST_TIMEOUT,
        }
    }
}

/// Serves requests on a new connection until one becomes a link or the client closes. A link takes
/// one of the `slots`; without a free slot the upgrade is refused.
pub(crate) async fn serve_endpoint(
    stream: Box<dyn SplitStream>,
    endpoint: HttpEndpoint,
    peer: String,
    budget: MessageBudget,
    slots: &Arc<Semaphore>,
) -> Option<Link> {
    let pending_upgrade = PendingUpgrade::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        let (mut response, principal) = respond(&endpoint, &request);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            match Arc::clone(slots).try_acquire_owned() {
                Ok(slot) => {
                    pending_upgrade.set(hyper::upgrade::on(&mut request), (principal, slot))
                }
                Err(_) => {
                    response = text_response(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_CONNECTIONS)
                }
            }
        }
        async move { Ok::<_, Infallible>(response) }
    });
    let served = serve_connection(
        stream,
        service,
        &pending_upgrade,
        &peer,
        endpoint.timeouts(),
    );
    let (stream, (principal, slot)) = served.await?;
    let options = LinkOptions {
        budget: Some(budget),
        ..LinkOptions::of(LinkRole::Server)
    };
    Some(Link {
        slot: Some(slot),
        principal,
        ..stream.into_link(LinkRole::Server, peer, options)
    })
}

/// Response text when the connection limit is reached.
const TOO_MANY_CONNECTIONS: &str = "too many connections";

/// Answers every request on a new connection with a refusal.
pub(crate) async fn refuse_connection(
    stream: Box<dyn SplitStream>,
    endpoint: &HttpEndpoint,
    reason: &'static str,
    peer: &str,
) {
    let service = service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(text_response(StatusCode::FORBIDDEN, reason))
    });
    let pending_upgrade = PendingUpgrade::<Infallible>::default();
    serve_connection(stream, service, &pending_upgrade, peer, endpoint.timeouts()).await;
}

/// Answers a request. Returns the principal of an upgrade, if it has one.
fn respond(
    endpoint: &HttpEndpoint,
    request: &Request<Incoming>,
) -> (Response<Full<Bytes>>, Option<Principal>) {
    if let Err(refusal) = check_request(request, &endpoint.hosts) {
        return (refusal, None);
    }
    let headers = request.headers();
    if request.uri().path() != "/" {
        // Metrics reveal the activity of all clients, so they require the same credentials.
        let refuse = || authenticate(endpoint, headers).err();
        let (draining, metrics) = (&endpoint.draining, endpoint.metrics.as_ref());
        return (health_response(request, draining, metrics, refuse), None);
    }
    let upgrade = upgrade_response(request);
    if upgrade.status() != StatusCode::SWITCHING_PROTOCOLS {
        return (upgrade, None);
    }
    match authorize_upgrade(endpoint, headers) {
        Ok(principal) => (upgrade, principal),
        Err(refusal) => (refusal, None),
    }
}

#[expect(
    clippy::result_large_err,
    reason = "the refusal is the response, made once per request"
)]
fn authenticate(
    endpoint: &HttpEndpoint,
    headers: &HeaderMap,
) -> Result<Option<Principal>, Response<Full<Bytes>>> {
    let authorization = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    endpoint
        .auth
        .check(authorization, UnixSeconds::from(SystemTime::now()))
        .map_err(|rejection| text_response(StatusCode::UNAUTHORIZED, rejection.to_string()))
}

/// Authenticates an upgrade request, and refuses it while the server drains.
#[expect(
    clippy::result_large_err,
    reason = "the refusal is the response, made once per request"
)]
fn authorize_upgrade(
    endpoint: &HttpEndpoint,
    headers: &HeaderMap,
) -> Result<Option<Principal>, Response<Full<Bytes>>> {
    let principal = authenticate(endpoint, headers)?;
    if endpoint.draining.load(Ordering::Relaxed) {
        let text = "server is shutting down";
        return Err(text_response(StatusCode::SERVICE_UNAVAILABLE, text));
    }
    Ok(principal)
}

/// Renders the text of `/metrics` in Prometheus format.
#[derive(Clone)]
pub struct MetricsEndpoint(Arc<dyn Fn() -> String + Send + Sync>);

impl MetricsEndpoint {
    /// Calls `render` once per request.
    pub fn new(render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(render))
    }

    /// Returns the response to an authenticated request.
    fn answer(&self) -> Response<Full<Bytes>> {
        let mut response = text_response(StatusCode::OK, (self.0)());
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

impl fmt::Debug for MetricsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsEndpoint").finish_non_exhaustive()
    }
}

/// A service with the health, readiness and metrics routes only, for a separate listener without
/// authentication.
#[derive(Debug)]
pub struct HealthService {
    /// Renderer of `/metrics`.
    pub metrics: MetricsEndpoint,
    /// Set while the server drains.
    pub draining: Arc<AtomicBool>,
}

impl HttpService for HealthService {
    type Upgrade = Infallible;

    fn respond(
        &self,
        request: Request<Incoming>,
        _: HttpPeer,
    ) -> BoxFuture<'_, HttpOutcome<Infallible>> {
        let metrics = Some(&self.metrics);
        let response = health_response(&request, &self.draining, metrics, || None);
        ready(HttpOutcome::Reply(response)).boxed()
    }
}

/// Answers the health, readiness and metrics routes. `refuse` returns the refusal of a request for
/// metrics, if it is not authorized.
fn health_response(
    request: &Request<Incoming>,
    draining: &AtomicBool,
    metrics: Option<&MetricsEndpoint>,
    refuse: impl FnOnce() -> Option<Response<Full<Bytes>>>,
) -> Response<Full<Bytes>> {
    let status = match (request.uri().path(), metrics) {
        ("/healthz" | "/readyz", _) | ("/metrics", Some(_))
            if !matches!(*request.method(), Method::GET | Method::HEAD) =>
        {
            return method_not_allowed("GET, HEAD", "");
        }
        ("/metrics", Some(metrics)) => {
            return refuse().unwrap_or_else(|| metrics.answer());
        }
        ("/readyz", _) if draining.load(Ordering::Relaxed) => StatusCode::SERVICE_UNAVAILABLE,
        ("/healthz" | "/readyz", _) => StatusCode::OK,
        _ => StatusCode::NOT_FOUND,
    };
    text_response(status, "")
}
