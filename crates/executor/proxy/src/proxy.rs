//! A proxy that runs.
//!
//! The sockets a proxy serves.
//!
//! Takes connections from a listening socket, as many at a time as there are slots.
//!
//! Carries connections from a sandbox's namespace to ports of the host's loopback, where a proxy of
//! the client's listens.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    sync::Arc,
    time::Duration,
};

use exec_env::network::NetworkWatcher;
use exec_wire::id::ProcessId;
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::timeout,
};

use crate::{
    http,
    limits::{self, Limits},
    outside::Outside,
    policy_gate::PolicyGate,
    settings::Checked,
    socks::{self, DatagramRelay},
    tunnel,
};

/// Serves one process until dropped, which cuts every connection.
#[derive(Debug)]
pub struct Proxy {
    // Dropping the set ends its tasks.
    _tasks: JoinSet<()>,
}

/// What a proxy is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What it lets through.
    pub settings: Checked,
    /// Whose connections these are, for the record.
    pub process_id: ProcessId,
    /// Who is asked and told. Absent: nobody, and what nothing decides is denied.
    pub watcher: Option<Arc<dyn NetworkWatcher>>,
    /// Where connections go.
    pub outside: Arc<dyn Outside>,
    /// What it holds at most.
    pub limits: Limits,
}

impl Proxy {
    /// Serves what `listeners` accept, on the current runtime. Sockets that the settings have no
    /// use for are closed.
    pub fn start(setup: Setup, listeners: Listeners) -> io::Result<Self> {
        let Setup {
            settings,
            process_id,
            watcher,
            outside,
            limits,
        } = setup;
        let gate = Arc::new(PolicyGate {
            policy: settings.policy,
            mode: settings.mode,
            process_id,
            watcher,
            decision_timeout: settings.decision_timeout,
            connector: outside,
            limits,
            pending_decisions: Semaphore::new(limits.max_pending_decisions),
        });
        let slots = ConnectionSlots::new(limits.max_connections);
        let mut tasks = JoinSet::new();
        let http = into_tokio(listeners.http)?;
        let gate_for_http = gate.clone();
        let serve = move |stream, peer, admission| {
            serve_http(gate_for_http.clone(), stream, peer, admission)
        };
        tasks.spawn(accept(http, slots.clone(), serve));
        if let Some(socks) = listeners.socks.filter(|_| settings.socks) {
            let socks = into_tokio(socks)?;
            let datagrams = listeners.datagrams.filter(|_| settings.datagrams);
            let datagrams = datagrams.map(DatagramRelay::new).transpose()?.map(Arc::new);
            if let Some(datagrams) = datagrams.clone() {
                let gate = gate.clone();
                tasks.spawn(async move { datagrams.run(gate).await });
            }
            let serve = move |stream, peer, admission| {
                serve_socks(gate.clone(), datagrams.clone(), stream, peer, admission)
            };
            tasks.spawn(accept(socks, slots, serve));
        }
        Ok(Self { _tasks: tasks })
    }
}

async fn serve_http(
    gate: Arc<PolicyGate>,
    stream: TcpStream,
    peer: SocketAddr,
    admission: ConnectionAdmission,
) {
    match admission {
        ConnectionAdmission::Accepted(_permit) => http::serve(&gate, stream, peer).await,
        ConnectionAdmission::Rejected(_permit) => http::reject(stream, &gate.limits).await,
    }
}

async fn serve_socks(
    gate: Arc<PolicyGate>,
    datagrams: Option<Arc<DatagramRelay>>,
    stream: TcpStream,
    peer: SocketAddr,
    admission: ConnectionAdmission,
) {
    match admission {
        ConnectionAdmission::Accepted(_permit) => {
            socks::serve(&gate, datagrams.as_deref(), stream, peer).await;
        }
        ConnectionAdmission::Rejected(_permit) => socks::reject(stream, &gate.limits).await,
    }
}

/// Sockets that are bound, and listen where they can. They may be in another network namespace
/// than the server; a [`OwnedFd`](std::os::fd::OwnedFd) converts into each of them.
#[derive(Debug)]
pub struct Listeners {
    /// For HTTP.
    pub http: TcpListener,
    /// For SOCKS5. Absent: it is not spoken.
    pub socks: Option<TcpListener>,
    /// For datagrams over SOCKS5; where the one of `socks` is. Absent: they are refused.
    pub datagrams: Option<UdpSocket>,
}

