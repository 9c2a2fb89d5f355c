//! Process ids as handles: unguessable, and recognized by later programs with the same scope.

use exec_wire::id::{IdLengthError, ProcessId};
use uuid::Uuid;

/// Names a group of commands. Programs with equal scopes find each other's commands in a durable
/// store. A scope must determine the sandbox policy, because writing to a command gives its rights.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HandleScope(String);

/// What an id was issued for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HandleKind {
    /// A command whose exit is shown once.
    Command,
    /// A task whose result may be read repeatedly.
    Task,
}

/// Hexadecimal digits of the second random number in a handle. The first one has 122 random bits;
/// together they have 138.
const EXTRA_DIGITS: usize = 4;
/// Hexadecimal digits of a handle.
const DIGITS: usize = uuid::fmt::Simple::LENGTH + EXTRA_DIGITS;

impl HandleScope {
    /// Creates a scope.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Returns a new random handle.
    pub(super) fn handle(&self, kind: HandleKind) -> Result<ProcessId, IdLengthError> {
        let (first, second) = (Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let second = second.to_string();
        let prefix = self.prefix(kind);
        ProcessId::new(&format!("{prefix}{first}{}", &second[..EXTRA_DIGITS]))
    }

    /// Returns what an id was issued for, or `None` if it is not of this scope.
    pub fn kind(&self, id: &ProcessId) -> Option<HandleKind> {
        let is_of = |kind| {
            let random = id.as_str().strip_prefix(&self.prefix(kind));
            random.is_some_and(|random| random.len() == DIGITS)
        };
        [HandleKind::Command, HandleKind::Task]
            .into_iter()
            .find(|kind| is_of(*kind))
    }

    fn prefix(&self, kind: HandleKind) -> String {
        let letter = match kind {
            HandleKind::Command => 'c',
            HandleKind::Task => 't',
        };
        match self.0.as_str() {
            "" => letter.to_string(),
            name => format!("{name}-{letter}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_random_and_recognized_within_their_scope() {
        let (scope, other) = (HandleScope::new("mcp-1"), HandleScope::new("mcp-2"));
        let handle = scope.handle(HandleKind::Task).unwrap();
        assert_ne!(handle, scope.handle(HandleKind::Task).unwrap());
        assert_eq!(scope.kind(&handle), Some(HandleKind::Task));
        assert_eq!(other.kind(&handle), None);
        assert_eq!(HandleScope::default().kind(&handle), None);
        let command = scope.handle(HandleKind::Command).unwrap();
        assert_eq!(scope.kind(&command), Some(HandleKind::Command));
        for foreign in ["", "mcp-1-t", "mcp-1-tserver", "mcp-10-t1"] {
            assert_eq!(scope.kind(&ProcessId::new(foreign).unwrap()), None);
        }
    }
}
