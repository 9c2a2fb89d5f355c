//! What the settings say about a host and about the addresses it has. Pure.
//!
//! Invariant: deny wins, and nothing local is reached unless the settings name it or allow all
//! that is local; a link-local address only if the settings name that address. Not here: asking anybody (`gate`), looking names up (`outside`).

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use exec_wire::network::{DomainRule, ProxySettings};

use crate::{
    address,
    host::Host,
    pattern::{PatternError, Patterns},
};

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
        let local = host.is_localhost() || host.address().is_some_and(address::is_local);
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
        if !address::is_local(address) || self.local == Local::Reachable {
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
            Some(IpAddr::V6(address)) => address::carried(address),
            Some(IpAddr::V4(_)) | None => None,
        };
        self.denied.contain(host)
            || carried.is_some_and(|inner| self.denied.contain(&Host::from(IpAddr::V4(inner))))
    }

    /// Tells whether `address` is link-local or a metadata service, and not allowed literally.
    /// Neither a name nor `allowLocalBinding` opens it.
    fn guards(&self, address: IpAddr) -> bool {
        address::is_link_local(address) && !self.allowed.name(&Host::from(address))
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
