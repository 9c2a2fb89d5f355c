//! Proxy and bridge servers: settings, listeners, accept loop, connection limit.
//!
//! The `networkProxy` settings of a request are validated before anything starts. The proxy serves
//! HTTP and SOCKS5 by a policy. The bridge forwards connections from a sandbox's network namespace
//! to loopback ports of the host, where a proxy of the client listens. Dropping either closes all
//! connections.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    sync::Arc,
    time::Duration,
};

use exec_env::environment::NetworkPolicyHook;
use exec_wire::{
    id::ProcessId,
    network::{NetworkProxy, ProxyMode},
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::timeout,
};

use crate::{
    host_policy::{HostPolicy, HostPolicyError},
    http,
    limits::{self, ProxyLimits},
    policy_gate::{Connector, PolicyGate, TunnelGate},
    socks::{self, DatagramRelay},
    tunnel,
};

/// Serves one process. Dropping it closes every connection.
#[derive(Debug)]
pub struct ProxyServer {
    gate: Arc<PolicyGate>,
    // Dropping the set aborts its tasks.
    _tasks: JoinSet<()>,
}

/// Configuration of a proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Validated settings.
    pub settings: CheckedSettings,
    /// Process that the connections belong to, for decision records.
    pub process_id: ProcessId,
    /// Makes decisions and receives records. Absent: undecided hosts are denied.
    pub policy_hook: Option<Arc<dyn NetworkPolicyHook>>,
    /// Opens outbound connections.
    pub connector: Arc<dyn Connector>,
    /// Limits of the proxy.
    pub limits: ProxyLimits,
}

