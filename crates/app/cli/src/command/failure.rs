//! What went wrong, for a person.

use std::{fmt, process::ExitCode};

use exec_client::error::{ConnectError, ExecServerError};

use super::print::printable;

/// What a command could not do: one line, and what to do next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CommandFailure {
    /// What kind; decides the status.
    pub kind: FailureKind,
    /// What could not be done, and why. One line.
    pub what: String,
    /// What to do next. One line.
    pub next: Option<String>,
}

impl CommandFailure {
    /// A failure without a next step.
    pub fn new(kind: FailureKind, what: impl fmt::Display) -> Self {
        Self {
            kind,
            what: what.to_string(),
            next: None,
        }
    }

    /// Says what to do next.
    #[must_use]
    pub fn next(self, next: impl fmt::Display) -> Self {
        Self {
            next: Some(next.to_string()),
            ..self
        }
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Others may have had a say in it: servers, and who names files.
        f.write_str(&printable(&self.what))?;
        match &self.next {
            Some(next) => write!(f, "; {}", printable(next)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CommandFailure {}

/// Kinds of failures. Each has a status of its own, as `sysexits.h` and shells number them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailureKind {
    /// Something else.
    Failed,
    /// The line asks for what cannot be.
    Usage,
    /// A file, a directory or a process is not there.
    NotFound,
    /// Nobody answers where the environment should be.
    Unreachable,
    /// The connection was lost for good, and the session with it.
    Lost,
    /// The server does not let us in: the token is missing or wrong.
    NotAllowed,
    /// There is no environment of that name.
    UnknownEnvironment,
    /// The time was up.
    TimedOut,
    /// The command is there and cannot be executed.
    NotExecutable,
    /// The command is not there.
    CommandNotFound,
    /// Somebody pressed Ctrl-C.
    Interrupted,
    /// Another signal with this number ended it.
    Signalled(u8),
}

impl FailureKind {
    /// The status to end with.
    pub fn status(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 66,
            Self::Unreachable => 69,
            Self::Lost => 75,
            Self::NotAllowed => 77,
            Self::UnknownEnvironment => 78,
            Self::TimedOut => 124,
            Self::NotExecutable => 126,
            Self::CommandNotFound => 127,
            Self::Interrupted => 130,
            Self::Signalled(number) => 128_u8.saturating_add(number),
        }
    }
}

impl From<FailureKind> for ExitCode {
    fn from(kind: FailureKind) -> Self {
        Self::from(kind.status())
    }
}

impl From<ExecServerError> for CommandFailure {
    /// Says what a call, or the connection, came to. Who can say more does not come here.
    fn from(error: ExecServerError) -> Self {
        let kind = match &error {
            ExecServerError::Disconnected(_) | ExecServerError::Interrupted { .. } => {
                FailureKind::Lost
            }
            ExecServerError::Connect(ConnectError::Denied(_)) => FailureKind::NotAllowed,
            ExecServerError::Connect(ConnectError::Replaced(_)) => FailureKind::Lost,
            ExecServerError::Connect(_) | ExecServerError::Timeout { .. } => {
                FailureKind::Unreachable
            }
            ExecServerError::Remote(_)
            | ExecServerError::TooMany(_)
            | ExecServerError::NoRoom(_)
            | ExecServerError::IdInUse(_)
            | ExecServerError::Malformed { .. }
            | _ => FailureKind::Failed,
        };
        Self::new(kind, error)
    }
}
