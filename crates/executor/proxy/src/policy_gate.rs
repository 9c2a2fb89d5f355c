//! Policy gate: decides about each connection, records the decision, and connects.
//!
//! Invariant: each connect request yields one record with its outcome. A name is resolved once,
//! after it was allowed, and the connection goes to one of the resulting addresses. Not here: which
//! names and addresses are allowed (`host_policy`).

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use exec_env::environment::NetworkPolicyHook;
use exec_wire::{
    id::ProcessId,
    network::{NetworkDecision, NetworkDestination, NetworkProtocol, PolicyDecision, ProxyMode},
};
use futures_util::future::BoxFuture;
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    time::{error::Elapsed, timeout},
};

use crate::{
    host_policy::{DenyReason, HostPolicy, HostVerdict},
    limits::{self, ProxyLimits},
    target_host::TargetHost,
};

/// Gate that all connections of one process pass.
#[derive(Debug)]
pub(crate) struct PolicyGate {
    pub(crate) policy: HostPolicy,
    pub(crate) mode: ProxyMode,
    pub(crate) process_id: ProcessId,
    pub(crate) policy_hook: Option<Arc<dyn NetworkPolicyHook>>,
    pub(crate) decision_timeout: Option<Duration>,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) limits: ProxyLimits,
    /// Limits concurrent decisions of the client.
    pub(crate) pending_decisions: Semaphore,
}

impl PolicyGate {
    /// Authorizes `request` and connects. Cancel safe.
    pub(crate) async fn connect(
        &self,
        request: &ConnectRequest,
    ) -> Result<TcpStream, ConnectError> {
        let addresses = self.authorize(request).await?;
        let mut failure = ConnectError::Unreachable(io::ErrorKind::HostUnreachable);
        for address in addresses {
            let connecting = self
                .connector
                .connect(SocketAddr::new(address, request.port));
            match timeout(self.limits.connect_timeout, connecting).await {
                Ok(Ok(stream)) => {
                    // Only affects latency, so a failure is ignored.
                    drop(stream.set_nodelay(true));
                    return Ok(stream);
                }
                Ok(Err(error)) => failure = ConnectError::Unreachable(error.kind()),
                Err(Elapsed { .. }) => failure = ConnectError::Unreachable(io::ErrorKind::TimedOut),
            }
        }
        Err(failure)
    }

    /// Connects a tunnel, which the limited mode does not allow.
    pub(crate) async fn connect_tunnel(
        &self,
        request: &ConnectRequest,
    ) -> Result<TcpStream, ConnectError> {
        match self.mode {
            ProxyMode::Limited => Err(self.deny_by_mode(request)),
            ProxyMode::Full => self.connect(request).await,
        }
    }

    /// Authorizes `request` and returns the addresses to connect to.
    pub(crate) async fn authorize(
        &self,
        request: &ConnectRequest,
    ) -> Result<Vec<IpAddr>, ConnectError> {
        let decision = self.decide(request).await;
        if decision.kind != DecisionKind::Allow {
            return Err(self.deny(request, decision));
        }
        let resolved = match self.resolve(&request.host).await {
            Ok(resolved) => resolved,
            Err(error) => {
                self.record(request, decision);
                return Err(error);
            }
        };
        let mut addresses = Vec::new();
        let mut denial = None;
        for address in resolved {
            match self.policy.check_address(&request.host, address) {
                Ok(()) => addresses.push(address.to_canonical()),
                Err(reason) => denial = Some(reason),
            }
        }
        match denial {
            Some(reason) if addresses.is_empty() => Err(self.deny(
                request,
                GateDecision::by_policy(DecisionKind::Deny, reason.as_str()),
            )),
            Some(_) | None => {
                self.record(request, decision);
                addresses.truncate(limits::MAX_ADDRESSES);
                Ok(addresses)
            }
        }
    }

    /// Denies `request` because the proxy mode does not allow it.
    pub(crate) fn deny_by_mode(&self, request: &ConnectRequest) -> ConnectError {
        let mut decision =
            GateDecision::by_policy(DecisionKind::Deny, DenyReason::MethodNotAllowed.as_str());
        decision.source = DecisionSource::ModeGuard;
        self.deny(request, decision)
    }

