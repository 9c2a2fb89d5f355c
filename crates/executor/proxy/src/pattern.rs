//! Patterns of hosts: one host, what is below a domain, a domain with all below it, any host.
//!
//! Invariant: a look-up costs as much as the host has labels, however many patterns there are.

use std::collections::BTreeSet;

use crate::host::{Host, HostError};

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
