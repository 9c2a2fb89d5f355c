//! One HTTP connection, which serves requests until one of them becomes a websocket, and the limits
//! for connections that are not yet a websocket, in total and per client address.
//!
//! Invariant: a full table evicts the oldest connection of the busiest address, so a new client is
//! always served. Upgraded connections are not counted.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    net::IpAddr,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    net::{TcpStream, UnixStream},
    sync::Notify,
    time::timeout,
};
use tokio_rustls::server::TlsStream;

use super::service::HttpPeer;
use crate::websocket::UpgradedStream;

/// How long a client may take to send a request head, including the next one on the same
/// connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of a request head: a token of 16 KiB and some headers fit. The default of hyper
/// would buffer 400 KiB for each client that never completes a head.
const MAX_HEAD_BYTES: usize = 32 << 10;

/// A stream that can be split after hyper has served requests on it.
pub(crate) trait SplitStream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Splits the stream. `already_read` holds the bytes that followed the request.
    fn into_upgraded(self: Box<Self>, already_read: Bytes) -> UpgradedStream;
}

impl SplitStream for TcpStream {
    fn into_upgraded(self: Box<Self>, already_read: Bytes) -> UpgradedStream {
        UpgradedStream::new(self.into_split(), already_read)
    }
}

impl SplitStream for UnixStream {
    fn into_upgraded(self: Box<Self>, already_read: Bytes) -> UpgradedStream {
        UpgradedStream::new(self.into_split(), already_read)
    }
}

impl SplitStream for TlsStream<TcpStream> {
    fn into_upgraded(self: Box<Self>, already_read: Bytes) -> UpgradedStream {
        UpgradedStream::new(tokio::io::split(*self), already_read)
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
    /// Records the upgrade of the request that was answered with 101. It is the last one of its
    /// connection.
    pub(super) fn set(&self, upgrade: OnUpgrade, context: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((upgrade, context));
    }

    fn take(&self) -> Option<(OnUpgrade, T)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
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
pub(super) async fn serve_connection<V, T>(
    stream: Box<dyn SplitStream>,
    service: V,
    pending_upgrade: &PendingUpgrade<T>,
    peer: &str,
    timeouts: ConnectionTimeouts,
) -> Option<(UpgradedStream, T)>
where
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
    let parts = upgrade.await.ok()?;
    let parts = parts.downcast::<TokioIo<Box<dyn SplitStream>>>().ok()?;
    let stream = parts.io.into_inner();
    Some((stream.into_upgraded(parts.read_buf), what))
}

/// Limits for connections before they become a websocket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PendingLimits {
    /// Maximum number of connections. One more evicts the oldest connection of the busiest address.
    pub max_connections: usize,
    /// Maximum number of connections per address: an IPv4 address, an IPv6 /64 network, or a local
    /// account. One more evicts its oldest connection.
    pub max_per_address: usize,
    /// Maximum duration of a connection. A request in progress at that time is the last.
    pub timeout: Duration,
}

impl Default for PendingLimits {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_per_address: 256,
            timeout: Duration::from_secs(60),
        }
    }
}

/// The pending connections of one listener.
#[derive(Clone, Debug)]
pub(crate) struct PendingConnections(Arc<Mutex<PendingTable>>);

#[derive(Debug)]
struct PendingTable {
    limits: PendingLimits,
    next_number: u64,
    /// Ordered by age.
    connections: BTreeMap<u64, (ClientAddress, Arc<Notify>)>,
    by_address: HashMap<ClientAddress, usize>,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum ClientAddress {
    Network(IpAddr),
    Account(u32),
}

impl From<HttpPeer> for ClientAddress {
    fn from(peer: HttpPeer) -> Self {
        match peer {
            HttpPeer::Network(address) => Self::Network(match address.ip().to_canonical() {
                IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
                address @ IpAddr::V4(_) => address,
            }),
            HttpPeer::Account(uid) => Self::Account(uid),
        }
    }
}

impl PendingConnections {
    pub(crate) fn new(limits: PendingLimits) -> Self {
        Self(Arc::new(Mutex::new(PendingTable {
            limits,
            next_number: 0,
            connections: BTreeMap::new(),
            by_address: HashMap::new(),
        })))
    }

