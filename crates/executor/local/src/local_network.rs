//! Tunnels and open ports of this machine: connects and listens in the host's network, or in that
//! of a process.
//!
//! Invariant: a tunnel into the network of a process never leads to another network. The process is
//! found by its id, held by a pidfd while its namespace is opened, and the socket is created inside
//! that namespace. A policy that allows no network decides before anything is resolved or
//! connected. Not here: tunnels of clients (`exec-service`), and creating sockets in namespaces
//! (`exec-spawn`).

mod listening_sockets;
mod port_listener;
mod socket_owners;

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use exec_env::process::ExecProcess;
use exec_env::tunnel::{
    EnvironmentNetwork, TunnelError, TunnelFuture, TunnelListener, TunnelStream, TunnelTarget,
};
use exec_process::spawner::{NetworkNamespaceHandle, SocketRequestError, Spawner, TreeMember};
use exec_proxy::{
    policy_gate::{Connector, TunnelGate, TunnelGateError},
    target_host::TargetHost,
};
use exec_sandbox::SandboxFactory;
use exec_wire::{
    error::error_chain,
    id::ProcessId,
    sandbox::SandboxPolicy,
    tunnel::{ListeningPort, TunnelHost},
};
use futures_util::future::FutureExt;
use rustix::{
    io::Errno,
    net::{AddressFamily, sockopt},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::Mutex,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use self::{
    listening_sockets::listening_sockets,
    port_listener::PortListener,
    socket_owners::{ScanScope, SocketOwners},
};
use crate::{
    backend::LocalBackend,
    process_network::has_host_network,
    session_processes::{NetworkPlacement, NetworkRules, SessionEntry, SessionProcesses, local},
    tunnel_socket::TunnelSocket,
};

#[cfg(test)]
mod tests;

/// Time to resolve a name and connect to one of its addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of addresses that are tried per name.
const MAX_ADDRESSES: usize = 8;
/// Loopback addresses, in the order in which they are tried.
const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// The network of this machine, for the session of one [`LocalBackend`]. Clones share it.
#[derive(Clone, Debug)]
pub struct LocalNetwork {
    processes: SessionProcesses,
    spawner: Spawner,
    sandboxes: SandboxFactory,
    connector: Arc<dyn Connector>,
    /// Held while ports are listed, so that one list is made at a time.
    owners: Arc<Mutex<SocketOwners>>,
}

impl LocalNetwork {
    /// Creates the network of the environment that uses this backend. It knows the processes of
    /// this backend, not those of its clones.
    pub fn new(backend: &LocalBackend) -> Self {
        Self {
            processes: backend.processes.clone(),
            spawner: backend.spawner.clone(),
            sandboxes: backend.sandboxes.clone(),
            connector: Arc::clone(&backend.connector),
            owners: Arc::default(),
        }
    }

    async fn open_stream(self, target: TunnelTarget) -> Result<TunnelSocket, TunnelError> {
        if target.port == 0 {
            let text = "port must be between 1 and 65535".to_owned();
            return Err(TunnelError::Refused(text));
        }
        let host = parse_host(&target)?;
        let route = self.route(target.sandbox.as_deref(), target.process.as_ref());
        if let TunnelRoute::Managed(gate) = route.await? {
            let host_text = host.to_string();
            let connected = gate.connect(host, target.port).await;
            return match connected {
                Ok(stream) => Ok(tunnel_socket(stream)),
                Err(error) => Err(managed_error(&error, &host_text, target.port)),
            };
        }
        let place = self.place(target.process.as_ref()).await?;
        let stream = self.connect(&host, target.port, &place).await?;
        Ok(tunnel_socket(stream))
    }

    async fn open_listener(self, target: TunnelTarget) -> Result<PortListener, TunnelError> {
        let host = parse_host(&target)?;
        if let Some(sandbox) = target.sandbox.as_deref() {
            if !has_host_network(sandbox) {
                return Err(TunnelError::Refused(
                    "sandbox: the policy does not allow listening on a port of the network"
                        .to_owned(),
                ));
            }
            self.check_policy(sandbox).await?;
        }
        let place = self.place(target.process.as_ref()).await?;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let addresses = self.resolve(&host, deadline).await?;
        // A name stands for one address, but loopback for both.
        let addresses = match host.is_localhost() {
            true => &addresses[..],
            false => &addresses[..1],
        };
        PortListener::open(&self.spawner, &place, addresses, target.port).await
    }

    /// Decides by the policy how to connect.
    async fn route(
        &self,
        sandbox: Option<&SandboxPolicy>,
        process: Option<&ProcessId>,
    ) -> Result<TunnelRoute, TunnelError> {
        let Some(sandbox) = sandbox else {
            return Ok(TunnelRoute::Direct);
        };
        if has_host_network(sandbox) {
            self.check_policy(sandbox).await?;
            return Ok(TunnelRoute::Direct);
        }
        let rules = match process {
            Some(id) => self.find(id)?.rules,
            None => NetworkRules::Unmanaged,
        };
        match rules {
            NetworkRules::Proxy(gate) => Ok(TunnelRoute::Managed(gate)),
            NetworkRules::Unmanaged => Err(TunnelError::Refused(
                "sandbox: the policy allows no network".to_owned(),
            )),
            NetworkRules::Unknown => Err(TunnelError::Refused(
                "sandbox: an earlier server has started the process, so this one does not know \
                 the rules of its network"
                    .to_owned(),
            )),
            NetworkRules::ClientProxy => Err(TunnelError::Refused(
                "sandbox: a proxy of the client manages the network of the process, so this \
                 server cannot decide"
                    .to_owned(),
            )),
        }
    }

    /// Refuses a policy that commands could not have either.
    async fn check_policy(&self, sandbox: &SandboxPolicy) -> Result<(), TunnelError> {
        let checked = self.sandboxes.plan_for_files(sandbox).await;
        checked.map_or_else(
            |error| Err(TunnelError::Refused(error.to_string())),
            |_| Ok(()),
        )
    }

    /// Finds the network of a process, or the host's.
    async fn place(&self, process: Option<&ProcessId>) -> Result<NetworkPlace, TunnelError> {
        let Some(id) = process else {
            return Ok(NetworkPlace::Host);
        };
        let entry = self.find(id)?;
        // Reads `/proc`.
        let found = spawn_blocking(move || find_namespace(&entry)).await;
        let found = found.map_err(io::Error::other).and_then(|it| it);
        let process = id.clone();
        Ok(match found.map_err(|error| process_error(&error, id))? {
            Some(namespace) => NetworkPlace::Namespace { namespace, process },
            None => NetworkPlace::Host,
        })
    }

    fn find(&self, id: &ProcessId) -> Result<SessionEntry, TunnelError> {
        let unknown = || TunnelError::Refused(format!("process id `{id}` is unknown"));
        self.processes.find(id).ok_or_else(unknown)
    }

    /// Returns the addresses of a host. Not empty.
    async fn resolve(
        &self,
        host: &TargetHost,
        deadline: Instant,
    ) -> Result<Vec<IpAddr>, TunnelError> {
        if let Some(address) = host.address() {
            return Ok(vec![address]);
        }
        if host.is_localhost() {
            return Ok(LOOPBACK.to_vec());
        }
        let failed = |reason: &dyn fmt::Display| {
            TunnelError::Host(format!(
                "cannot resolve `{host}` in the environment: {reason}"
            ))
        };
        match timeout_at(deadline, self.connector.resolve(host.as_str())).await {
            Ok(Ok(mut addresses)) if !addresses.is_empty() => {
                addresses.truncate(MAX_ADDRESSES);
                Ok(addresses)
            }
            Ok(Ok(_)) => Err(failed(&"the name has no address")),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(failed(&"the name server did not respond")),
        }
    }

    async fn connect(
        &self,
        host: &TargetHost,
        port: u16,
        place: &NetworkPlace,
    ) -> Result<TcpStream, TunnelError> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let addresses = self.resolve(host, deadline).await?;
        let mut failure = None;
        let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        for address in addresses {
            // An address that does not respond leaves time for the others.
            let share = deadline.saturating_duration_since(Instant::now()) / left.max(1);
            left -= 1;
            let address = SocketAddr::new(address, port);
            let connected = timeout_at(Instant::now() + share, self.connect_to(address, place));
            let error = match connected.await {
                Ok(Ok(stream)) if is_connected_to_itself(&stream) => {
                    io::ErrorKind::ConnectionRefused.into()
                }
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            // A refusal says more than the missing route to another address of the same host.
            let is_refusal = error.kind() == io::ErrorKind::ConnectionRefused;
            if is_refusal || failure.is_none() {
                failure = Some(error);
            }
        }
        let failure = failure.unwrap_or_else(|| io::ErrorKind::HostUnreachable.into());
        Err(connect_error(&failure, host, port, place))
    }

    async fn connect_to(&self, address: SocketAddr, place: &NetworkPlace) -> io::Result<TcpStream> {
        match place {
            NetworkPlace::Host => self.connector.connect(address).await,
            NetworkPlace::Namespace { .. } => {
                let socket = place.socket(&self.spawner, address.ip()).await?;
                socket.connect(address).await
            }
        }
    }

    async fn list_ports(
        self,
        process: Option<ProcessId>,
        others: Vec<Arc<dyn ExecProcess>>,
    ) -> Result<Vec<ListeningPort>, TunnelError> {
        let entry = process.as_ref().map(|id| self.find(id)).transpose()?;
        let mut owners = Arc::clone(&self.owners).lock_owned().await;
        let (processes, first) = (self.processes, process.clone());
        let listed = spawn_blocking(move || {
            let (member, scope) = match &entry {
                None => (None, ScanScope::Host),
                Some(entry) => (Some(open_member(entry)?), ScanScope::Session),
            };
            let sockets = listening_sockets(member.as_ref())?;
            let trees = || {
                let mut trees = processes.trees();
                trees.sort_by_key(|(id, _)| Some(id) != first.as_ref());
                trees.extend(processes.trees_of_others(&others));
                trees
            };
            owners.update(&sockets, trees, scope, std::time::Instant::now());
            let ports: Vec<_> = sockets.iter().map(|socket| owners.port(socket)).collect();
            Ok(ports)
        });
        let listed = listed.await.map_err(io::Error::other).and_then(|it| it);
        listed.map_err(|error| match &process {
            Some(id) => process_error(&error, id),
            None => TunnelError::Host(format!("cannot list the ports of the environment: {error}")),
        })
    }
}

impl EnvironmentNetwork for LocalNetwork {
    fn open(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelStream>> {
        let opened = self.clone().open_stream(target);
        let boxed = |stream| Box::new(stream) as Box<dyn TunnelStream>;
        opened.map(move |stream| stream.map(boxed)).boxed()
    }

    fn listen(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelListener>> {
        let opened = self.clone().open_listener(target);
        let boxed = |listener| Box::new(listener) as Box<dyn TunnelListener>;
        opened.map(move |listener| listener.map(boxed)).boxed()
    }

    fn ports(&self, process: Option<ProcessId>) -> TunnelFuture<Vec<ListeningPort>> {
        self.clone().list_ports(process, Vec::new()).boxed()
    }

    fn ports_with_owners(
        &self,
        processes: Vec<Arc<dyn ExecProcess>>,
    ) -> TunnelFuture<Vec<ListeningPort>> {
        self.clone().list_ports(None, processes).boxed()
    }

    fn adopt(&self, process: &Arc<dyn ExecProcess>) {
        self.processes.adopt(process);
    }
}

/// How a tunnel is connected.
enum TunnelRoute {
    /// Any destination may be reached.
    Direct,
    /// The rules of a managed network apply.
    Managed(TunnelGate),
}

/// The network that a tunnel leads into.
#[derive(Debug)]
pub(crate) enum NetworkPlace {
    /// The network of this server.
    Host,
    /// The network of a process in a private namespace.
    Namespace {
        namespace: NetworkNamespaceHandle,
        process: ProcessId,
    },
}

impl NetworkPlace {
    /// Names the network, so that it follows "port 80".
    pub(crate) fn possessive(&self) -> String {
        match self {
            Self::Host => "of the environment".to_owned(),
            Self::Namespace { process, .. } => format!("in the network of process `{process}`"),
        }
    }

    /// Creates a socket of this network for an address. Only its namespace matters here: connecting
    /// and listening are up to the caller.
    pub(crate) async fn socket(&self, spawner: &Spawner, address: IpAddr) -> io::Result<TcpSocket> {
        let Self::Namespace { namespace, .. } = self else {
            return match address {
                IpAddr::V4(_) => TcpSocket::new_v4(),
                IpAddr::V6(_) => TcpSocket::new_v6(),
            };
        };
        let family = match address {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = spawner.open_socket(namespace, family).await;
        let socket = socket.map_err(|error| match error {
            // As if the call had been made here.
            SocketRequestError::Create(source) => source,
            SocketRequestError::Join(_) | SocketRequestError::Spawner(_) | _ => {
                io::Error::other(error_chain(&error))
            }
        })?;
        Ok(TcpSocket::from_std_stream(socket.into()))
    }
}

/// Opens a process in the network of a process, as [`NetworkPlacement`] says where.
fn open_member(entry: &SessionEntry) -> io::Result<TreeMember> {
    let process = entry.process.upgrade().ok_or(Errno::SRCH)?;
    let process = local(&process).ok_or(Errno::SRCH)?;
    let is_elsewhere = |member: &TreeMember| matches!(member.network_namespace(), Ok(Some(_)));
    let member = match entry.placement {
        NetworkPlacement::Command => process.open_member(|_| true),
        NetworkPlacement::BelowWrapper => process.open_member(is_elsewhere),
        NetworkPlacement::Unknown => {
            let member = process.open_member(is_elsewhere);
            member.or_else(|| process.open_member(|_| true))
        }
    };
    Ok(member.ok_or(Errno::SRCH)?)
}

/// Opens the network namespace of a process. `None`: that of this server.
fn find_namespace(entry: &SessionEntry) -> io::Result<Option<NetworkNamespaceHandle>> {
    for _ in 0..MAX_LOOKUPS {
        let found = open_member(entry)?.network_namespace();
        match found {
            // It exited meanwhile. A descendant may go on.
            Err(error) if is_missing_process(&error) => {}
            found => return found,
        }
    }
    Err(Errno::SRCH.into())
}

/// Attempts to find a process of a tree that does not exit meanwhile.
const MAX_LOOKUPS: usize = 8;

fn is_missing_process(error: &io::Error) -> bool {
    let missing = [Errno::SRCH, Errno::NOENT].map(|errno| Some(errno.raw_os_error()));
    missing.contains(&error.raw_os_error())
}

fn process_error(error: &io::Error, id: &ProcessId) -> TunnelError {
    match is_missing_process(error) {
        true => TunnelError::Refused(format!("process `{id}` has ended")),
        false => TunnelError::Host(format!("cannot inspect the network of `{id}`: {error}")),
    }
}

/// Returns the host of a target. Loopback, if it names none.
fn parse_host(target: &TunnelTarget) -> Result<TargetHost, TunnelError> {
    let text = target.host.as_ref().map_or("localhost", TunnelHost::as_str);
    let invalid = |error| TunnelError::Refused(format!("invalid host `{text}`: {error}"));
    TargetHost::parse(text).map_err(invalid)
}

/// Returns whether both ends of a connection are the same socket. That happens when the kernel
/// chooses the destination as the source port, and nothing listens there.
fn is_connected_to_itself(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => local == peer,
        _ => false,
    }
}

/// Keepalive of a connection: when an idle one is probed first, how often again, and how many
/// probes may stay without an answer.
struct TcpKeepalive {
    idle: Duration,
    interval: Duration,
    probes: u32,
}

/// Between processes of one machine. A process that is killed while it accepts a connection may
/// leave it open at the other end; then the first probe breaks it.
const LOOPBACK_KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(5),
    interval: Duration::from_secs(5),
    probes: 3,
};
/// To other machines, of which one may disappear.
const REMOTE_KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(60),
    interval: Duration::from_secs(15),
    probes: 8,
};

/// Makes a connection the end of a tunnel: disables the delay of small segments, and enables
/// keepalive.
fn tunnel_socket(stream: TcpStream) -> TunnelSocket {
    let is_local = stream
        .peer_addr()
        .is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
    let keepalive = match is_local {
        true => LOOPBACK_KEEPALIVE,
        false => REMOTE_KEEPALIVE,
    };
    let set = || {
        sockopt::set_tcp_nodelay(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, keepalive.idle)?;
        sockopt::set_tcp_keepintvl(&stream, keepalive.interval)?;
        sockopt::set_tcp_keepcnt(&stream, keepalive.probes)?;
        sockopt::set_socket_keepalive(&stream, true)
    };
    if let Err(error) = set() {
        // The connection may be broken already, which its reader notices.
        tracing::debug!(%error, "failed to set options of a tunnel's socket");
    }
    TunnelSocket::new(stream)
}

fn connect_error(
    error: &io::Error,
    host: &TargetHost,
    port: u16,
    place: &NetworkPlace,
) -> TunnelError {
    let is_loopback =
        host.is_localhost() || host.address().is_some_and(|address| address.is_loopback());
    let place = place.possessive();
    let is = |kind: io::ErrorKind| error.kind() == kind;
    TunnelError::Host(if is(io::ErrorKind::ConnectionRefused) && is_loopback {
        format!("nothing listens on port {port} {place}")
    } else if is(io::ErrorKind::ConnectionRefused) {
        format!("`{host}` refuses connections to port {port} (nothing listens there)")
    } else if is(io::ErrorKind::TimedOut) {
        let seconds = CONNECT_TIMEOUT.as_secs();
        format!("`{host}` did not respond on port {port} within {seconds} s")
    } else {
        format!("cannot connect to `{host}` port {port} {place}: {error}")
    })
}

fn managed_error(error: &TunnelGateError, host: &str, port: u16) -> TunnelError {
    match error {
        TunnelGateError::Denied(_) | TunnelGateError::Ended => {
            TunnelError::Refused(format!("sandbox: `{host}` port {port}: {error}"))
        }
        TunnelGateError::Unreachable(source) => {
            TunnelError::Host(format!("cannot connect to `{host}` port {port}: {source}"))
        }
        TunnelGateError::UnknownHost | _ => {
            TunnelError::Host(format!("cannot connect to `{host}` port {port}: {error}"))
        }
    }
}
