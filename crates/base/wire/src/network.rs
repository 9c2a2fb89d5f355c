//! The managed network of a process: what its proxy allows, who is asked, what is told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::ProcessId;

/// `managedNetwork` of `process/start`: what a sandbox without network may reach all the same.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedNetwork {
    /// Ports of the host's loopback that stay reachable, because a proxy of the client's is there.
    #[serde(default)]
    pub loopback_ports: Vec<u16>,
    /// The process may listen on its own loopback.
    #[serde(default)]
    pub allow_local_binding: bool,
    /// Unix sockets that may be connected to.
    #[serde(default)]
    pub allow_unix_sockets: Vec<String>,
    /// Every unix socket may be connected to.
    #[serde(default)]
    pub dangerously_allow_all_unix_sockets: bool,
}

/// `networkProxy` of `process/start`: a proxy of the process's own, run by the server.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkProxy {
    /// What it does.
    pub proxy: ProxySettings,
    /// Whom to name in audit records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit_metadata: Option<Value>,
    /// The client's name for this environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_id: Option<String>,
    /// The client's name for this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<String>,
    /// Asks the client about hosts that nothing decides, and waits this long. Not zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_decision_timeout_ms: Option<u64>,
}

impl NetworkProxy {
    /// Makes a proxy that reaches servers on the loopback of the host, and nothing else.
    ///
    /// `allowLocalBinding` stays off: it would exempt loopback from the proxy, and a sandbox has a
    /// loopback of its own.
    pub fn for_loopback() -> Self {
        let names = ["localhost", "127.0.0.1", "::1"];
        let domains = names.map(|name| (name.to_owned(), DomainRule::Allow));
        Self {
            proxy: ProxySettings {
                enabled: true,
                enable_socks5: true,
                enable_socks5_udp: false,
                allow_upstream_proxy: false,
                dangerously_allow_all_unix_sockets: false,
                allow_local_binding: false,
                mode: ProxyMode::Full,
                domains: Some(domains.into()),
                unix_sockets: None,
                review_domains: None,
                credential_masking: false,
                credential_providers: BTreeMap::new(),
            },
            audit_metadata: None,
            environment_id: None,
            execution_id: None,
            policy_decision_timeout_ms: None,
        }
    }
}

/// What a proxy does.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxySettings {
    /// There is one. `false` is refused.
    pub enabled: bool,
    /// It speaks SOCKS5, too.
    pub enable_socks5: bool,
    /// Datagrams over SOCKS5.
    pub enable_socks5_udp: bool,
    /// It may go through the proxy that the server's own environment names.
    pub allow_upstream_proxy: bool,
    /// Matters on macOS.
    pub dangerously_allow_all_unix_sockets: bool,
    /// Destinations on this machine and in private networks are allowed.
    pub allow_local_binding: bool,
    /// Which requests it takes.
    pub mode: ProxyMode,
    /// Patterns of hosts.
    #[serde(default)]
    pub domains: Option<BTreeMap<String, DomainRule>>,
    /// Matters on macOS.
    #[serde(default)]
    pub unix_sockets: Option<BTreeMap<String, SocketRule>>,
    /// Hosts that are asked about although they are allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_domains: Option<Vec<String>>,
    /// Hides credentials from the process. `true` is refused: this server does not mask any.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub credential_masking: bool,
    /// Where credentials come from. Refused unless empty, like masking itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_providers: BTreeMap<String, Value>,
}

impl ProxySettings {
    /// Returns the member that asks for masked credentials, if one does.
    pub fn masking_member(&self) -> Option<&'static str> {
        if self.credential_masking {
            Some("credentialMasking")
        } else if self.credential_providers.is_empty() {
            None
        } else {
            Some("credentialProviders")
        }
    }
}

/// Which requests a proxy takes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ProxyMode {
    /// GET, HEAD and OPTIONS in plain HTTP.
    Limited,
    /// All.
    Full,
}

/// What becomes of hosts that match a pattern.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DomainRule {
    /// They are reached.
    Allow,
    /// They are not, whatever else matches.
    Deny,
    /// The pattern says nothing.
    None,
}

/// What becomes of a unix socket.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SocketRule {
    /// It may be connected to.
    Allow,
    /// It may not.
    Deny,
    /// The rule says nothing.
    None,
}

/// Params of `network/policyRequest`, which the server asks the client.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRequest {
    /// Whose connection it is.
    pub process_id: ProcessId,
    /// What it wants to reach.
    pub request: Destination,
}

/// What a process wants to reach.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Destination {
    /// How.
    pub protocol: NetworkProtocol,
    /// The host, as the process named it.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// How a process reaches out.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkProtocol {
    /// A request in plain HTTP.
    Http,
    /// CONNECT.
    HttpsConnect,
    /// A stream over SOCKS5.
    Socks5Tcp,
    /// Datagrams over SOCKS5.
    Socks5Udp,
}

/// Result of `network/policyRequest`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PolicyAnswer {
    /// What the client decided.
    pub decision: Decision,
}

/// What somebody decided about a destination.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Decision {
    /// Reach it.
    Allow,
    /// Do not.
    Deny {
        /// At most 1024 bytes, without control characters.
        reason: String,
    },
    /// Do not now: somebody has to be asked.
    Ask {
        /// At most 1024 bytes, without control characters.
        reason: String,
    },
}

/// Params of the notification `network/policyDecision`: what was decided, for the record.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyDecision {
    /// Whose connection it was.
    pub process_id: ProcessId,
    /// When: RFC 3339, in milliseconds, UTC.
    pub timestamp: String,
    /// What the decision is about: `domain`.
    pub scope: String,
    /// `allow`, `deny` or `ask`.
    pub decision: String,
    /// Who decided: `baseline_policy`, `mode_guard` or `decider`.
    pub source: String,
    /// Why.
    pub reason: String,
    /// How the process reached out.
    pub protocol: String,
    /// The host, as the process named it.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The HTTP method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The process's end of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The decision overrode the static policy.
    pub policy_override: bool,
}
