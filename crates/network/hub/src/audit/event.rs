//! One line.

use exec_transport::http::site::Peer;
use serde::Serialize;

use crate::{
    principal::{Principal, PrincipalName},
    store::{EnvironmentId, RegistrationId, Timestamp},
};

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// What was asked for.
    pub action: Action,
    /// What came of it.
    pub outcome: Outcome,
    /// From where.
    pub peer: Peer,
    /// Who, if they authenticated.
    pub principal: Option<PrincipalName>,
    /// What they authenticated with: an id, never a secret.
    pub evidence: Option<String>,
    /// In which environment.
    pub environment: Option<EnvironmentId>,
    /// Under which registration.
    pub registration: Option<RegistrationId>,
    /// The harness that a validation was about.
    pub harness: Option<PrincipalName>,
}

impl Event {
    /// Begins a line.
    pub fn new(at: Timestamp, action: Action, peer: Peer) -> Self {
        Self {
            at,
            action,
            outcome: Outcome::Allowed,
            peer,
            principal: None,
            evidence: None,
            environment: None,
            registration: None,
            harness: None,
        }
    }

    /// Says who.
    pub fn by(&mut self, principal: &Principal) {
        self.principal = Some(principal.name.clone());
        self.evidence = Some(principal.evidence.to_string());
    }

    /// The line, without its end.
    pub(super) fn line(&self) -> String {
        let (outcome, reason) = match self.outcome {
            Outcome::Allowed => ("allowed", None),
            Outcome::Refused(reason) => ("refused", Some(reason)),
        };
        let line = Line {
            at: self.at.rfc3339(),
            action: self.action,
            outcome,
            reason,
            peer: self.peer.to_string(),
            principal: self.principal.as_ref().map(PrincipalName::as_str),
            evidence: self.evidence.as_deref(),
            environment: self.environment.as_ref().map(EnvironmentId::as_str),
            registration: self.registration.as_ref().map(RegistrationId::as_str),
            harness: self.harness.as_ref().map(PrincipalName::as_str),
        };
        // Strings and nothing else: there is nothing in it that has no JSON.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Action {
    /// An executor offered an environment.
    Register,
    /// A harness asked for the way to one.
    Connect,
    /// An executor asked whether to let a harness in.
    Validate,
    /// An executor offered an environment without relay.
    DirectRegister,
    /// A direct executor opened its socket.
    DirectExecutor,
    /// A harness opened a socket to a direct executor.
    DirectConnect,
    /// Somebody listed environments.
    List,
    /// Somebody removed one.
    Remove,
    /// An executor's relay socket opened.
    ExecutorSocket,
    /// A harness's relay socket opened.
    HarnessSocket,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// They got it.
    Allowed,
    /// They did not; the code says why.
    Refused(&'static str),
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    action: Action,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    environment: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registration: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    harness: Option<&'a str>,
}
