//! Managed network of a process: proxy settings, policy requests and policy decisions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::ProcessId;

/// `managedNetwork` of `process/start`: exceptions of a sandbox without network.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ManagedNetwork {
    /// Loopback ports of the host that stay reachable because the client runs a proxy there.
    #[serde(default)]
    pub loopback_ports: Vec<u16>,
    /// Allows the process to listen on its own loopback, and to connect to it.
    #[serde(default)]
    pub allow_local_binding: bool,
    /// Unix sockets that the process may connect to.
    #[serde(default)]
    pub allow_unix_sockets: Vec<String>,
    /// Allows connections to every unix socket.
    #[serde(default)]
    pub dangerously_allow_all_unix_sockets: bool,
}

/// `networkProxy` of `process/start`: a proxy that the server runs for this process.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkProxy {
    /// Proxy settings.
    pub proxy: ProxySettings,
    /// Identity for audit records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit_metadata: Option<Value>,
    /// Environment id chosen by the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_id: Option<String>,
    /// Run id chosen by the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<String>,
    /// Timeout of policy requests to the client about undecided hosts. Absent: no requests. Not
    /// zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub policy_decision_timeout_ms: Option<u64>,
}

impl NetworkProxy {
    /// Creates a proxy that reaches only servers on the loopback of the host.
    ///
    /// `allowLocalBinding` stays off: it would exempt loopback from the proxy, and a sandbox has
    /// its own loopback.
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

/// Settings of a proxy.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProxySettings {
    /// Enables the proxy. `false` is refused.
    pub enabled: bool,
    /// Enables SOCKS5.
    pub enable_socks5: bool,
    /// Enables UDP over SOCKS5.
    pub enable_socks5_udp: bool,
    /// Allows an upstream proxy from the server's environment.
    pub allow_upstream_proxy: bool,
    /// Applies to macOS only.
    pub dangerously_allow_all_unix_sockets: bool,
    /// Allows destinations on this machine and in private networks.
    pub allow_local_binding: bool,
    /// Permitted requests.
    pub mode: ProxyMode,
    /// Host patterns.
    #[serde(default)]
    pub domains: Option<BTreeMap<String, DomainRule>>,
    /// Applies to macOS only.
    #[serde(default)]
    pub unix_sockets: Option<BTreeMap<String, SocketRule>>,
    /// Hosts that require a policy request although they are allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_domains: Option<Vec<String>>,
    /// Masks credentials. `true` is refused, because this server does not support masking.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub credential_masking: bool,
    /// Credential providers. Refused unless empty, like masking.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_providers: BTreeMap<String, Value>,
}

impl ProxySettings {
    /// Returns the member that requests credential masking, if any.
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

/// Requests that a proxy permits.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ProxyMode {
    /// GET, HEAD and OPTIONS over plain HTTP.
    Limited,
    /// All requests.
    Full,
}

/// Rule for hosts that match a pattern.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum DomainRule {
    /// Allows the hosts.
    Allow,
    /// Denies the hosts, regardless of other matches.
    Deny,
    /// Ignores the pattern.
    None,
}

/// Rule for a unix socket.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SocketRule {
    /// Allows connections.
    Allow,
    /// Denies connections.
    Deny,
    /// Ignores the rule.
    None,
}

/// `network/policyRequest`: the server asks the client for a policy decision.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyRequest {
    /// Process that connects.
    pub process_id: ProcessId,
    /// Destination of the connection.
    pub request: NetworkDestination,
}

/// Destination of a connection.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkDestination {
    /// Protocol.
    pub protocol: NetworkProtocol,
    /// Host as named by the process.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkProtocol {
    /// Plain HTTP request.
    Http,
    /// HTTP CONNECT.
    HttpsConnect,
    /// TCP over SOCKS5.
    Socks5Tcp,
    /// UDP over SOCKS5.
    Socks5Udp,
}

/// Result of `network/policyRequest`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PolicyResponse {
    /// Decision of the client.
    pub decision: NetworkDecision,
}

/// Decision about a destination.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NetworkDecision {
    /// Allows the connection.
    Allow,
    /// Denies the connection.
    Deny {
        /// At most 1024 bytes, without control characters.
        #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
        reason: String,
    },
    /// Denies the connection until a user has been asked.
    Ask {
        /// At most 1024 bytes, without control characters.
        #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
        reason: String,
    },
}

/// `network/policyDecision`: audit record of a decision.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyDecision {
    /// Process that connected.
    pub process_id: ProcessId,
    /// Time of the decision: RFC 3339 with milliseconds, UTC.
    pub timestamp: String,
    /// Scope of the decision: `domain`.
    pub scope: String,
    /// `allow`, `deny` or `ask`.
    pub decision: String,
    /// Source of the decision: `baseline_policy`, `mode_guard` or `decider`.
    pub source: String,
    /// Reason for the decision.
    pub reason: String,
    /// Protocol of the connection.
    pub protocol: String,
    /// Host as named by the process.
    pub host: String,
    /// Port.
    pub port: u16,
    /// HTTP method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Address of the process's end of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The decision overrode the static policy.
    pub policy_override: bool,
}
