//! Serves HTTP requests through an application-defined service.
//! Invariant: requests with an `Origin` are refused, and slow requests time out. Elsewhere: routes,
//! authentication, bodies and their limits.

#[cfg(test)]
mod tests;

use std::{convert::Infallible, fmt, future::Future, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    AllowedHosts, PendingLimits, TOO_MANY_CONNECTIONS,
    connection::{ConnectionTimeouts, PendingUpgrade, SplitStream, serve_connection},
    handshake::{check_request, text_response, upgrade_response, wants_websocket},
};
use crate::{
    link::LinkRole,
    websocket::socket::{BinarySocket, SocketLimits},
};

/// Handles requests.
pub trait HttpService: Send + Sync + 'static {
    /// Context of an accepted websocket.
    type Upgrade: Send + 'static;

    /// Handles one request. The service limits the body; [`HttpServiceOptions::request_timeout`]
    /// limits the time.
    fn respond(
        &self,
        request: Request<Incoming>,
        peer: HttpPeer,
    ) -> BoxFuture<'_, HttpOutcome<Self::Upgrade>>;
}

/// Outcome of a request.
#[derive(Debug)]
pub enum HttpOutcome<U> {
    /// Sends a response.
    Reply(Response<Full<Bytes>>),
    /// Accepts a websocket. A request that is not an upgrade is refused regardless; use
    /// [`wants_websocket`] to find out earlier.
    Upgrade(U),
}

/// Origin of a request.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum HttpPeer {
    /// A network address.
    Network(SocketAddr),
    /// A local account.
    Account(u32),
}

impl fmt::Display for HttpPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Account(uid) => write!(f, "unix uid {uid}"),
        }
    }
}

/// Options of an HTTP service.
#[derive(Clone, Debug)]
pub struct HttpServiceOptions {
    /// Maximum number of open websockets.
    pub max_connections: usize,
    /// Limits for connections that are not yet a websocket.
    pub pending: PendingLimits,
    /// Host names that requests may use.
    pub hosts: AllowedHosts,
    /// Timeout of one request, including its body and the response.
    pub request_timeout: Duration,
    /// Limits of its websockets.
    pub socket: SocketLimits,
}

impl Default for HttpServiceOptions {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            pending: PendingLimits::default(),
            hosts: AllowedHosts::new([]),
            request_timeout: Duration::from_secs(30),
            socket: SocketLimits::default(),
        }
    }
}

/// Serves requests on a new connection until one becomes a socket or the client closes.
pub(crate) fn serve<S: HttpService>(
    stream: Box<dyn SplitStream>,
    handler: &S,
    peer: HttpPeer,
    options: HttpServiceOptions,
    slots: Arc<Semaphore>,
) -> impl Future<Output = Option<(S::Upgrade, BinarySocket)>> + Send {
    // Boxed: the task would otherwise keep room for hyper's state after the upgrade.
    Box::pin(async move {
        let pending_upgrade = PendingUpgrade::default();
        let service = service_fn(|request: Request<Incoming>| {
            let (hosts, slots) = (&options.hosts, &slots);
            let response = answer(handler, request, peer, hosts, slots, &pending_upgrade);
            let request_timeout = options.request_timeout;
            async move {
                let in_time = timeout(request_timeout, response).await;
                let late = |_| text_response(StatusCode::REQUEST_TIMEOUT, "");
                Ok::<_, Infallible>(in_time.unwrap_or_else(late))
            }
        });
        let name = peer.to_string();
        let timeouts = ConnectionTimeouts {
            total: options.pending.timeout,
            last_request: options.request_timeout,
        };
        let served = serve_connection(stream, service, &pending_upgrade, &name, timeouts);
        let (stream, (context, slot)) = served.await?;
        let socket = stream.into_socket(LinkRole::Server, options.socket);
        socket.hold_slot(slot);
        Some((context, socket))
    })
}

async fn answer<S: HttpService>(
    handler: &S,
    mut request: Request<Incoming>,
    peer: HttpPeer,
    hosts: &AllowedHosts,
    slots: &Arc<Semaphore>,
    pending_upgrade: &PendingUpgrade<(S::Upgrade, OwnedSemaphorePermit)>,
) -> Response<Full<Bytes>> {
    if let Err(refusal) = check_request(&request, hosts) {
        return refusal;
    }
    let upgrade_reply = if wants_websocket(request.headers()) {
        upgrade_response(&request)
    } else {
        text_response(StatusCode::UPGRADE_REQUIRED, "expected a websocket upgrade")
    };
    let upgrade = hyper::upgrade::on(&mut request);
    match handler.respond(request, peer).await {
        HttpOutcome::Reply(response) => response,
        HttpOutcome::Upgrade(_) if upgrade_reply.status() != StatusCode::SWITCHING_PROTOCOLS => {
            upgrade_reply
        }
        HttpOutcome::Upgrade(context) => match Arc::clone(slots).try_acquire_owned() {
            Ok(slot) => {
                pending_upgrade.set(upgrade, (context, slot));
                upgrade_reply
            }
            Err(_) => text_response(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_CONNECTIONS),
        },
    }
}