    async fn decide(&self, request: &ConnectRequest) -> GateDecision {
        let verdict = self.policy.evaluate(&request.host);
        let overrides = match verdict {
            HostVerdict::Deny(reason) => {
                return GateDecision::by_policy(DecisionKind::Deny, reason.as_str());
            }
            HostVerdict::Allow => {
                return GateDecision::by_policy(DecisionKind::Allow, ALLOWED_REASON);
            }
            HostVerdict::Review => false,
            HostVerdict::Undecided => true,
        };
        match (&self.policy_hook, self.decision_timeout) {
            (Some(policy_hook), Some(timeout)) => {
                self.ask_policy_hook(&**policy_hook, timeout, request, overrides)
                    .await
            }
            _ if overrides => {
                GateDecision::by_policy(DecisionKind::Deny, DenyReason::NotAllowed.as_str())
            }
            _ => GateDecision::by_policy(DecisionKind::Allow, ALLOWED_REASON),
        }
    }

    async fn ask_policy_hook(
        &self,
        policy_hook: &dyn NetworkPolicyHook,
        limit: Duration,
        request: &ConnectRequest,
        overrides: bool,
    ) -> GateDecision {
        let no_answer_denial =
            GateDecision::by_policy_hook(DecisionKind::Deny, DenyReason::NotAllowed.as_str());
        let Ok(_permit) = self.pending_decisions.try_acquire() else {
            return no_answer_denial;
        };
        let query = policy_hook.decide(NetworkDestination {
            protocol: request.protocol,
            host: request.host.as_str().to_owned(),
            port: request.port,
        });
        let limit = limit.saturating_add(self.limits.decision_grace);
        match timeout(limit, query).await {
            Ok(NetworkDecision::Allow) => GateDecision {
                overrides,
                ..GateDecision::by_policy_hook(DecisionKind::Allow, ALLOWED_REASON)
            },
            Ok(NetworkDecision::Deny { reason }) if is_valid_reason(&reason) => {
                GateDecision::by_policy_hook(DecisionKind::Deny, &reason)
            }
            Ok(NetworkDecision::Ask { reason }) if is_valid_reason(&reason) => {
                GateDecision::by_policy_hook(DecisionKind::Ask, &reason)
            }
            Ok(NetworkDecision::Deny { .. } | NetworkDecision::Ask { .. })
            | Err(Elapsed { .. }) => no_answer_denial,
        }
    }

    async fn resolve(&self, host: &TargetHost) -> Result<Vec<IpAddr>, ConnectError> {
        if let Some(address) = host.address() {
            return Ok(vec![address]);
        }
        match timeout(
            self.limits.connect_timeout,
            self.connector.resolve(host.as_str()),
        )
        .await
        {
            Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
            Ok(Ok(_) | Err(_)) | Err(Elapsed { .. }) => Err(ConnectError::UnknownHost),
        }
    }

    fn deny(&self, request: &ConnectRequest, decision: GateDecision) -> ConnectError {
        let reason = decision.reason.clone();
        self.record(request, decision);
        ConnectError::Blocked(reason)
    }

    fn record(&self, request: &ConnectRequest, decision: GateDecision) {
        let Some(policy_hook) = &self.policy_hook else {
            return;
        };
        policy_hook.record(PolicyDecision {
            process_id: self.process_id.clone(),
            timestamp: rfc3339(SystemTime::now()),
            scope: "domain".to_owned(),
            decision: decision.kind.as_str().to_owned(),
            source: decision.source.as_str().to_owned(),
            reason: decision.reason,
            protocol: protocol_name(request.protocol).to_owned(),
            host: request.host.as_str().to_owned(),
            port: request.port,
            method: request.method.clone(),
            client: request.client.map(|client| client.to_string()),
            policy_override: decision.overrides,
        });
    }
}

/// A destination that a process wants to connect to.
#[derive(Clone, Debug)]
pub(crate) struct ConnectRequest {
    pub(crate) protocol: NetworkProtocol,
    pub(crate) host: TargetHost,
    pub(crate) port: u16,
    pub(crate) method: Option<String>,
    /// Address of the client of the proxy. Absent: the connection is a tunnel.
    pub(crate) client: Option<SocketAddr>,
}

