//! Requests that somebody else answers: the site says what, this says how.
//! Invariant: a web page is let in nowhere; a request that takes too long is given up.
//! Not here: routes, authentication, bodies and their limits.

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
    connection::{ConnectionTimeouts, IntoSplit, PendingUpgrade, serve_connection},
    handshake::{check_request, text_response, upgrade_response, wants_websocket},
};
use crate::{
    link::Role,
    websocket::socket::{Socket, SocketLimits},
};

/// Answers requests.
pub trait Site: Send + Sync + 'static {
    /// What the site knows of a websocket that it agreed to.
    type Upgrade: Send + 'static;

    /// Answers one request. What a body may hold is the site's business; the time is not, it is
    /// limited by [`SiteOptions::request_timeout`].
    fn answer(
        &self,
        request: Request<Incoming>,
        peer: Peer,
    ) -> BoxFuture<'_, Answer<Self::Upgrade>>;
}

/// What a site answers.
#[derive(Debug)]
pub enum Answer<U> {
    /// This.
    Reply(Response<Full<Bytes>>),
    /// With a websocket. A request that asks for none is refused all the same; a site to which that
    /// matters finds out with [`wants_websocket`].
    Upgrade(U),
}

/// Who asks.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Peer {
    /// Somebody on a network.
    Network(SocketAddr),
    /// An account of this machine.
    Account(u32),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Account(uid) => write!(f, "unix uid {uid}"),
        }
    }
}

/// How a site is served.
#[derive(Clone, Debug)]
pub struct SiteOptions {
    /// Websockets that may be open at once; a further one is refused.
    pub max_connections: usize,
    /// What connections may take that are not websockets.
    pub pending: PendingLimits,
    /// Which names of this listener requests may use.
    pub hosts: AllowedHosts,
    /// How long one request may take, its body and the site's answer included.
    pub request_timeout: Duration,
    /// What holds for its websockets.
    pub socket: SocketLimits,
}

impl Default for SiteOptions {
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

/// Serves requests on a new connection until one becomes a socket, or the client is done.
pub(crate) fn serve<I: IntoSplit, S: Site>(
    stream: I,
    site: &S,
    peer: Peer,
    options: SiteOptions,
    slots: Arc<Semaphore>,
) -> impl Future<Output = Option<(S::Upgrade, Socket)>> + Send {
    // In a box: it holds hyper's state, which the task keeps room for long after the upgrade.
    Box::pin(async move {
        let pending_upgrade = PendingUpgrade::default();
        let service = service_fn(|request: Request<Incoming>| {
            let (hosts, slots) = (&options.hosts, &slots);
            let response = answer(site, request, peer, hosts, slots, &pending_upgrade);
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
        let (already_read, (input, output)) =
            (stream.already_read, stream.stream.into_boxed_split());
        let socket = Socket::boxed(input, output, &already_read, Role::Server, options.socket);
        socket.hold_slot(slot);
        Some((context, socket))
    })
}

async fn answer<S: Site>(
    site: &S,
    mut request: Request<Incoming>,
    peer: Peer,
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
    match site.answer(request, peer).await {
        Answer::Reply(response) => response,
        Answer::Upgrade(_) if upgrade_reply.status() != StatusCode::SWITCHING_PROTOCOLS => {
            upgrade_reply
        }
        Answer::Upgrade(context) => match Arc::clone(slots).try_acquire_owned() {
            Ok(slot) => {
                pending_upgrade.set_upgrade(upgrade, (context, slot));
                upgrade_reply
            }
            Err(_) => text_response(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_CONNECTIONS),
        },
    }
}
