//! Listening sockets: accepts connections, performs TLS handshakes and upgrades, and hands over
//! links or sockets.

use std::{
    convert::Infallible,
    future::{Future, pending},
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    confinement::{is_more_confined, is_other_account},
    http::{
        AllowedHosts, HttpEndpoint, PendingConnection, PendingConnections, PendingLimits,
        SplitStream, refuse_connection, serve_endpoint,
        service::{self, HttpPeer, HttpService, HttpServiceOptions},
    },
    link::Link,
    listen_url::ListenUrl,
    unix_socket::UnixSocket,
    websocket::{MessageBudget, MessageBudgetLimits, socket},
};

/// Maximum number of open websockets.
const MAX_CONNECTIONS: usize = 4096;
/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long handshakes that have begun may take after the listener stops accepting.
const LAST_HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(500);
/// Delay after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    socket: ListenSocket,
    address: ListenUrl,
    /// Whether loopback peers of other accounts are refused, where the kernel reports the account.
    own_account: bool,
}

#[derive(Debug)]
enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

impl Listener {
    /// Binds a TCP socket.
    pub async fn bind_tcp(address: SocketAddr, tls_accept: bool) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        let address = if tls_accept {
            ListenUrl::Wss(bound)
        } else {
            ListenUrl::Ws(bound)
        };
        Ok(Self {
            socket: ListenSocket::Tcp(listener),
            address,
            own_account: false,
        })
    }

    /// Binds a unix socket that only its owner can connect to, and binds it again if its file is
    /// removed or replaced. Replaces the file of a server that has ended. Removes nothing if
    /// another server listens there, or if that is unknown.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
        Ok(Self {
            socket: ListenSocket::Unix(UnixSocket::bind(path)?),
            address: ListenUrl::Unix(path.to_owned()),
            own_account: false,
        })
    }

    /// Continues the listener of another server from its [`Self::duplicates`]. Until
    /// [`Self::claim`], dropping it leaves the files to that server.
    pub fn inherit(address: &ListenUrl, duplicates: Vec<OwnedFd>) -> io::Result<Self> {
        let mut duplicates = duplicates.into_iter();
        let missing = || io::Error::new(io::ErrorKind::InvalidInput, "no listening socket");
        let listener = duplicates.next().ok_or_else(missing)?;
        let socket = match address {
            ListenUrl::Unix(path) => {
                let lock = duplicates.next().ok_or_else(missing)?;
                ListenSocket::Unix(UnixSocket::inherit(path, listener, lock)?)
            }
            ListenUrl::Ws(_) | ListenUrl::Wss(_) => {
                let listener = std::net::TcpListener::from(listener);
                listener.set_nonblocking(true)?;
                ListenSocket::Tcp(TcpListener::from_std(listener)?)
            }
            ListenUrl::Stdio | ListenUrl::Off => return Err(missing()),
        };
        Ok(Self {
            socket,
            address: address.clone(),
            own_account: false,
        })
    }

    /// Returns duplicates of the descriptors that another server needs to continue this listener.
    pub fn duplicates(&self) -> io::Result<Vec<OwnedFd>> {
        match &self.socket {
            ListenSocket::Tcp(listener) => Ok(vec![listener.as_fd().try_clone_to_owned()?]),
            ListenSocket::Unix(socket) => socket.duplicates(),
        }
    }

    /// Removes the files from now on when it is dropped.
    pub fn claim(&mut self) {
        if let ListenSocket::Unix(socket) = &mut self.socket {
            socket.claim();
        }
    }

    /// Closes the listener, which another server continues. Its files stay.
    pub fn leave(self) {
        if let ListenSocket::Unix(socket) = self.socket {
            socket.leave();
        }
    }

    /// Refuses loopback peers of accounts other than this process's and root, where the kernel
    /// reports the account. Unix sockets always do.
    #[must_use]
    pub fn for_own_account(self) -> Self {
        let own_account = true;
        Self {
            own_account,
            ..self
        }
    }

    /// Returns the address with the actual port.
    pub fn address(&self) -> &ListenUrl {
        &self.address
    }

    /// Accepts connections and sends each upgraded one as a link. Returns when the receiver is
    /// closed.
    pub async fn run(
        self,
        endpoint: HttpEndpoint,
        tls: Option<TlsAcceptor>,
        links: mpsc::Sender<Link>,
    ) {
        drop(self.run_until(endpoint, tls, links, pending()).await);
    }

    /// Accepts connections and sends each upgraded one as a link. Returns the listener when the
    /// receiver is closed, or when `stop` resolves and the handshakes that had begun are over.
    /// Connections then wait to be accepted.
    pub async fn run_until(
        mut self,
        mut endpoint: HttpEndpoint,
        tls: Option<TlsAcceptor>,
        links: mpsc::Sender<Link>,
        stop: impl Future<Output = ()>,
    ) -> Self {
        if matches!(self.socket, ListenSocket::Unix(_)) {
            // No DNS name resolves to a unix socket.
            endpoint.hosts = AllowedHosts::any();
        }
        let pending = endpoint.pending;
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let budget = MessageBudget::new(MessageBudgetLimits::default());
        // Closed when no handshake is going on.
        let (handshake, mut handshakes) = mpsc::channel::<Infallible>(1);
        let accepting = self.accept_each(pending, |stream, pending| {
            let (endpoint, tls, links) = (endpoint.clone(), tls.clone(), links.clone());
            let (budget, slots) = (budget.clone(), Arc::clone(&slots));
            let handshake = handshake.clone();
            tokio::spawn(async move {
                let _handshake = handshake;
                let served = stream.into_link(endpoint, tls, budget, &slots);
                if let Some(link) = pending.serve(served).await {
                    // The receiver is closed when the server shuts down.
                    drop(links.send(link).await);
                }
            });
        });
        tokio::select! {
            never = accepting => match never {},
            () = links.closed() => {}
            () = stop => {
                drop(handshake);
                // Clients that only watch, such as for metrics, hold connections open.
                drop(timeout(LAST_HANDSHAKE_TIMEOUT, handshakes.recv()).await);
            }
        }
        self
    }

    /// Accepts connections, lets an HTTP service handle their requests, and passes on each accepted
    /// websocket. Runs until dropped, which closes all connections that are not yet a websocket.
    pub async fn serve_http<S, F>(
        mut self,
        handler: Arc<S>,
        tls: Option<TlsAcceptor>,
        options: HttpServiceOptions,
        on_upgrade: F,
    ) where
        S: HttpService,
        F: Fn(S::Upgrade, socket::BinarySocket) + Send + Sync + 'static,
    {
        let slots = Arc::new(Semaphore::new(options.max_connections));
        let on_upgrade = Arc::new(on_upgrade);
        let mut connections = JoinSet::new();
        let accepting = self.accept_each(options.pending, |stream, pending| {
            while connections.try_join_next().is_some() {}
            let (handler, tls, on_upgrade) =
                (Arc::clone(&handler), tls.clone(), Arc::clone(&on_upgrade));
            let (options, slots) = (options.clone(), Arc::clone(&slots));
            connections.spawn(async move {
                let served = stream.into_socket(&*handler, tls, options, slots);
                if let Some((what, socket)) = pending.serve(served).await {
                    on_upgrade(what, socket);
                }
            });
        });
        match accepting.await {}
    }

    /// Passes each accepted connection to `serve`, which must not block.
    async fn accept_each(
        &mut self,
        limits: PendingLimits,
        mut serve: impl FnMut(AcceptedConnection, PendingConnection),
    ) -> Infallible {
        let pending = PendingConnections::new(limits);
        loop {
            match self.accept().await {
                Ok(Some(stream)) => {
                    let pending = pending.register(stream.peer);
                    serve(stream, pending);
                }
                Ok(None) => {}
                Err(error) => wait_to_accept(&error).await,
            }
        }
    }

    async fn accept(&mut self) -> io::Result<Option<AcceptedConnection>> {
        match &mut self.socket {
            ListenSocket::Tcp(listener) => {
                let (stream, peer) = accept_tcp(listener).await;
                let is_refused = self.own_account && is_other_account(peer, stream.local_addr()?);
                Ok(Some(AcceptedConnection {
                    stream: AcceptedSocket::Tcp(stream),
                    peer: HttpPeer::Network(peer),
                    refusal: is_refused.then_some(ConnectionRefusal::OtherAccount),
                }))
            }
            ListenSocket::Unix(socket) => {
                let stream = socket.accept().await?;
                let credentials = stream.peer_cred()?;
                let peer = credentials.uid();
                let ours = rustix::process::geteuid().as_raw();
                if peer != ours && peer != 0 {
                    tracing::warn!(peer, "connection of another account refused");
                    return Ok(None);
                }
                let is_refused = is_more_confined(credentials.pid());
                Ok(Some(AcceptedConnection {
                    stream: AcceptedSocket::Unix(stream),
                    peer: HttpPeer::Account(peer),
                    refusal: is_refused.then_some(ConnectionRefusal::Confined),
                }))
            }
        }
    }
}