    /// Registers a new connection, and evicts an older one if a limit is exceeded.
    pub(crate) fn register(&self, peer: HttpPeer) -> PendingConnection {
        let (address, evicted) = (ClientAddress::from(peer), Arc::new(Notify::new()));
        let mut table = self.lock();
        let own = table.by_address.get(&address).copied().unwrap_or(0);
        if own >= table.limits.max_per_address {
            table.evict_oldest_of(address);
        } else if table.connections.len() >= table.limits.max_connections {
            let busiest = table.by_address.iter().max_by_key(|(_, count)| **count);
            if let Some((busiest, _)) = busiest {
                let busiest = *busiest;
                table.evict_oldest_of(busiest);
            }
        }
        let number = table.next_number;
        table.next_number += 1;
        table
            .connections
            .insert(number, (address, Arc::clone(&evicted)));
        *table.by_address.entry(address).or_default() += 1;
        drop(table);
        PendingConnection {
            number,
            evicted,
            table: self.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PendingTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingTable {
    fn evict_oldest_of(&mut self, address: ClientAddress) {
        let mut of_address = self
            .connections
            .iter()
            .filter(|(_, (of, _))| *of == address);
        let Some((number, (_, evicted))) = of_address.next() else {
            return;
        };
        evicted.notify_one();
        let number = *number;
        self.remove(number);
    }

    fn remove(&mut self, number: u64) {
        let Some((address, _)) = self.connections.remove(&number) else {
            return;
        };
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

/// A registered connection. Dropping it frees its place.
#[derive(Debug)]
pub(crate) struct PendingConnection {
    number: u64,
    evicted: Arc<Notify>,
    table: PendingConnections,
}

impl PendingConnection {
    /// Runs `served` until it completes or the connection is evicted.
    pub(crate) async fn serve<T>(self, served: impl Future<Output = Option<T>>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.evicted.notified() => None,
            served = served => served,
        }
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.table.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn pending(max_connections: usize, max_per_address: usize) -> PendingConnections {
        PendingConnections::new(PendingLimits {
            max_connections,
            max_per_address,
            ..PendingLimits::default()
        })
    }

    fn peer(text: &str) -> HttpPeer {
        HttpPeer::Network(text.parse::<SocketAddr>().unwrap())
    }

    async fn is_evicted(connection: PendingConnection) -> bool {
        connection.serve(async { Some(()) }).await.is_none()
    }

    #[tokio::test]
    async fn address_over_its_limit_loses_its_oldest_connection() {
        let table = pending(10, 2);
        let other = table.register(peer("192.0.2.9:1"));
        let [first, second, third] = ["192.0.2.1:1", "192.0.2.1:2", "[::ffff:192.0.2.1]:3"]
            .map(|text| table.register(peer(text)));
        assert!(is_evicted(first).await);
        assert!(!is_evicted(second).await);
        assert!(!is_evicted(third).await);
        assert!(!is_evicted(other).await);
        assert!(table.lock().connections.is_empty() && table.lock().by_address.is_empty());
    }

    #[tokio::test]
    async fn full_table_evicts_from_the_busiest_address() {
        let table = pending(3, 3);
        let few = table.register(peer("192.0.2.1:1"));
        let [first, second] =
            ["[2001:db8::1]:1", "[2001:db8::2]:1"].map(|text| table.register(peer(text)));
        let new = table.register(HttpPeer::Account(7));
        assert!(is_evicted(first).await);
        for connection in [few, second, new] {
            assert!(!is_evicted(connection).await);
        }
    }
}