impl Listeners {
    /// Binds what `settings` ask for on the loopback of this namespace, at ports that are free.
    pub fn on_loopback(settings: &Checked) -> io::Result<Self> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let datagrams = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        Ok(Self {
            http: bind()?,
            socks: settings.speaks_socks().then(bind).transpose()?,
            datagrams: settings.relays_datagrams().then(datagrams).transpose()?,
        })
    }

    /// Returns the port for HTTP.
    pub fn http_port(&self) -> io::Result<u16> {
        Ok(self.http.local_addr()?.port())
    }

    /// Returns the port for SOCKS5, if it is spoken.
    pub fn socks_port(&self) -> io::Result<Option<u16>> {
        let address = self.socks.as_ref().map(TcpListener::local_addr);
        Ok(address.transpose()?.map(|address| address.port()))
    }
}

/// How many connections there may be, over all sockets that share it.
#[derive(Clone, Debug)]
struct ConnectionSlots {
    open: Arc<Semaphore>,
    rejecting: Arc<Semaphore>,
}

impl ConnectionSlots {
    fn new(max_connections: usize) -> Self {
        Self {
            open: Arc::new(Semaphore::new(max_connections)),
            rejecting: Arc::new(Semaphore::new(limits::MAX_REJECTING)),
        }
    }

    fn acquire(&self) -> Option<ConnectionAdmission> {
        if let Ok(permit) = self.open.clone().try_acquire_owned() {
            return Some(ConnectionAdmission::Accepted(permit));
        }
        let permit = self.rejecting.clone().try_acquire_owned().ok()?;
        Some(ConnectionAdmission::Rejected(permit))
    }
}

/// What becomes of a connection. The permit lives as long as it.
#[derive(Debug)]
enum ConnectionAdmission {
    /// It is served.
    Accepted(OwnedSemaphorePermit),
    /// It is told that there are too many.
    Rejected(OwnedSemaphorePermit),
}

/// Serves connections until dropped, which cuts them all.
async fn accept<F, S>(listener: tokio::net::TcpListener, slots: ConnectionSlots, serve: S)
where
    S: Fn(TcpStream, SocketAddr, ConnectionAdmission) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => if let Some(admission) = slots.acquire() {
                    // Only a matter of speed: the connection works without.
                    drop(stream.set_nodelay(true));
                    connections.spawn(serve(stream, peer, admission));
                },
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Makes a listening socket of the standard library one of the runtime's.
fn into_tokio(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// After a failure to accept. Mostly there are no descriptors left, and some may soon be.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Serves until dropped, which cuts every connection.
#[derive(Debug)]
pub struct Bridge {
    // Dropping the set ends its tasks.
    _tasks: JoinSet<()>,
}

impl Bridge {
    /// Carries what each socket accepts to the port beside it, on 127.0.0.1 of this namespace. Runs
    /// on the current runtime.
    pub fn start(ports: Vec<(TcpListener, u16)>, limits: Limits) -> io::Result<Self> {
        let slots = ConnectionSlots::new(limits.max_connections);
        let mut tasks = JoinSet::new();
        for (listener, port) in ports {
            let listener = into_tokio(listener)?;
            let serve =
                move |stream, _, admission| bridge_connection(stream, port, admission, limits);
            tasks.spawn(accept(listener, slots.clone(), serve));
        }
        Ok(Self { _tasks: tasks })
    }
}

async fn bridge_connection(
    client: TcpStream,
    port: u16,
    admission: ConnectionAdmission,
    limits: Limits,
) {
    let ConnectionAdmission::Accepted(_permit) = admission else {
        return;
    };
    let connecting = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    match timeout(limits.connect_timeout, connecting).await {
        Ok(Ok(upstream)) => {
            // Only a matter of speed: the tunnel works without.
            drop(upstream.set_nodelay(true));
            tunnel::copy_both(client.into(), upstream.into(), limits.idle_timeout).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, port, "cannot reach the proxy of the client"),
        Err(_) => tracing::debug!(port, "the proxy of the client does not accept"),
    }
}
