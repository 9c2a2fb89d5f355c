//! Cases of the conformance kit: messages to send and patterns of the messages to expect.
//!
//! The cases are data, `docs/conformance/cases.json`, so that other programs can run them as well;
//! `docs/conformance.md` describes the format.

use clap::ValueEnum;
use exec_wire::initialize::ProtocolExtension;
use serde::Deserialize;
use serde_json::Value;

const CASES: &str = include_str!("../../../../../../docs/conformance/cases.json");

/// Returns all cases.
///
/// # Errors
/// If the embedded file is malformed, which a test excludes.
pub(super) fn all() -> Result<Vec<ConformanceCase>, serde_json::Error> {
    serde_json::from_str(CASES)
}

/// Part of the protocol that a case belongs to.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub enum ConformanceProfile {
    /// What the stock server has.
    #[default]
    Stock,
    /// Everything that PROTOCOL.md describes.
    Full,
}

/// One promise of the protocol.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConformanceCase {
    /// Area and promise, such as `process: exit code is reported`.
    pub(super) name: String,
    #[serde(default)]
    pub(super) profile: ConformanceProfile,
    /// Extensions that the case asks for. It is skipped unless all are granted.
    #[serde(default)]
    pub(super) extensions: Vec<ProtocolExtension>,
    /// Methods without parameters that the case needs. It is skipped if the server, as it was
    /// started, does not offer one.
    #[serde(default)]
    pub(super) methods: Vec<String>,
    /// Whether the first connection has completed its handshake before the first step.
    #[serde(default = "default_true")]
    pub(super) handshake: bool,
    pub(super) steps: Vec<CaseStep>,
}

fn default_true() -> bool {
    true
}

impl ConformanceCase {
    /// Returns whether the case opens further connections, which a server on stdio does not allow.
    pub(super) fn needs_listener(&self) -> bool {
        let opens = |step: &CaseStep| matches!(step, CaseStep::Connect(_));
        self.steps.iter().any(opens)
    }
}

/// Step of a case.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum CaseStep {
    /// Opens a connection of this name and continues on it. The first one is `a`.
    Connect(String),
    /// Continues on another connection.
    On(String),
    /// Drops a connection, without telling the server.
    Drop(String),
    /// Sends `initialize` with these additional members, and `initialized`.
    Handshake(Value),
    /// Sends a text as it is, or a value as JSON.
    Send(Value),
    /// Sends a request and waits for its response.
    Call(CallStep),
    /// Waits for the next message that matches. With an `id` and without a `method`, it waits for
    /// the response with that id, which must match.
    Expect(Value),
    /// Collects the events of a process up to its close.
    Finish(FinishStep),
}

/// Request and the pattern of its response: one of `result` and `error`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallStep {
    pub(super) method: String,
    /// Absent: no parameters.
    pub(super) params: Option<Value>,
    /// Pattern of the result. Absent without `error`: any result.
    pub(super) result: Option<Value>,
    /// Pattern of the code.
    pub(super) error: Option<Value>,
}

/// Process and patterns of what it did. Numbers must be gapless in any case, with one `exited`, and
/// `closed` last.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FinishStep {
    pub(super) process_id: String,
    /// Patterns of the whole text of each stream.
    pub(super) stdout: Option<Value>,
    pub(super) stderr: Option<Value>,
    pub(super) pty: Option<Value>,
    /// Pattern of the parameters of `process/exited`.
    pub(super) exited: Option<Value>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn cases_are_well_formed_and_cover_every_area() {
        let cases = all().unwrap();
        let names: BTreeSet<&str> = cases.iter().map(|case| &*case.name).collect();
        assert_eq!(names.len(), cases.len(), "names are unique");
        let areas: BTreeSet<&str> = names
            .iter()
            .map(|name| name.split_once(": ").expect(name).0)
            .collect();
        let expected = [
            "envelope",
            "errors",
            "exec",
            "fs",
            "history",
            "host",
            "initialize",
            "ordering",
            "ports",
            "process",
            "resume",
            "server",
            "tunnel",
        ];
        assert_eq!(areas, expected.into());
        let stock = |case: &&ConformanceCase| case.profile == ConformanceProfile::Stock;
        assert!(cases.iter().filter(stock).count() >= 50);
        for case in &cases {
            assert!(!case.steps.is_empty(), "{}", case.name);
            assert!(
                !case.extensions.contains(&ProtocolExtension::Unknown),
                "{}",
                case.name
            );
        }
    }
}
