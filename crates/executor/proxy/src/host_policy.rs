//! Host policy: evaluates hosts and their addresses against the settings. Pure.
//!
//! Invariants: deny overrides allow. A local host is reachable only if the settings name it or
//! allow local binding; a link-local address only if the settings name that address. Matching a
//! host takes time proportional to its number of labels, not to the number of patterns.
//!
//! Not here: asking the client, name resolution (`policy_gate`).

use std::{collections::BTreeSet, net::IpAddr};

use exec_wire::network::{DomainRule, ProxySettings};

use crate::target_host::{self, HostError, TargetHost};

#[cfg(test)]
mod tests;

/// Hosts that a process may connect to.
#[derive(Clone, Debug, Default)]
pub struct HostPolicy {
    allowed: HostPatterns,
    denied: HostPatterns,
    reviewed: HostPatterns,
    allows_local_binding: bool,
}

impl HostPolicy {
    /// Reads `domains`, `reviewDomains` and `allowLocalBinding` of `settings`.
    pub fn new(settings: &ProxySettings) -> Result<Self, HostPolicyError> {
        let mut policy = Self {
            allows_local_binding: settings.allow_local_binding,
            ..Self::default()
        };
        for (text, rule) in settings.domains.iter().flatten() {
            let invalid = |fault| HostPolicyError::new("domains", text, fault);
            match rule {
                DomainRule::Allow => policy.allowed.add(text).map_err(invalid)?,
                DomainRule::Deny => {
                    policy.denied.add(text).map_err(invalid)?;
                    if policy.denied.any {
                        return Err(invalid(PatternError::DenyAll));
                    }
                }
                DomainRule::None => HostPatterns::default().add(text).map_err(invalid)?,
            }
        }
        for text in settings.review_domains.iter().flatten() {
            let invalid = |fault| HostPolicyError::new("reviewDomains", text, fault);
            policy.reviewed.add(text).map_err(invalid)?;
        }
        Ok(policy)
    }

    /// Evaluates a host by its name alone. [`check_address`](Self::check_address) evaluates the
    /// resolved addresses.
    pub fn evaluate(&self, host: &TargetHost) -> HostVerdict {
        if self.denies(host) {
            return HostVerdict::Deny(DenyReason::Denied);
        }
        let address = host.address();
        let is_local = host.is_localhost() || address.is_some_and(target_host::is_local);
        let is_protected = address.is_some_and(|address| self.is_protected(address));
        if is_protected || is_local && !self.allows_local(host) {
            return HostVerdict::Deny(DenyReason::NotAllowedLocal);
        }
        if !self.allowed.matches(host) {
            HostVerdict::Undecided
        } else if self.reviewed.matches(host) {
            HostVerdict::Review
        } else {
            HostVerdict::Allow
        }
    }

    /// Returns whether an allowed `host` may be reached at `address`. Allowing a name does not
    /// allow private addresses, because the owner of the name chooses them.
    pub fn check_address(&self, host: &TargetHost, address: IpAddr) -> Result<(), DenyReason> {
        let address = address.to_canonical();
        if self.denies(&TargetHost::from(address)) {
            return Err(DenyReason::Denied);
        }
        if self.is_protected(address) {
            return Err(DenyReason::NotAllowedLocal);
        }
        let named =
            host.address() == Some(address) || (host.is_localhost() && address.is_loopback());
        if !target_host::is_local(address)
            || self.allows_local_binding
            || named && self.allowed.has_exact(host)
        {
            return Ok(());
        }
        Err(DenyReason::NotAllowedLocal)
    }

    /// Returns whether the host, or an IPv4 address that it embeds, is denied.
    fn denies(&self, host: &TargetHost) -> bool {
        let embedded_ipv4 = match host.address() {
            Some(IpAddr::V6(address)) => target_host::embedded_ipv4(address),
            Some(IpAddr::V4(_)) | None => None,
        };
        self.denied.matches(host)
            || embedded_ipv4
                .is_some_and(|inner| self.denied.matches(&TargetHost::from(IpAddr::V4(inner))))
    }

    /// Returns whether `address` is link-local or a metadata service, and not allowed literally.
    /// Neither a name nor `allowLocalBinding` allows it.
    fn is_protected(&self, address: IpAddr) -> bool {
        target_host::is_link_local(address) && !self.allowed.has_exact(&TargetHost::from(address))
    }