impl ProxyServer {
    /// Serves `listeners` on the current runtime. Closes sockets that the settings do not use.
    pub fn start(config: ProxyConfig, listeners: ProxyListeners) -> io::Result<Self> {
        let ProxyConfig {
            settings,
            process_id,
            policy_hook,
            connector,
            limits,
        } = config;
        let gate = Arc::new(PolicyGate {
            policy: settings.policy,
            mode: settings.mode,
            process_id,
            policy_hook,
            decision_timeout: settings.decision_timeout,
            connector,
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
            let gate_for_socks = gate.clone();
            let serve = move |stream, peer, admission| {
                serve_socks(
                    gate_for_socks.clone(),
                    datagrams.clone(),
                    stream,
                    peer,
                    admission,
                )
            };
            tasks.spawn(accept(socks, slots, serve));
        }
        Ok(Self {
            gate,
            _tasks: tasks,
        })
    }

    /// Returns a gate that opens tunnels by the same rules until this server is dropped.
    pub fn tunnel_gate(&self) -> TunnelGate {
        TunnelGate(Arc::downgrade(&self.gate))
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

/// Bound and listening sockets of a proxy, possibly from another network namespace. An
/// [`OwnedFd`](std::os::fd::OwnedFd) converts into each of them.
#[derive(Debug)]
pub struct ProxyListeners {
    /// Listener for HTTP.
    pub http: TcpListener,
    /// Listener for SOCKS5. Absent: disabled.
    pub socks: Option<TcpListener>,
    /// Socket for SOCKS5 datagrams, in the same namespace as `socks`. Absent: datagrams are
    /// refused.
    pub datagrams: Option<UdpSocket>,
}

impl ProxyListeners {
    /// Binds the sockets that `settings` require, on free loopback ports of this namespace.
    pub fn on_loopback(settings: &CheckedSettings) -> io::Result<Self> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let datagrams = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        Ok(Self {
            http: bind()?,
            socks: settings.has_socks().then(bind).transpose()?,
            datagrams: settings.has_socks_udp().then(datagrams).transpose()?,
        })
    }

    /// Returns the HTTP port.
    pub fn http_port(&self) -> io::Result<u16> {
        Ok(self.http.local_addr()?.port())
    }

    /// Returns the SOCKS5 port, if enabled.
    pub fn socks_port(&self) -> io::Result<Option<u16>> {
        let address = self.socks.as_ref().map(TcpListener::local_addr);
        Ok(address.transpose()?.map(|address| address.port()))
    }
}

/// Connection limit, shared by all listeners of a server.
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

/// Whether a connection is within the limit. The permit lives as long as the connection.
#[derive(Debug)]
enum ConnectionAdmission {
    /// The connection is served.
    Accepted(OwnedSemaphorePermit),
    /// The connection is rejected with an error.
    Rejected(OwnedSemaphorePermit),
}

/// Accepts and serves connections. Dropping the future closes them all.
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
                    // Only affects latency, so a failure is ignored.
                    drop(stream.set_nodelay(true));
                    connections.spawn(serve(stream, peer, admission));
                },
                Err(error) => {
                    tracing::debug!(%error, "failed to accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Converts a standard listener into one of the runtime.
fn into_tokio(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// Delay after a failed accept: mostly, the process has no free descriptors at the moment.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Forwards connections to a proxy of the client. Dropping it closes every connection.
#[derive(Debug)]
pub struct ProxyBridge {
    // Dropping the set aborts its tasks.
    _tasks: JoinSet<()>,
}

impl ProxyBridge {
    /// Forwards the connections of each listener to the given port on 127.0.0.1 of this namespace.
    /// Runs on the current runtime.
    pub fn start(ports: Vec<(TcpListener, u16)>, limits: ProxyLimits) -> io::Result<Self> {
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
    limits: ProxyLimits,
) {
    let ConnectionAdmission::Accepted(_permit) = admission else {
        return;
    };
    let connecting = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    match timeout(limits.connect_timeout, connecting).await {
        Ok(Ok(upstream)) => {
            // Only affects latency, so a failure is ignored.
            drop(upstream.set_nodelay(true));
            tunnel::copy_both(client.into(), upstream.into(), limits.idle_timeout).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, port, "failed to connect to the client's proxy"),
        Err(_) => tracing::debug!(port, "connecting to the client's proxy timed out"),
    }
}

/// Validates the settings. `allowUpstreamProxy` is accepted without effect: the proxy always
/// connects directly, because an upstream proxy would resolve the name again. Members about unix
/// sockets matter only on macOS.
pub fn check_settings(network: &NetworkProxy) -> Result<CheckedSettings, SettingsError> {
    let proxy = &network.proxy;
    if !proxy.enabled {
        return Err(SettingsError::Disabled);
    }
    if network.policy_decision_timeout_ms == Some(0) {
        return Err(SettingsError::ZeroTimeout);
    }
    if let Some(member) = proxy.masking_member() {
        return Err(SettingsError::Credentials(member));
    }
    Ok(CheckedSettings {
        policy: HostPolicy::new(proxy)?,
        mode: proxy.mode,
        socks: proxy.enable_socks5,
        datagrams: proxy.enable_socks5 && proxy.enable_socks5_udp,
        local_binding: proxy.allow_local_binding,
        decision_timeout: network
            .policy_decision_timeout_ms
            .map(Duration::from_millis),
    })
}

/// Validated settings.
#[derive(Clone, Debug)]
pub struct CheckedSettings {
    pub(crate) policy: HostPolicy,
    pub(crate) mode: ProxyMode,
    pub(crate) socks: bool,
    pub(crate) datagrams: bool,
    pub(crate) local_binding: bool,
    pub(crate) decision_timeout: Option<Duration>,
}

impl CheckedSettings {
    /// Returns whether the proxy needs a listener for SOCKS5.
    pub fn has_socks(&self) -> bool {
        self.socks
    }

    /// Returns whether the proxy needs a socket for SOCKS5 datagrams.
    pub fn has_socks_udp(&self) -> bool {
        self.datagrams
    }

    /// Returns whether the process may connect to, and listen on, its own host.
    pub fn allows_local_binding(&self) -> bool {
        self.local_binding
    }

    /// Returns whether the client decides about hosts that the policy leaves undecided. The process
    /// then needs an id of 1 to 256 bytes.
    pub fn requires_decisions(&self) -> bool {
        self.decision_timeout.is_some()
    }
}

/// Why the settings are invalid. Caller: all variants.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The settings disable the proxy.
    #[error("`networkProxy.proxy.enabled` is false")]
    Disabled,
    /// The timeout leaves no time for a decision.
    #[error("`networkProxy.policyDecisionTimeoutMs` is zero")]
    ZeroTimeout,
    /// This server does not mask credentials.
    #[error(
        "`networkProxy.proxy.{0}` asks for masked credentials, which this server does not support"
    )]
    Credentials(&'static str),
    /// A pattern is invalid.
    #[error(transparent)]
    Policy(#[from] HostPolicyError),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use exec_wire::network::{DomainRule, ProxySettings};

    use super::*;

    type BreakSettings = fn(&mut NetworkProxy);

    fn settings() -> NetworkProxy {
        NetworkProxy {
            proxy: ProxySettings {
                enabled: true,
                enable_socks5: true,
                enable_socks5_udp: true,
                allow_upstream_proxy: true,
                dangerously_allow_all_unix_sockets: true,
                allow_local_binding: false,
                mode: ProxyMode::Limited,
                domains: None,
                unix_sockets: None,
                review_domains: None,
                credential_masking: false,
                credential_providers: BTreeMap::new(),
            },
            audit_metadata: None,
            environment_id: None,
            execution_id: None,
            policy_decision_timeout_ms: Some(1),
        }
    }

    #[test]
    fn valid_settings_are_accepted() {
        let checked = check_settings(&settings()).unwrap();
        assert!(checked.has_socks() && checked.has_socks_udp() && checked.requires_decisions());
        assert!(!checked.allows_local_binding());
    }

    #[test]
    fn invalid_settings_are_refused_and_the_member_named() {
        let cases: [(BreakSettings, &str); 5] = [
            (|s| s.proxy.enabled = false, "proxy.enabled"),
            (
                |s| s.policy_decision_timeout_ms = Some(0),
                "policyDecisionTimeoutMs",
            ),
            (|s| s.proxy.credential_masking = true, "credentialMasking"),
            (
                |s| s.proxy.credential_providers = [("a".into(), 1.into())].into(),
                "credentialProviders",
            ),
            (
                |s| s.proxy.domains = Some([("a:1".into(), DomainRule::Allow)].into()),
                "proxy.domains` has the pattern `a:1`",
            ),
        ];
        for (break_settings, expected) in cases {
            let mut settings = settings();
            break_settings(&mut settings);
            let message = check_settings(&settings).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
