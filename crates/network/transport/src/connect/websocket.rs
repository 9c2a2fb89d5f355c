//! Connects links and sockets over a websocket.

use std::{io, net::SocketAddr, path::Path, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{self, pki_types::ServerName},
};

use super::{
    BearerToken, CertificateFault, ConnectError, HttpProxy, ListenerTrust, RequestHeaders,
    ServerAddress, ServerHost, WebSocketScheme, upgrade_request::UpgradeRequest,
};
use crate::{
    link::{Link, LinkRole},
    tls::TrustStore,
    websocket::{
        self, LinkOptions,
        socket::{BinarySocket, SocketLimits},
    },
};

/// Default timeout for connecting, from name resolution to the last byte of the handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A server reached over a websocket, and how to reach it.
#[derive(Clone, Debug)]
pub struct WebSocketConnector {
    /// Address of the server.
    pub address: ServerAddress,
    /// Headers of the upgrade request.
    pub headers: RequestHeaders,
    /// Bearer token of the client.
    pub bearer_token: Option<BearerToken>,
    /// Certificates that the client trusts.
    pub trust: TrustStore,
    /// Which listeners the client trusts on a unix socket.
    pub listener: ListenerTrust,
    /// Timeout for connecting.
    pub connect_timeout: Duration,
}

impl WebSocketConnector {
    /// Describes a server that requires no credentials.
    pub fn new(address: ServerAddress) -> Self {
        Self {
            address,
            headers: RequestHeaders::default(),
            bearer_token: None,
            trust: TrustStore::default(),
            listener: ListenerTrust::default(),
            connect_timeout: CONNECT_TIMEOUT,
        }
    }

    /// Checks the configuration without connecting.
    ///
    /// # Errors
    /// Fails if a credential would be sent unencrypted over a network.
    pub fn check(&self) -> Result<(), ConnectError> {
        if self.has_secret() && !self.address.is_private() {
            return Err(ConnectError::TokenOverPlaintext(self.address.to_string()));
        }
        Ok(())
    }

    /// Opens a link. Dropping the future closes the connection.
    ///
    /// # Errors
    /// Fails if the websocket is not open within the timeout.
    pub async fn open(&self) -> Result<Link, ConnectError> {
        self.open_with(LinkOptions::of(LinkRole::Client), None)
            .await
    }

    /// Opens a link with options, optionally through a proxy. Dropping the future closes the
    /// connection.
    ///
    /// # Errors
    /// Fails if the websocket is not open within the timeout.
    pub async fn open_with(
        &self,
        options: LinkOptions,
        proxy: Option<&HttpProxy>,
    ) -> Result<Link, ConnectError> {
        let upgraded = self.connect_and_upgrade(proxy).await?;
        Ok(websocket::boxed_link_with(
            upgraded.input,
            upgraded.output,
            &upgraded.rest,
            LinkRole::Client,
            self.peer(),
            options,
        ))
    }

    /// Opens a socket for binary messages. Dropping the future closes the connection.
    ///
    /// # Errors
    /// Fails if the websocket is not open within the timeout.
    pub async fn open_socket(&self) -> Result<BinarySocket, ConnectError> {
        self.connect_and_upgrade(None)
            .await
            .map(UpgradedStream::into_socket)
    }

    /// Opens a socket for binary messages through a proxy.
    ///
    /// # Errors
    /// Fails if the websocket is not open within the timeout.
    pub async fn open_socket_through(
        &self,
        proxy: &HttpProxy,
    ) -> Result<BinarySocket, ConnectError> {
        self.connect_and_upgrade(Some(proxy))
            .await
            .map(UpgradedStream::into_socket)
    }

    async fn connect_and_upgrade(
        &self,
        proxy: Option<&HttpProxy>,
    ) -> Result<UpgradedStream, ConnectError> {
        self.check()?;
        let within = self.connect_timeout;
        let open = async {
            match &self.address {
                ServerAddress::Network(host) => self.connect_network(host, proxy).await,
                ServerAddress::Unix(path) => self.connect_unix(path).await,
            }
        };
        timeout(within, open).await.unwrap_or_else(|_| {
            Err(ConnectError::Timeout {
                peer: self.peer(),
                within,
            })
        })
    }