/// Waits for a TCP connection and sets `TCP_NODELAY`. Retries after a failure, which is logged.
pub async fn accept_tcp(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%peer, %error, "failed to set TCP_NODELAY");
                }
                return (stream, peer);
            }
            Err(error) => wait_to_accept(&error).await,
        }
    }
}

/// Waits after a failed accept: mostly, the host is out of file descriptors until a connection
/// closes.
async fn wait_to_accept(error: &io::Error) {
    tracing::warn!(%error, "failed to accept a connection");
    sleep(ACCEPT_RETRY).await;
}

struct AcceptedConnection {
    stream: AcceptedSocket,
    peer: HttpPeer,
    refusal: Option<ConnectionRefusal>,
}

enum AcceptedSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Why a peer gets no link.
enum ConnectionRefusal {
    /// It belongs to another account, or has closed its socket.
    OtherAccount,
    /// Its process is more restricted than this one.
    Confined,
}

impl AcceptedConnection {
    async fn into_link(
        self,
        endpoint: HttpEndpoint,
        tls: Option<TlsAcceptor>,
        budget: MessageBudget,
        slots: &Arc<Semaphore>,
    ) -> Option<Link> {
        let (peer, name) = (self.peer, self.peer.to_string());
        let text = match self.refusal {
            None => {
                let stream = self.stream.open(tls, peer).await?;
                return serve_endpoint(stream, endpoint, name, budget, slots).await;
            }
            Some(ConnectionRefusal::OtherAccount) => {
                tracing::warn!(%peer, "connection of another account refused");
                OTHER_ACCOUNT_REFUSAL
            }
            Some(ConnectionRefusal::Confined) => {
                tracing::warn!(%peer, "connection from a sandbox refused");
                SANDBOX_REFUSAL
            }
        };
        let stream = self.stream.open(None, peer).await?;
        refuse_connection(stream, &endpoint, text, &name).await;
        None
    }

