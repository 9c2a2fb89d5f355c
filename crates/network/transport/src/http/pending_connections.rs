//! Limits for connections that are not yet a websocket, in total and per client address.
//!
//! Invariant: a full table evicts the oldest connection of the busiest address, so a new client is
//! always served. Upgraded connections are not counted.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use super::service::HttpPeer;

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
