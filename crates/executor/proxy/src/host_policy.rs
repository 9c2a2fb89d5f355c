//! What the settings say about a host and about the addresses it has. Pure.
//!
//! Invariant: deny wins, and nothing local is reached unless the settings name it or allow all
//! that is local; a link-local address only if the settings name that address. Not here: asking anybody (`gate`), looking names up (`outside`).
//!
//! Patterns of hosts: one host, what is below a domain, a domain with all below it, any host.
//!
//! Invariant: a look-up costs as much as the host has labels, however many patterns there are.

use std::{collections::BTreeSet, net::IpAddr};

use exec_wire::network::{DomainRule, ProxySettings};

use crate::target_host::{self, HostError, TargetHost};

#[cfg(test)]
mod tests;

/// Which hosts a process may reach.
#[derive(Clone, Debug, Default)]
pub struct HostPolicy {
    allowed: HostPatterns,
    denied: HostPatterns,
    reviewed: HostPatterns,
    local: LocalAccess,
}

impl HostPolicy {
    /// Reads `domains`, `reviewDomains` and `allowLocalBinding` of `settings`.
    pub fn new(settings: &ProxySettings) -> Result<Self, HostPolicyError> {
        let mut policy = Self::default();
        if settings.allow_local_binding {
            policy.local = LocalAccess::Allowed;
        }
        for (text, rule) in settings.domains.iter().flatten() {
            let invalid = |fault| HostPolicyError::new("domains", text, fault);
            match rule {
                DomainRule::Allow => policy.allowed.add(text).map_err(invalid)?,
                DomainRule::Deny => {
                    policy.denied.add(text).map_err(invalid)?;
                    if policy.denied.matches_all() {
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

    /// Judges a host by its name alone. What the name leads to is for
    /// [`check_address`](Self::permits).
    pub fn evaluate(&self, host: &TargetHost) -> HostVerdict {
        if self.denies(host) {
            return HostVerdict::Deny(DenyReason::Denied);
        }
        let local = host.is_localhost() || host.address().is_some_and(target_host::is_local);
        if local && !self.allows_local(host) {
            return HostVerdict::Deny(DenyReason::NotAllowedLocal);
        }
        if host
            .address()
            .is_some_and(|address| self.is_protected(address))
        {
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

    /// Says whether `host`, which may be reached, may be reached at `address`. A name that is
    /// allowed says nothing about private addresses, since whoever owns it chooses them.
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
        if !target_host::is_local(address) || self.local == LocalAccess::Allowed {
            return Ok(());
        }
        if named && self.allowed.has_exact(host) {
            return Ok(());
        }
        Err(DenyReason::NotAllowedLocal)
    }

    /// An address that carries another one is denied together with it.
    fn denies(&self, host: &TargetHost) -> bool {
        let embedded_ipv4 = match host.address() {
            Some(IpAddr::V6(address)) => target_host::embedded_ipv4(address),
            Some(IpAddr::V4(_)) | None => None,
        };
        self.denied.matches(host)
            || embedded_ipv4
                .is_some_and(|inner| self.denied.matches(&TargetHost::from(IpAddr::V4(inner))))
    }

    /// Tells whether `address` is link-local or a metadata service, and not allowed literally.
    /// Neither a name nor `allowLocalBinding` opens it.
    fn is_protected(&self, address: IpAddr) -> bool {
        target_host::is_link_local(address) && !self.allowed.has_exact(&TargetHost::from(address))
    }

    fn allows_local(&self, host: &TargetHost) -> bool {
        self.local == LocalAccess::Allowed || self.allowed.has_exact(host)
    }
}

/// What the policy says about a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HostVerdict {
    /// It may be reached.
    Allow,
    /// It may be reached, unless somebody who can be asked objects.
    Review,
    /// It may not be reached.
    Deny(DenyReason),
    /// Nothing is said about it.
    Undecided,
}

/// Why a host may not be reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DenyReason {
    /// A pattern denies it.
    Denied,
    /// No pattern allows it.
    NotAllowed,
    /// It is on this machine or in a private network.
    NotAllowedLocal,
    /// The mode of the proxy does not take such requests.
    MethodNotAllowed,
}

impl DenyReason {
    /// Returns the reason as records tell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NotAllowed => "not_allowed",
            Self::NotAllowedLocal => "not_allowed_local",
            Self::MethodNotAllowed => "method_not_allowed",
        }
    }
}

/// Why the patterns of some settings are no policy.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`networkProxy.proxy.{member}` has the pattern `{pattern}`, which is {fault}")]
pub struct HostPolicyError {
    member: &'static str,
    pattern: String,
    fault: PatternError,
}

impl HostPolicyError {
    fn new(member: &'static str, pattern: &str, fault: PatternError) -> Self {
        // A message carries enough of a long pattern to find it.
        let pattern = pattern.chars().take(MAX_QUOTED).collect();
        Self {
            member,
            pattern,
            fault,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum LocalAccess {
    #[default]
    Denied,
    Allowed,
}

/// How much of a pattern an error repeats.
const MAX_QUOTED: usize = 256;

/// A set of patterns.
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

    /// Says whether `*` is among them.
    pub(crate) fn matches_all(&self) -> bool {
        self.any
    }

    /// Says whether one of them is this very host.
    pub(crate) fn has_exact(&self, host: &TargetHost) -> bool {
        self.exact.contains(host.as_str())
    }

    /// Says whether one of them matches.
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

/// What is wrong with a pattern.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// Caller: it names a port.
    #[error("a host with a port; patterns are about hosts only")]
    Port,
    /// Caller: a star stands elsewhere than before the first dot.
    #[error("not `*`, `*.domain`, `**.domain` or a host")]
    Wildcard,
    /// Caller: an address has nothing below it.
    #[error("a wildcard before an address")]
    BelowAddress,
    /// Caller: to deny everything, allow nothing.
    #[error("for allowing only")]
    DenyAll,
    /// Caller: no host is written so.
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