    async fn into_socket<S: HttpService>(
        self,
        handler: &S,
        tls: Option<TlsAcceptor>,
        options: HttpServiceOptions,
        slots: Arc<Semaphore>,
    ) -> Option<(S::Upgrade, socket::BinarySocket)> {
        // An HTTP service checks its own credentials, and so serves confined processes.
        if let Some(ConnectionRefusal::OtherAccount) = self.refusal {
            return None;
        }
        let stream = self.stream.open(tls, self.peer).await?;
        service::serve(stream, handler, self.peer, options, slots).await
    }
}

impl AcceptedSocket {
    /// Performs the TLS handshake of a TCP stream, if there is an acceptor.
    async fn open(self, tls: Option<TlsAcceptor>, peer: HttpPeer) -> Option<Box<dyn SplitStream>> {
        let (stream, tls) = match (self, tls) {
            (Self::Unix(stream), _) => return Some(Box::new(stream)),
            (Self::Tcp(stream), None) => return Some(Box::new(stream)),
            (Self::Tcp(stream), Some(tls)) => (stream, tls),
        };
        match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => Some(Box::new(stream)),
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "TLS handshake failed");
                None
            }
            Err(_) => None,
        }
    }
}

/// Response to a peer of another account on a listener without authentication.
const OTHER_ACCOUNT_REFUSAL: &str = "connection refused: this server serves the account that started it; \
                             start it with --ws-auth, or with --insecure-no-auth for every account";

/// Response to a sandboxed process: a command that it starts here would escape its sandbox.
const SANDBOX_REFUSAL: &str =
    "connection refused: this process runs in a stricter sandbox than the server";
