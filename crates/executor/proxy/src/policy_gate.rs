//! Decides about each connection, puts the decision on record, and connects.
//!
//! Invariant: there is one record for each wish, and it tells what happened to it. A name is looked
//! up once, after it was allowed, and the connection goes to an address of that answer.
//!
//! Moments as records write them: RFC 3339 in milliseconds, UTC.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use exec_env::network::NetworkWatcher;
use exec_wire::{
    id::ProcessId,
    network::{Decision, Destination, NetworkProtocol, PolicyDecision, ProxyMode},
};
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    time::{error::Elapsed, timeout},
};

use crate::{
    host_policy::{HostPolicy, Reason, Verdict},
    limits::{self, Limits},
    outside::Outside,
    target_host::Host,
};

/// Where all connections of one process pass.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) policy: HostPolicy,
    pub(crate) mode: ProxyMode,
    pub(crate) process_id: ProcessId,
    pub(crate) watcher: Option<Arc<dyn NetworkWatcher>>,
    pub(crate) decision_timeout: Option<Duration>,
    pub(crate) outside: Arc<dyn Outside>,
    pub(crate) limits: Limits,
    /// Questions that may be asked before one is answered.
    pub(crate) questions: Semaphore,
}

impl Gate {
    /// Decides about `wish` and, if it is granted, connects. Cancelling leaves nothing behind.
    pub(crate) async fn connect(&self, wish: &Wish) -> Result<TcpStream, Refusal> {
        let addresses = self.admit(wish).await?;
        let mut failure = Refusal::Unreachable(io::ErrorKind::HostUnreachable);
        for address in addresses {
            let connecting = self.outside.connect(SocketAddr::new(address, wish.port));
            match timeout(self.limits.connect, connecting).await {
                Ok(Ok(stream)) => {
                    // Only a matter of speed: the tunnel works without.
                    drop(stream.set_nodelay(true));
                    return Ok(stream);
                }
                Ok(Err(error)) => failure = Refusal::Unreachable(error.kind()),
                Err(Elapsed { .. }) => failure = Refusal::Unreachable(io::ErrorKind::TimedOut),
            }
        }
        Err(failure)
    }

    /// Decides about `wish`; returns the addresses that it may be reached at.
    pub(crate) async fn admit(&self, wish: &Wish) -> Result<Vec<IpAddr>, Refusal> {
        let ruling = self.rule(wish).await;
        if ruling.outcome != Outcome::Allow {
            return Err(self.refuse(wish, ruling));
        }
        let found = match self.resolve(&wish.host).await {
            Ok(found) => found,
            Err(error) => {
                self.record(wish, ruling);
                return Err(error);
            }
        };
        let mut addresses = Vec::new();
        let mut objection = None;
        for address in found {
            match self.policy.permits(&wish.host, address) {
                Ok(()) => addresses.push(address.to_canonical()),
                Err(reason) => objection = Some(reason),
            }
        }
        match objection {
            Some(reason) if addresses.is_empty() => {
                Err(self.refuse(wish, Ruling::baseline(Outcome::Deny, reason.as_str())))
            }
            Some(_) | None => {
                self.record(wish, ruling);
                addresses.truncate(limits::MAX_ADDRESSES);
                Ok(addresses)
            }
        }
    }

    /// Refuses `wish` because the mode of the proxy does not take such requests.
    pub(crate) fn refuse_by_mode(&self, wish: &Wish) -> Refusal {
        let mut ruling = Ruling::baseline(Outcome::Deny, Reason::MethodNotAllowed.as_str());
        ruling.source = Source::ModeGuard;
        self.refuse(wish, ruling)
    }

    async fn rule(&self, wish: &Wish) -> Ruling {
        let verdict = self.policy.judge(&wish.host);
        let overrides = match verdict {
            Verdict::Deny(reason) => return Ruling::baseline(Outcome::Deny, reason.as_str()),
            Verdict::Allow => return Ruling::baseline(Outcome::Allow, ALLOWED),
            Verdict::Review => false,
            Verdict::Undecided => true,
        };
        match (&self.watcher, self.decision_timeout) {
            (Some(watcher), Some(timeout)) => self.ask(&**watcher, timeout, wish, overrides).await,
            _ if overrides => Ruling::baseline(Outcome::Deny, Reason::NotAllowed.as_str()),
            _ => Ruling::baseline(Outcome::Allow, ALLOWED),
        }
    }