    fn allows_local(&self, host: &TargetHost) -> bool {
        self.allows_local_binding || self.allowed.has_exact(host)
    }
}

/// Result of evaluating a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HostVerdict {
    /// The host is allowed.
    Allow,
    /// The host is allowed, unless the client denies it.
    Review,
    /// The host is denied.
    Deny(DenyReason),
    /// No pattern applies.
    Undecided,
}

/// Why a host is denied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DenyReason {
    /// A pattern denies it.
    Denied,
    /// No pattern allows it.
    NotAllowed,
    /// It is local or in a private network.
    NotAllowedLocal,
    /// The proxy mode does not allow the request.
    MethodNotAllowed,
}

impl DenyReason {
    /// Returns the reason as it appears in decision records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NotAllowed => "not_allowed",
            Self::NotAllowedLocal => "not_allowed_local",
            Self::MethodNotAllowed => "method_not_allowed",
        }
    }
}

/// An invalid pattern in the settings.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`networkProxy.proxy.{member}` has the pattern `{pattern}`, which is invalid: {fault}")]
pub struct HostPolicyError {
    member: &'static str,
    pattern: String,
    fault: PatternError,
}

impl HostPolicyError {
    fn new(member: &'static str, pattern: &str, fault: PatternError) -> Self {
        // Limit the size of the message.
        let pattern = pattern.chars().take(MAX_QUOTED).collect();
        Self {
            member,
            pattern,
            fault,
        }
    }
}

/// Maximum length of a pattern in an error message.
const MAX_QUOTED: usize = 256;

/// A set of host patterns: one host, the subdomains of a domain, a domain with its subdomains, or
/// any host.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostPatterns {
    any: bool,
    exact: BTreeSet<String>,
    subdomains: BTreeSet<String>,
    domain_trees: BTreeSet<String>,
}

impl HostPatterns {
    /// Adds a pattern.
    pub(crate) fn add(&mut self, text: &str) -> Result<(), PatternError> {
        if text == "*" {
            self.any = true;
        } else if let Some(domain) = text.strip_prefix("**.") {
            self.domain_trees.insert(parse_domain(domain)?);
        } else if let Some(domain) = text.strip_prefix("*.") {
            self.subdomains.insert(parse_domain(domain)?);
        } else {
            self.exact.insert(parse_host(text)?.as_str().to_owned());
        }
        Ok(())
    }

    /// Returns whether the set contains exactly this host.
    pub(crate) fn has_exact(&self, host: &TargetHost) -> bool {
        self.exact.contains(host.as_str())
    }

    /// Returns whether a pattern matches.
    pub(crate) fn matches(&self, host: &TargetHost) -> bool {
        if self.any || self.has_exact(host) {
            return true;
        }
        if host.address().is_some() {
            return false;
        }
        let name = host.as_str();
        let above = name.match_indices('.').map(|(dot, _)| &name[dot + 1..]);
        self.domain_trees.contains(name)
            || above.into_iter().any(|domain| {
                self.subdomains.contains(domain) || self.domain_trees.contains(domain)
            })
    }
}

/// Why a pattern is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// Caller: it contains a port.
    #[error("patterns must not contain a port")]
    Port,
    /// Caller: a wildcard is not the first label.
    #[error("not `*`, `*.domain`, `**.domain` or a host")]
    Wildcard,
    /// Caller: an address has no subdomains.
    #[error("an address cannot have a wildcard")]
    BelowAddress,
    /// Caller: to deny everything, allow nothing.
    #[error("`*` can only be allowed")]
    DenyAll,
    /// Caller: it is not a valid host.
    #[error("{0}")]
    Host(HostError),
}

fn parse_domain(text: &str) -> Result<String, PatternError> {
    let host = parse_host(text)?;
    match host.address() {
        Some(_) => Err(PatternError::BelowAddress),
        None => Ok(host.as_str().to_owned()),
    }
}

fn parse_host(text: &str) -> Result<TargetHost, PatternError> {
    if text.contains('*') {
        return Err(PatternError::Wildcard);
    }
    TargetHost::parse(text).map_err(|error| match text.rsplit_once(':') {
        Some((host, port)) if is_port(port) && TargetHost::parse(host).is_ok() => {
            PatternError::Port
        }
        Some(_) | None => PatternError::Host(error),
    })
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