    async fn connect_network(
        &self,
        host: &ServerHost,
        proxy: Option<&HttpProxy>,
    ) -> Result<UpgradedStream, ConnectError> {
        let mut stream = match proxy {
            Some(proxy) => proxy.dial(&host.authority()).await?,
            None => self.dial(host).await?,
        };
        let authority = host.header();
        let request = self.request(&authority, &host.target);
        if host.scheme == WebSocketScheme::Ws {
            let rest = request.upgrade(&mut stream).await?;
            let (read, write) = stream.into_split();
            return Ok(UpgradedStream::new(read, write, rest));
        }
        let mut stream = self.tls_connect(host, stream).await?;
        let rest = request.upgrade(&mut stream).await?;
        let (read, write) = tokio::io::split(stream);
        Ok(UpgradedStream::new(read, write, rest))
    }

    async fn connect_unix(&self, path: &Path) -> Result<UpgradedStream, ConnectError> {
        let connected = UnixStream::connect(path).await;
        let mut stream = connected.map_err(|source| {
            if source.kind() != io::ErrorKind::PermissionDenied {
                return self.unreachable(source);
            }
            let peer = self.peer();
            ConnectError::Forbidden { peer, source }
        })?;
        if let Err(source) = self.listener.check(&stream)? {
            let peer = self.peer();
            return Err(ConnectError::Untrusted { peer, source });
        }
        let rest = self.request("localhost", "/").upgrade(&mut stream).await?;
        let (read, write) = stream.into_split();
        Ok(UpgradedStream::new(read, write, rest))
    }

    /// Connects to the first reachable address of a host.
    async fn dial(&self, host: &ServerHost) -> Result<TcpStream, ConnectError> {
        let resolve = |source| ConnectError::Resolve {
            host: host.name.clone(),
            source,
        };
        let found = lookup_host((host.name.as_str(), host.port)).await;
        // `localhost` may resolve to any address. A token is sent only to loopback.
        let loopback_only = self.has_secret() && host.scheme == WebSocketScheme::Ws;
        let addresses: Vec<SocketAddr> = found
            .map_err(resolve)?
            .filter(|address| !loopback_only || address.ip().to_canonical().is_loopback())
            .collect();
        if addresses.is_empty() {
            return Err(resolve(io::Error::from(io::ErrorKind::AddrNotAvailable)));
        }
        let stream = TcpStream::connect(addresses.as_slice())
            .await
            .map_err(|source| self.unreachable(source))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn tls_connect(
        &self,
        host: &ServerHost,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ConnectError> {
        let name = ServerName::try_from(host.name.clone())
            .map_err(|_| super::ServerAddressError::NoHost)?;
        let connected = TlsConnector::from(self.trust.config().await?)
            .connect(name, stream)
            .await;
        connected.map_err(|error| tls_error(&host.name, error))
    }

    fn request<'a>(&'a self, authority: &'a str, target: &'a str) -> UpgradeRequest<'a> {
        UpgradeRequest {
            authority,
            target,
            headers: &self.headers,
            bearer_token: self.bearer_token.as_ref(),
        }
    }

    fn has_secret(&self) -> bool {
        self.bearer_token.is_some() || self.headers.authorization().is_some()
    }

    fn unreachable(&self, source: io::Error) -> ConnectError {
        ConnectError::Unreachable {
            peer: self.peer(),
            source,
        }
    }

    fn peer(&self) -> String {
        self.address.to_string()
    }
}

/// An upgraded connection.
struct UpgradedStream {
    input: Box<dyn AsyncRead + Send + Unpin>,
    output: Box<dyn AsyncWrite + Send + Unpin>,
    /// Bytes that followed the response.
    rest: Vec<u8>,
}

impl UpgradedStream {
    fn new<R, W>(input: R, output: W, rest: Vec<u8>) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Self {
            input: Box::new(input),
            output: Box::new(output),
            rest,
        }
    }

    fn into_socket(self) -> BinarySocket {
        let limits = SocketLimits::default();
        BinarySocket::boxed(
            self.input,
            self.output,
            &self.rest,
            LinkRole::Client,
            limits,
        )
    }
}

/// Distinguishes certificate errors, other TLS errors and connection failures.
fn tls_error(host: &str, error: io::Error) -> ConnectError {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(source) = inner.cloned() else {
        return ConnectError::Io(error);
    };
    let host = host.to_owned();
    match CertificateFault::of(&source) {
        Some(fault) => ConnectError::Certificate {
            host,
            fault,
            source,
        },
        None => ConnectError::Tls { host, source },
    }
}