    async fn ask(
        &self,
        watcher: &dyn NetworkWatcher,
        limit: Duration,
        wish: &Wish,
        overrides: bool,
    ) -> Ruling {
        let silence = Ruling::decided(Outcome::Deny, Reason::NotAllowed.as_str());
        let Ok(_question) = self.questions.try_acquire() else {
            return silence;
        };
        let question = watcher.decide(Destination {
            protocol: wish.protocol,
            host: wish.host.as_str().to_owned(),
            port: wish.port,
        });
        let limit = limit.saturating_add(self.limits.decision_grace);
        match timeout(limit, question).await {
            Ok(Decision::Allow) => Ruling {
                overrides,
                ..Ruling::decided(Outcome::Allow, ALLOWED)
            },
            Ok(Decision::Deny { reason }) if is_reason(&reason) => {
                Ruling::decided(Outcome::Deny, &reason)
            }
            Ok(Decision::Ask { reason }) if is_reason(&reason) => {
                Ruling::decided(Outcome::Ask, &reason)
            }
            Ok(Decision::Deny { .. } | Decision::Ask { .. }) | Err(Elapsed { .. }) => silence,
        }
    }

    async fn resolve(&self, host: &Host) -> Result<Vec<IpAddr>, Refusal> {
        if let Some(address) = host.address() {
            return Ok(vec![address]);
        }
        match timeout(self.limits.connect, self.outside.resolve(host.as_str())).await {
            Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
            Ok(Ok(_) | Err(_)) | Err(Elapsed { .. }) => Err(Refusal::Unknown),
        }
    }

    fn refuse(&self, wish: &Wish, ruling: Ruling) -> Refusal {
        let reason = ruling.reason.clone();
        self.record(wish, ruling);
        Refusal::Blocked(reason)
    }

    fn record(&self, wish: &Wish, ruling: Ruling) {
        let Some(watcher) = &self.watcher else {
            return;
        };
        watcher.record(PolicyDecision {
            process_id: self.process_id.clone(),
            timestamp: rfc3339(SystemTime::now()),
            scope: "domain".to_owned(),
            decision: ruling.outcome.as_str().to_owned(),
            source: ruling.source.as_str().to_owned(),
            reason: ruling.reason,
            protocol: protocol_name(wish.protocol).to_owned(),
            host: wish.host.as_str().to_owned(),
            port: wish.port,
            method: wish.method.clone(),
            client: Some(wish.client.to_string()),
            policy_override: ruling.overrides,
        });
    }
}

/// What a process wants to reach, and how.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) protocol: NetworkProtocol,
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) method: Option<String>,
    pub(crate) client: SocketAddr,
}

/// Why a wish was not granted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    /// It was decided so, for this reason.
    Blocked(String),
    /// The name has no address.
    Unknown,
    /// None of the addresses could be connected to. The last one failed so.
    Unreachable(io::ErrorKind),
}

#[derive(Debug)]
struct Ruling {
    outcome: Outcome,
    source: Source,
    reason: String,
    overrides: bool,
}

impl Ruling {
    fn baseline(outcome: Outcome, reason: &str) -> Self {
        Self {
            outcome,
            source: Source::Baseline,
            reason: reason.to_owned(),
            overrides: false,
        }
    }

    fn decided(outcome: Outcome, reason: &str) -> Self {
        Self {
            source: Source::Decider,
            ..Self::baseline(outcome, reason)
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Outcome {
    Allow,
    Deny,
    Ask,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Baseline,
    Decider,
    ModeGuard,
}

impl Source {
    fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline_policy",
            Self::Decider => "decider",
            Self::ModeGuard => "mode_guard",
        }
    }
}

/// The name that the protocol has on the wire.
fn protocol_name(protocol: NetworkProtocol) -> &'static str {
    match protocol {
        NetworkProtocol::Http => "http",
        NetworkProtocol::HttpsConnect => "https_connect",
        NetworkProtocol::Socks5Tcp => "socks5_tcp",
        NetworkProtocol::Socks5Udp => "socks5_udp",
    }
}

fn is_reason(text: &str) -> bool {
    text.len() <= limits::MAX_REASON && !text.chars().any(char::is_control)
}

const ALLOWED: &str = "allowed";

/// Writes `time` as `2026-01-31T23:59:59.999Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let written = OffsetDateTime::from(time).format(RECORD);
    // Every part that the format names is there.
    written.unwrap_or_default()
}

const RECORD: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn known_moments_are_written_right() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_735_689_599_042, "2024-12-31T23:59:59.042Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(millis)), text);
        }
    }
}
