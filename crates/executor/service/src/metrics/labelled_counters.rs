//! Counters with a label: exit causes, failed starts and network policy decisions.

use exec_env::environment::StartError;
use exec_wire::process::ExitCause;

use super::Counter;

/// Ended processes by exit cause.
#[derive(Debug, Default)]
pub struct ExitCauseCounters([Counter; CAUSES.len()]);

/// Label of each exit cause.
const CAUSES: [(ExitCause, &str); 9] = [
    (ExitCause::Exit, "exit"),
    (ExitCause::Signal, "signal"),
    (ExitCause::Terminated, "terminated"),
    (ExitCause::WallLimit, "wall_limit"),
    (ExitCause::IdleLimit, "idle_limit"),
    (ExitCause::MemoryLimit, "memory_limit"),
    (ExitCause::ProcessLimit, "process_limit"),
    (ExitCause::Lost, "lost"),
    (ExitCause::Unknown, "unknown"),
];

impl ExitCauseCounters {
    pub(crate) fn count(&self, cause: ExitCause) {
        let index = CAUSES.iter().position(|(known, _)| *known == cause);
        if let Some(counter) = index.and_then(|index| self.0.get(index)) {
            counter.increment();
        }
    }

    /// Returns the label and count of each cause.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = CAUSES.iter().map(|(_, name)| *name);
        names.zip(self.0.iter().map(Counter::value))
    }

    pub(crate) fn name(cause: ExitCause) -> &'static str {
        let known = CAUSES.iter().find(|(known, _)| *known == cause);
        known.map_or("unknown", |(_, name)| name)
    }
}

/// Why a process did not start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StartFailureReason {
    /// The sandbox policy is invalid or cannot be enforced on this host.
    Sandbox,
    /// Another parameter is invalid.
    Params,
    /// The session is at its process limit, or the id is in use.
    Table,
    /// The operating system failed to start it.
    Spawn,
    /// It was terminated before it started, or its session ended.
    Cancelled,
    /// Any other reason.
    Other,
}

impl StartFailureReason {
    const ALL: [(Self, &str); 6] = [
        (Self::Sandbox, "sandbox"),
        (Self::Params, "params"),
        (Self::Table, "table"),
        (Self::Spawn, "spawn"),
        (Self::Cancelled, "cancelled"),
        (Self::Other, "other"),
    ];

    pub(crate) fn of(error: &StartError) -> Self {
        match error {
            StartError::Refused { field, .. } if *field == "sandbox" => Self::Sandbox,
            StartError::EmptyArgv
            | StartError::EmptyProgram
            | StartError::Cwd(_)
            | StartError::Refused { .. } => Self::Params,
            StartError::Spawn { .. } => Self::Spawn,
            StartError::Cancelled => Self::Cancelled,
            StartError::Remote(_) | StartError::Disconnected(_) | _ => Self::Other,
        }
    }
}

/// Failed starts by reason.
#[derive(Debug, Default)]
pub struct StartFailureCounters([Counter; StartFailureReason::ALL.len()]);

impl StartFailureCounters {
    pub(crate) fn count(&self, refusal: StartFailureReason) {
        self.0[refusal as usize].increment();
    }

    /// Returns the label and count of each reason.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let row = |(refusal, name): &(StartFailureReason, &'static str)| {
            (*name, self.0[*refusal as usize].value())
        };
        StartFailureReason::ALL
            .iter()
            .map(row)
            .collect::<Vec<_>>()
            .into_iter()
    }
}

/// Network policy decision about one connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PolicyDecisionKind {
    /// Allowed.
    Allow,
    /// Denied.
    Deny,
    /// A person must decide.
    Ask,
}

impl PolicyDecisionKind {
    const ALL: [(Self, &str); 3] = [
        (Self::Allow, "allow"),
        (Self::Deny, "deny"),
        (Self::Ask, "ask"),
    ];

    /// Parses the name on the wire.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let known = Self::ALL.iter().find(|(_, name)| *name == word);
        known.map(|(ruling, _)| *ruling)
    }
}

/// Network policy decisions by kind.
#[derive(Debug, Default)]
pub struct PolicyDecisionCounters([Counter; PolicyDecisionKind::ALL.len()]);

impl PolicyDecisionCounters {
    pub(crate) fn count(&self, ruling: PolicyDecisionKind) {
        self.0[ruling as usize].increment();
    }

    /// Returns the label and count of each decision.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let row = |(ruling, name): &(PolicyDecisionKind, &'static str)| {
            (*name, self.0[*ruling as usize].value())
        };
        PolicyDecisionKind::ALL
            .iter()
            .map(row)
            .collect::<Vec<_>>()
            .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_under_its_label() {
        let endings = ExitCauseCounters::default();
        CAUSES.iter().for_each(|(cause, _)| endings.count(*cause));
        endings.count(ExitCause::WallLimit);
        for (name, count) in endings.values() {
            assert_eq!(count, 1 + u64::from(name == "wall_limit"), "{name}");
        }
        let refusals = StartFailureCounters::default();
        refusals.count(StartFailureReason::Table);
        let counted: Vec<_> = refusals.values().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("table", 1)]);
        for (index, (refusal, _)) in StartFailureReason::ALL.iter().enumerate() {
            assert_eq!(*refusal as usize, index);
        }
        let rulings = PolicyDecisionCounters::default();
        rulings.count(PolicyDecisionKind::parse("deny").unwrap());
        let counted: Vec<_> = rulings.values().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("deny", 1)]);
        assert_eq!(PolicyDecisionKind::parse("perhaps"), None);
    }
}
