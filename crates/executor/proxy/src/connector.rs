//! Connector: resolves names and opens connections on behalf of the proxy.
//!
//! Not here: which names and addresses are allowed (`host_policy`).

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use tokio::{net::TcpStream, sync::Semaphore};

use crate::limits;

/// Resolves names and connects to addresses.
pub trait Connector: fmt::Debug + Send + Sync {
    /// Returns the addresses of `name`, in order of preference.
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;

    /// Connects to exactly `address`.
    fn connect(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>>;
}

/// Uses the network and the resolver of this host.
#[derive(Debug)]
pub struct SystemConnector {
    lookup_permits: Arc<Semaphore>,
}

impl Default for SystemConnector {
    fn default() -> Self {
        Self {
            lookup_permits: Arc::new(Semaphore::new(limits::MAX_LOOKUPS)),
        }
    }
}

impl Connector for SystemConnector {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let (name, lookup_permits) = (name.to_owned(), self.lookup_permits.clone());
        Box::pin(async move {
            let permit = lookup_permits
                .acquire_owned()
                .await
                .map_err(io::Error::other)?;
            // The thread continues when the caller is gone, and keeps its permit.
            let lookup = tokio::task::spawn_blocking(move || {
                let addresses = (name.as_str(), 0).to_socket_addrs();
                drop(permit);
                addresses.map(|list| list.map(|address| address.ip()).collect())
            });
            lookup.await.map_err(io::Error::other)?
        })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn system_connector_resolves_and_connects_to_localhost() {
        let connector = SystemConnector::default();
        let addresses = connector.resolve("localhost").await.unwrap();
        assert!(!addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback));
        let server = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap();
        let address = server.local_addr().unwrap();
        let (accepted, connected) = tokio::join!(server.accept(), connector.connect(address));
        assert_eq!(
            accepted.unwrap().1,
            connected.unwrap().local_addr().unwrap()
        );
    }
}
