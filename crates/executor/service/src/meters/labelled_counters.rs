//! Counters by kind: how processes ended, why some did not start, what was decided about networks.

use exec_env::backend::StartError;
use exec_wire::process::ExitCause;

use super::Counter;

/// How processes ended.
#[derive(Debug, Default)]
pub struct Endings([Counter; CAUSES.len()]);

/// The name of a cause, and every cause.
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

impl Endings {
    pub(crate) fn count(&self, cause: ExitCause) {
        let index = CAUSES.iter().position(|(known, _)| *known == cause);
        if let Some(counter) = index.and_then(|index| self.0.get(index)) {
            counter.increment();
        }
    }

    /// Returns the name of each cause, and how often it was the one.
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
pub enum Refusal {
    /// Its sandbox policy cannot be enforced here, or is none.
    Sandbox,
    /// Another member of its request asks for what cannot be.
    Params,
    /// The session has as many as it may have, or the id is taken.
    Table,
    /// The operating system did not start it.
    Spawn,
    /// It was terminated first, or its session ended.
    Cancelled,
    /// Something else.
    Other,
}

impl Refusal {
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

/// Why processes did not start.
#[derive(Debug, Default)]
pub struct Refusals([Counter; Refusal::ALL.len()]);

impl Refusals {
    pub(crate) fn count(&self, refusal: Refusal) {
        self.0[refusal as usize].increment();
    }

    /// Returns the name of each reason, and how often it was the one.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let row =
            |(refusal, name): &(Refusal, &'static str)| (*name, self.0[*refusal as usize].value());
        Refusal::ALL.iter().map(row).collect::<Vec<_>>().into_iter()
    }
}

/// What was decided about a connection that a process wanted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ruling {
    /// It may.
    Allow,
    /// It may not.
    Deny,
    /// Somebody is to be asked.
    Ask,
}

impl Ruling {
    const ALL: [(Self, &str); 3] = [
        (Self::Allow, "allow"),
        (Self::Deny, "deny"),
        (Self::Ask, "ask"),
    ];

    /// Reads the word that travels.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let known = Self::ALL.iter().find(|(_, name)| *name == word);
        known.map(|(ruling, _)| *ruling)
    }
}

/// What was decided about the networks of processes.
#[derive(Debug, Default)]
pub struct Rulings([Counter; Ruling::ALL.len()]);

impl Rulings {
    pub(crate) fn count(&self, ruling: Ruling) {
        self.0[ruling as usize].increment();
    }

    /// Returns the name of each decision, and how often it was taken.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let row =
            |(ruling, name): &(Ruling, &'static str)| (*name, self.0[*ruling as usize].value());
        Ruling::ALL.iter().map(row).collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_under_their_own_names() {
        let endings = Endings::default();
        CAUSES.iter().for_each(|(cause, _)| endings.count(*cause));
        endings.count(ExitCause::WallLimit);
        for (name, count) in endings.values() {
            assert_eq!(count, 1 + u64::from(name == "wall_limit"), "{name}");
        }
        let refusals = Refusals::default();
        refusals.count(Refusal::Table);
        let counted: Vec<_> = refusals.values().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("table", 1)]);
        for (index, (refusal, _)) in Refusal::ALL.iter().enumerate() {
            assert_eq!(*refusal as usize, index);
        }
        let rulings = Rulings::default();
        rulings.count(Ruling::parse("deny").unwrap());
        let counted: Vec<_> = rulings.values().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("deny", 1)]);
        assert_eq!(Ruling::parse("perhaps"), None);
    }
}
