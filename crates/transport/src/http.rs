//! The HTTP face of a listener: health, readiness, and the upgrade to a websocket.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::Bytes, body::Incoming, server::conn::http1, service::service_fn, upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};

use crate::{
    auth::{Auth, UnixSeconds},
    link::{Link, Role},
    websocket::{self, accept_key},
};

/// How long a client may take to send its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// What requests are judged by.
#[derive(Clone, Debug)]
pub struct Door {
    /// Who may open a websocket.
    pub auth: Arc<Auth>,
    /// Set while the server drains: it is alive, but not ready.
    pub draining: Arc<AtomicBool>,
}

/// A stream that can be taken apart again after hyper has served a request on it.
pub(crate) trait Splits: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    fn into_link(self, already_read: &[u8], peer: String) -> Link;
}

impl Splits for tokio::net::TcpStream {
    fn into_link(self, already_read: &[u8], peer: String) -> Link {
        let (read, write) = self.into_split();
        websocket::link(read, write, already_read, Role::Server, peer)
    }
}

impl Splits for tokio::net::UnixStream {
    fn into_link(self, already_read: &[u8], peer: String) -> Link {
        let (read, write) = self.into_split();
        websocket::link(read, write, already_read, Role::Server, peer)
    }
}

impl Splits for tokio_rustls::server::TlsStream<tokio::net::TcpStream> {
    fn into_link(self, already_read: &[u8], peer: String) -> Link {
        let (read, write) = tokio::io::split(self);
        websocket::link(read, write, already_read, Role::Server, peer)
    }
}

/// Serves requests on a new connection until one becomes a websocket, or the client is done.
pub(crate) async fn serve<S: Splits>(stream: S, door: Door, peer: String) -> Option<Link> {
    let (upgraded, upgrade) = oneshot::channel::<OnUpgrade>();
    let upgraded = std::sync::Mutex::new(Some(upgraded));
    let service = service_fn(|mut request: Request<Incoming>| {
        let response = answer(&door, &request);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(upgraded) = upgraded.lock().ok().and_then(|mut once| once.take())
        {
            // The receiver waits below for as long as the connection is served.
            drop(upgraded.send(hyper::upgrade::on(&mut request)));
        }
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(peer, %error, "http connection failed");
        return None;
    }
    // A client that never upgraded leaves the sender unused, which ends the wait below.
    drop(upgraded);
    let stream = upgrade.await.ok()?.await.ok()?;
    let parts = stream.downcast::<TokioIo<S>>().ok()?;
    Some(parts.io.into_inner().into_link(&parts.read_buf, peer))
}

fn answer(door: &Door, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) {
        return plain(StatusCode::FORBIDDEN, "");
    }
    match request.uri().path() {
        "/" => upgrade(door, headers),
        "/healthz" | "/readyz" if !matches!(*request.method(), Method::GET | Method::HEAD) => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "");
            response
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        "/healthz" => plain(StatusCode::OK, ""),
        "/readyz" if door.draining.load(Ordering::Relaxed) => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "")
        }
        "/readyz" => plain(StatusCode::OK, ""),
        _ => plain(StatusCode::NOT_FOUND, ""),
    }
}

fn upgrade(door: &Door, headers: &HeaderMap) -> Response<Full<Bytes>> {
    let has = |name, token: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .any(|value| {
                value
                    .split(',')
                    .any(|part| part.trim().eq_ignore_ascii_case(token))
            })
    };
    if !has(header::CONNECTION, "upgrade") || !has(header::UPGRADE, "websocket") {
        return plain(StatusCode::BAD_REQUEST, "expected a websocket upgrade");
    }
    let authorization = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    if let Err(rejection) = door
        .auth
        .check(authorization, UnixSeconds::from(SystemTime::now()))
    {
        return plain(StatusCode::UNAUTHORIZED, rejection.to_string());
    }
    if door.draining.load(Ordering::Relaxed) {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "server is shutting down");
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let (Some(key), true) = (key, has(header::SEC_WEBSOCKET_VERSION, "13")) else {
        return plain(
            StatusCode::BAD_REQUEST,
            "expected websocket version 13 with a key",
        );
    };
    let mut response = plain(StatusCode::SWITCHING_PROTOCOLS, "");
    let reply = response.headers_mut();
    reply.remove(header::CONTENT_TYPE);
    reply.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    reply.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&accept_key(key.as_bytes())) {
        reply.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let body = body.into();
    let empty = body.is_empty();
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    if !empty {
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}