/// Opens tunnels by the rules of a process's managed network, while its proxy runs. Clones share
/// it.
#[derive(Clone, Debug)]
pub struct TunnelGate(pub(crate) Weak<PolicyGate>);

impl TunnelGate {
    /// Connects to a host as the proxy would, and records the decision as one of SOCKS5.
    ///
    /// # Errors
    /// Fails without connecting anywhere if the rules do not allow the host.
    pub async fn connect(&self, host: TargetHost, port: u16) -> Result<TcpStream, TunnelGateError> {
        let gate = self.0.upgrade().ok_or(TunnelGateError::Ended)?;
        let request = ConnectRequest {
            protocol: NetworkProtocol::Socks5Tcp,
            host,
            port,
            method: None,
            client: None,
        };
        let connected = gate.connect_tunnel(&request).await;
        connected.map_err(|error| match error {
            ConnectError::Blocked(reason) => TunnelGateError::Denied(reason),
            ConnectError::UnknownHost => TunnelGateError::UnknownHost,
            ConnectError::Unreachable(kind) => TunnelGateError::Unreachable(kind.into()),
        })
    }
}

/// Why the gate did not open a tunnel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelGateError {
    /// Caller: the rules deny the host, for this reason.
    #[error("the rules of the managed network deny it ({0})")]
    Denied(String),
    /// Caller: the name does not exist.
    #[error("the name cannot be resolved")]
    UnknownHost,
    /// Host: no address could be reached.
    #[error("it cannot be reached")]
    Unreachable(#[source] io::Error),
    /// Caller: the process has ended, and its proxy with it.
    #[error("the process has ended")]
    Ended,
}

/// Why a connection was not made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ConnectError {
    /// Denied for this reason.
    Blocked(String),
    /// The name cannot be resolved.
    UnknownHost,
    /// No address was reachable. Holds the error of the last attempt.
    Unreachable(io::ErrorKind),
}

#[derive(Debug)]
struct GateDecision {
    kind: DecisionKind,
    source: DecisionSource,
    reason: String,
    overrides: bool,
}

impl GateDecision {
    fn by_policy(kind: DecisionKind, reason: &str) -> Self {
        Self {
            kind,
            source: DecisionSource::Baseline,
            reason: reason.to_owned(),
            overrides: false,
        }
    }

    fn by_policy_hook(kind: DecisionKind, reason: &str) -> Self {
        Self {
            source: DecisionSource::Decider,
            ..Self::by_policy(kind, reason)
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum DecisionKind {
    Allow,
    Deny,
    Ask,
}

impl DecisionKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum DecisionSource {
    Baseline,
    Decider,
    ModeGuard,
}

impl DecisionSource {
    fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline_policy",
            Self::Decider => "decider",
            Self::ModeGuard => "mode_guard",
        }
    }
}

/// Returns the wire name of the protocol.
fn protocol_name(protocol: NetworkProtocol) -> &'static str {
    match protocol {
        NetworkProtocol::Http => "http",
        NetworkProtocol::HttpsConnect => "https_connect",
        NetworkProtocol::Socks5Tcp => "socks5_tcp",
        NetworkProtocol::Socks5Udp => "socks5_udp",
    }
}

fn is_valid_reason(text: &str) -> bool {
    text.len() <= limits::MAX_REASON_BYTES && !text.chars().any(char::is_control)
}

const ALLOWED_REASON: &str = "allowed";

/// Formats `time` as RFC 3339 in UTC, such as `2026-01-31T23:59:59.999Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let written = OffsetDateTime::from(time).format(RECORD_TIME_FORMAT);
    // Cannot fail: the format uses only components that the time has.
    written.unwrap_or_default()
}

const RECORD_TIME_FORMAT: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

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
    use std::{
        net::Ipv4Addr,
        time::{Duration, UNIX_EPOCH},
    };

    use super::*;

    #[test]
    fn known_times_are_formatted() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_735_689_599_042, "2024-12-31T23:59:59.042Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(millis)), text);
        }
    }

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
