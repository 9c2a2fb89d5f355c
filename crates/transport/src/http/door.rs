//! The HTTP face of a server's listener: health, readiness, and the upgrade to a link.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Bytes, body::Incoming, service::service_fn};

use super::{
    connection::{Splits, Upgrades, serve_connection},
    upgrade::{plain, switch, wants_websocket},
};
use crate::{
    auth::{Auth, UnixSeconds},
    link::{Link, Role},
    websocket,
};

/// What requests are judged by.
#[derive(Clone, Debug)]
pub struct Door {
    /// Who may open a websocket.
    pub auth: Arc<Auth>,
    /// Set while the server drains: it is alive, but not ready.
    pub draining: Arc<AtomicBool>,
}

/// Serves requests on a new connection until one becomes a link, or the client is done.
pub(crate) async fn serve<S: Splits>(stream: S, door: Door, peer: String) -> Option<Link> {
    let upgrades = Upgrades::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        let response = answer(&door, &request);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            upgrades.expect(&mut request, ());
        }
        async move { Ok::<_, Infallible>(response) }
    });
    let (stream, ()) = serve_connection(stream, service, &upgrades, &peer).await?;
    let (already_read, (input, output)) = (stream.already_read, stream.stream.halves());
    Some(websocket::boxed_link(
        input,
        output,
        &already_read,
        Role::Server,
        peer,
    ))
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
    if !wants_websocket(headers) {
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
    switch(headers)
}
