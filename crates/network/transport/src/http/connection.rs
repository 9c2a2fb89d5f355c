//! One HTTP connection: serves requests until one of them becomes a websocket.

use std::{
    convert::Infallible,
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::Service,
    upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

/// How long a client may take to send a request head, including the next one on the same
/// connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of a request head: a token of 16 KiB and some headers fit. The default of hyper
/// would buffer 400 KiB for each client that never completes a head.
const MAX_HEAD_BYTES: usize = 32 << 10;

/// Read half and write half of a stream.
pub(crate) type BoxedSplit = (
    Box<dyn AsyncRead + Send + Unpin>,
    Box<dyn AsyncWrite + Send + Unpin>,
);

/// A stream that can be split after hyper has served requests on it.
pub(crate) trait IntoSplit: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    fn into_boxed_split(self) -> BoxedSplit;
}

impl IntoSplit for tokio::net::TcpStream {
    fn into_boxed_split(self) -> BoxedSplit {
        let (read, write) = self.into_split();
        (Box::new(read), Box::new(write))
    }
}

impl IntoSplit for tokio::net::UnixStream {
    fn into_boxed_split(self) -> BoxedSplit {
        let (read, write) = self.into_split();
        (Box::new(read), Box::new(write))
    }
}

impl IntoSplit for tokio_rustls::server::TlsStream<tokio::net::TcpStream> {
    fn into_boxed_split(self) -> BoxedSplit {
        let (read, write) = tokio::io::split(self);
        (Box::new(read), Box::new(write))
    }
}

/// The upgrade of a connection, with the context of its request.
#[derive(Debug)]
pub(super) struct PendingUpgrade<T>(Mutex<Option<(OnUpgrade, T)>>);

impl<T> Default for PendingUpgrade<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> PendingUpgrade<T> {
    /// Records the request that was answered with 101. It is the last one of its connection.
    pub(super) fn set(&self, request: &mut Request<Incoming>, what: T) {
        self.set_upgrade(hyper::upgrade::on(request), what);
    }

    /// Records an upgrade that was already extracted from its request.
    pub(super) fn set_upgrade(&self, upgrade: OnUpgrade, what: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((upgrade, what));
    }

    fn take(&self) -> Option<(OnUpgrade, T)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A connection that hyper has released after an upgrade.
pub(super) struct UpgradedConnection<S> {
    pub(super) stream: S,
    /// Bytes that followed the request.
    pub(super) already_read: Bytes,
}

/// Timeouts of a connection that serves requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionTimeouts {
    /// Total duration, independent of the number of requests.
    pub(super) total: Duration,
    /// How long a request in progress may still take after that.
    pub(super) last_request: Duration,
}

/// Serves requests until one becomes a websocket, the client closes, or the connection times out.
pub(super) async fn serve_connection<S, V, T>(
    stream: S,
    service: V,
    pending_upgrade: &PendingUpgrade<T>,
    peer: &str,
    timeouts: ConnectionTimeouts,
) -> Option<(UpgradedConnection<S>, T)>
where
    S: IntoSplit,
    V: Service<Request<Incoming>, Response = Response<Full<Bytes>>, Error = Infallible>,
    V::Future: Send,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let served = match timeout(timeouts.total, connection.as_mut()).await {
        Ok(served) => served,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            timeout(timeouts.last_request, connection).await.ok()?
        }
    };
    if let Err(error) = served {
        tracing::debug!(peer, %error, "http connection failed");
        return None;
    }
    let (upgrade, what) = pending_upgrade.take()?;
    let parts = upgrade.await.ok()?.downcast::<TokioIo<S>>().ok()?;
    let upgraded = UpgradedConnection {
        stream: parts.io.into_inner(),
        already_read: parts.read_buf,
    };
    Some((upgraded, what))
}
