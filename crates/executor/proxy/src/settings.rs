//! Validates the `networkProxy` settings of a request before anything starts.

use std::time::Duration;

use exec_wire::network::{NetworkProxy, ProxyMode};

use crate::host_policy::{HostPolicy, HostPolicyError};

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
