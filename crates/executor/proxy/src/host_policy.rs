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

use crate::target_host::{self, Host, HostError};

#[cfg(test)]
mod tests;

/// Which hosts a process may reach.
#[derive(Clone, Debug, Default)]
pub struct HostPolicy {
    allowed: Patterns,
    denied: Patterns,
    reviewed: Patterns,
    local: Local,
}

impl HostPolicy {
    /// Reads `domains`, `reviewDomains` and `allowLocalBinding` of `settings`.
    pub fn new(settings: &ProxySettings) -> Result<Self, PolicyError> {
        let mut policy = Self::default();
        if settings.allow_local_binding {
            policy.local = Local::Reachable;
        }
        for (text, rule) in settings.domains.iter().flatten() {
            let bad = |fault| PolicyError::new("domains", text, fault);
            match rule {
                DomainRule::Allow => policy.allowed.add(text).map_err(bad)?,
                DomainRule::Deny => {
                    policy.denied.add(text).map_err(bad)?;
                    if policy.denied.any() {
                        return Err(bad(PatternError::DenyAll));
                    }
                }
                DomainRule::None => Patterns::default().add(text).map_err(bad)?,
            }
        }
        for text in settings.review_domains.iter().flatten() {
            let bad = |fault| PolicyError::new("reviewDomains", text, fault);
            policy.reviewed.add(text).map_err(bad)?;
        }
        Ok(policy)
    }

    /// Judges a host by its name alone. What the name leads to is for
    /// [`permits`](Self::permits).
    pub fn judge(&self, host: &Host) -> Verdict {
        if self.denies(host) {
            return Verdict::Deny(Reason::Denied);
        }
        let local = host.is_localhost() || host.address().is_some_and(target_host::is_local);
        if local && !self.reaches_local(host) {
            return Verdict::Deny(Reason::NotAllowedLocal);
        }
        if host.address().is_some_and(|address| self.guards(address)) {
            return Verdict::Deny(Reason::NotAllowedLocal);
        }
        if !self.allowed.contain(host) {
            Verdict::Undecided
        } else if self.reviewed.contain(host) {
            Verdict::Review
        } else {
            Verdict::Allow
        }
    }

    /// Says whether `host`, which may be reached, may be reached at `address`. A name that is
    /// allowed says nothing about private addresses, since whoever owns it chooses them.
    pub fn permits(&self, host: &Host, address: IpAddr) -> Result<(), Reason> {
        let address = address.to_canonical();
        if self.denies(&Host::from(address)) {
            return Err(Reason::Denied);
        }
        if self.guards(address) {
            return Err(Reason::NotAllowedLocal);
        }
        let named =
            host.address() == Some(address) || (host.is_localhost() && address.is_loopback());
        if !target_host::is_local(address) || self.local == Local::Reachable {
            return Ok(());
        }
        if named && self.allowed.name(host) {
            return Ok(());
        }
        Err(Reason::NotAllowedLocal)
    }

    /// An address that carries another one is denied together with it.
    fn denies(&self, host: &Host) -> bool {
        let carried = match host.address() {
            Some(IpAddr::V6(address)) => target_host::carried(address),
            Some(IpAddr::V4(_)) | None => None,
        };
        self.denied.contain(host)
            || carried.is_some_and(|inner| self.denied.contain(&Host::from(IpAddr::V4(inner))))
    }

    /// Tells whether `address` is link-local or a metadata service, and not allowed literally.
    /// Neither a name nor `allowLocalBinding` opens it.
    fn guards(&self, address: IpAddr) -> bool {
        target_host::is_link_local(address) && !self.allowed.name(&Host::from(address))
    }

    fn reaches_local(&self, host: &Host) -> bool {
        self.local == Local::Reachable || self.allowed.name(host)
    }
}

/// What the policy says about a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It may be reached.
    Allow,
    /// It may be reached, unless somebody who can be asked objects.
    Review,
    /// It may not be reached.
    Deny(Reason),
    /// Nothing is said about it.
    Undecided,
}

/// Why a host may not be reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// A pattern denies it.
    Denied,
    /// No pattern allows it.
    NotAllowed,
    /// It is on this machine or in a private network.
    NotAllowedLocal,
    /// The mode of the proxy does not take such requests.
    MethodNotAllowed,
}

impl Reason {
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
pub struct PolicyError {
    member: &'static str,
    pattern: String,
    fault: PatternError,
}

impl PolicyError {
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
enum Local {
    #[default]
    OutOfReach,
    Reachable,
}

/// How much of a pattern an error repeats.
const MAX_QUOTED: usize = 256;

/// A set of patterns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns {
    any: bool,
    exact: BTreeSet<String>,
    below: BTreeSet<String>,
    apex_and_below: BTreeSet<String>,
}

impl Patterns {
    /// Adds a pattern.
    pub(crate) fn add(&mut self, text: &str) -> Result<(), PatternError> {
        if text == "*" {
            self.any = true;
        } else if let Some(domain) = text.strip_prefix("**.") {
            self.apex_and_below.insert(domain_of(domain)?);
        } else if let Some(domain) = text.strip_prefix("*.") {
            self.below.insert(domain_of(domain)?);
        } else {
            self.exact.insert(host_of(text)?.as_str().to_owned());
        }
        Ok(())
    }

    /// Says whether `*` is among them.
    pub(crate) fn any(&self) -> bool {
        self.any
    }

    /// Says whether one of them is this very host.
    pub(crate) fn name(&self, host: &Host) -> bool {
        self.exact.contains(host.as_str())
    }

    /// Says whether one of them matches.
    pub(crate) fn contain(&self, host: &Host) -> bool {
        if self.any || self.name(host) {
            return true;
        }
        if host.address().is_some() {
            return false;
        }
        let name = host.as_str();
        let above = name.match_indices('.').map(|(dot, _)| &name[dot + 1..]);
        self.apex_and_below.contains(name)
            || above
                .into_iter()
                .any(|domain| self.below.contains(domain) || self.apex_and_below.contains(domain))
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

fn domain_of(text: &str) -> Result<String, PatternError> {
    let host = host_of(text)?;
    match host.address() {
        Some(_) => Err(PatternError::BelowAddress),
        None => Ok(host.as_str().to_owned()),
    }
}

fn host_of(text: &str) -> Result<Host, PatternError> {
    if text.contains('*') {
        return Err(PatternError::Wildcard);
    }
    Host::parse(text).map_err(|error| match text.rsplit_once(':') {
        Some((host, port)) if is_port(port) && Host::parse(host).is_ok() => PatternError::Port,
        Some(_) | None => PatternError::Host(error),
    })
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
