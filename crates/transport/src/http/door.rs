//! The HTTP face of a server's listener: health, readiness, numbers, and the upgrade to a link.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Bytes, body::Incoming, service::service_fn};

use super::{
    connection::{Splits, Upgrades, serve_connection},
    exposition::{Exposition, only_read, readiness, reads},
    upgrade::{plain, switch, wants_websocket},
};
use crate::{
    auth::{Auth, UnixSeconds},
    link::{Link, Principal, Role},
    websocket,
};

/// What requests are judged by.
#[derive(Clone, Debug)]
pub struct Door {
    /// Who may open a websocket, and see numbers.
    pub auth: Arc<Auth>,
    /// What `/metrics` answers. Absent: there is no such route.
    pub metrics: Option<Exposition>,
    /// Set while the server drains: it is alive, but not ready.
    pub draining: Arc<AtomicBool>,
}

/// Serves requests on a new connection until one becomes a link, or the client is done.
pub(crate) async fn serve<S: Splits>(stream: S, door: Door, peer: String) -> Option<Link> {
    let upgrades = Upgrades::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        let (response, principal) = answer(&door, &request);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            upgrades.expect(&mut request, principal);
        }
        async move { Ok::<_, Infallible>(response) }
    });
    let (stream, principal) = serve_connection(stream, service, &upgrades, &peer).await?;
    let (already_read, (input, output)) = (stream.already_read, stream.stream.halves());
    let link = websocket::boxed_link(input, output, &already_read, Role::Server, peer);
    Some(Link { principal, ..link })
}

/// Answers every request on a new connection with the reason why none is served.
pub(crate) async fn refuse<S: Splits>(stream: S, reason: &'static str, peer: &str) {
    let service = service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(plain(StatusCode::FORBIDDEN, reason))
    });
    serve_connection(stream, service, &Upgrades::<Infallible>::default(), peer).await;
}

/// Answers a request. Returns who upgrades, if somebody does who has a name.
fn answer(door: &Door, request: &Request<Incoming>) -> (Response<Full<Bytes>>, Option<Principal>) {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) {
        return (plain(StatusCode::FORBIDDEN, ""), None);
    }
    let response = match request.uri().path() {
        "/" => {
            return match admit(door, headers) {
                Ok(principal) => (switch(headers), principal),
                Err(refusal) => (refusal, None),
            };
        }
        "/metrics" if door.metrics.is_none() => plain(StatusCode::NOT_FOUND, ""),
        "/healthz" | "/readyz" | "/metrics" if !reads(request.method()) => only_read(),
        "/healthz" => plain(StatusCode::OK, ""),
        "/readyz" => readiness(&door.draining),
        "/metrics" => metrics(door, headers),
        _ => plain(StatusCode::NOT_FOUND, ""),
    };
    (response, None)
}

/// The numbers tell what others do here, so they are for those who could do it, too.
fn metrics(door: &Door, headers: &HeaderMap) -> Response<Full<Bytes>> {
    match (check(door, headers), &door.metrics) {
        (Err(refusal), _) => refusal,
        (Ok(_), Some(metrics)) => metrics.answer(),
        (Ok(_), None) => plain(StatusCode::NOT_FOUND, ""),
    }
}

#[expect(
    clippy::result_large_err,
    reason = "the refusal is the answer, made once a request"
)]
fn check(door: &Door, headers: &HeaderMap) -> Result<Option<Principal>, Response<Full<Bytes>>> {
    let authorization = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    door.auth
        .check(authorization, UnixSeconds::from(SystemTime::now()))
        .map_err(|rejection| plain(StatusCode::UNAUTHORIZED, rejection.to_string()))
}

/// Tells who may open a websocket.
#[expect(
    clippy::result_large_err,
    reason = "the refusal is the answer, made once a request"
)]
fn admit(door: &Door, headers: &HeaderMap) -> Result<Option<Principal>, Response<Full<Bytes>>> {
    let refuse = |status, text: &'static str| Err(plain(status, text));
    if !wants_websocket(headers) {
        return refuse(StatusCode::BAD_REQUEST, "expected a websocket upgrade");
    }
    let principal = check(door, headers)?;
    if door.draining.load(Ordering::Relaxed) {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "server is shutting down");
    }
    Ok(principal)
}
