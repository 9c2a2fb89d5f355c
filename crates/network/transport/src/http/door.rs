//! The HTTP face of a server's listener: health, readiness, numbers, and the upgrade to a link.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Bytes, body::Incoming, service::service_fn};
use tokio::sync::Semaphore;

use super::{
    AllowedHosts, PendingLimits,
    connection::{ConnectionTimeouts, Splits, Upgrades, serve_connection},
    exposition::{Exposition, only_read, readiness, reads},
    handshake::{check_request, plain, switch},
};
use crate::{
    auth::{Auth, UnixSeconds},
    link::{Link, Principal, Role},
    websocket::{self, LinkOptions, MessageBudget},
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
    /// Which names of this listener requests may use. Unix sockets have none, and take any.
    pub hosts: AllowedHosts,
    /// What connections may take before they have become a websocket.
    pub pending: PendingLimits,
}

/// How long a request that is being answered when its connection's time is up may still take.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

impl Door {
    fn timeouts(&self) -> ConnectionTimeouts {
        ConnectionTimeouts {
            total: self.pending.timeout,
            last_request: LAST_REQUEST_TIMEOUT,
        }
    }
}

/// Serves requests on a new connection until one becomes a link, or the client is done. A link takes one
/// of the `slots`; without a free one its request is refused.
pub(crate) async fn serve<S: Splits>(
    stream: S,
    door: Door,
    peer: String,
    budget: MessageBudget,
    slots: &Arc<Semaphore>,
) -> Option<Link> {
    let upgrades = Upgrades::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        let (mut response, principal) = answer(&door, &request);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            match Arc::clone(slots).try_acquire_owned() {
                Ok(slot) => upgrades.expect(&mut request, (principal, slot)),
                Err(_) => response = plain(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY),
            }
        }
        async move { Ok::<_, Infallible>(response) }
    });
    let served = serve_connection(stream, service, &upgrades, &peer, door.timeouts());
    let (stream, (principal, slot)) = served.await?;
    let (already_read, (input, output)) = (stream.already_read, stream.stream.halves());
    let link = websocket::boxed_link_with(
        input,
        output,
        &already_read,
        Role::Server,
        peer,
        LinkOptions {
            budget: Some(budget),
            ..LinkOptions::of(Role::Server)
        },
    );
    Some(Link {
        slot: Some(slot),
        principal,
        ..link
    })
}

/// Why a websocket is refused that would be one too many.
pub(super) const TOO_MANY: &str = "too many connections";

/// Answers every request on a new connection with the reason why none is served.
pub(crate) async fn refuse<S: Splits>(stream: S, door: &Door, reason: &'static str, peer: &str) {
    let service = service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(plain(StatusCode::FORBIDDEN, reason))
    });
    let upgrades = Upgrades::<Infallible>::default();
    serve_connection(stream, service, &upgrades, peer, door.timeouts()).await;
}

/// Answers a request. Returns who upgrades, if somebody does who has a name.
fn answer(door: &Door, request: &Request<Incoming>) -> (Response<Full<Bytes>>, Option<Principal>) {
    if let Err(refusal) = check_request(request, &door.hosts) {
        return (refusal, None);
    }
    let headers = request.headers();
    let response = match request.uri().path() {
        "/" => {
            let agreed = switch(request);
            if agreed.status() != StatusCode::SWITCHING_PROTOCOLS {
                return (agreed, None);
            }
            return match admit(door, headers) {
                Ok(principal) => (agreed, principal),
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
    let principal = check(door, headers)?;
    if door.draining.load(Ordering::Relaxed) {
        let text = "server is shutting down";
        return Err(plain(StatusCode::SERVICE_UNAVAILABLE, text));
    }
    Ok(principal)
}
