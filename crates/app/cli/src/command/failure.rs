//! Errors of commands, as shown to users.

use std::{error::Error, fmt, process::ExitCode};

use exec_client::error::{ConnectError, ExecServerError};
use exec_env::tunnel::TunnelError;
use exec_settings::background_server::BackgroundServerError;

use super::print::printable;

/// Failure of a command: one line, and the next step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CommandFailure {
    /// Kind, which determines the exit status.
    pub kind: FailureKind,
    /// What failed, and why. One line.
    pub what: String,
    /// Next step. One line.
    pub next: Option<String>,
}

impl CommandFailure {
    /// Creates a failure without a next step.
    pub fn new(kind: FailureKind, what: impl fmt::Display) -> Self {
        Self {
            kind,
            what: what.to_string(),
            next: None,
        }
    }

    /// Creates a failure of no other kind.
    pub fn failed(what: impl fmt::Display) -> Self {
        Self::new(FailureKind::Failed, what)
    }

    /// Creates a failure for an invalid command line.
    pub fn usage(what: impl fmt::Display) -> Self {
        Self::new(FailureKind::Usage, what)
    }

    /// Sets the next step.
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
        // Text may come from servers or contain file names, so control characters are replaced.
        f.write_str(&printable(&self.what))?;
        match &self.next {
            Some(next) => write!(f, "; {}", printable(next)),
            None => Ok(()),
        }
    }
}

impl Error for CommandFailure {}

/// Kinds of failures. Each has its own exit status, following `sysexits.h` and shells.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailureKind {
    /// Any other failure.
    Failed,
    /// The command line is invalid.
    Usage,
    /// A file, directory or process does not exist.
    NotFound,
    /// The environment does not answer.
    Unreachable,
    /// The connection and the session are lost for good.
    Lost,
    /// The token is missing or wrong.
    NotAllowed,
    /// No environment has that name.
    UnknownEnvironment,
    /// The time limit was reached.
    TimedOut,
    /// The command exists but cannot be executed.
    NotExecutable,
    /// The command does not exist.
    CommandNotFound,
    /// The user pressed Ctrl-C.
    Interrupted,
    /// Another signal with this number.
    Signalled(u8),
}

impl FailureKind {
    /// Returns the exit status.
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

impl From<BackgroundServerError> for CommandFailure {
    fn from(error: BackgroundServerError) -> Self {
        Self::new(FailureKind::Unreachable, &error).next(error.next_step())
    }
}

impl From<ExecServerError> for CommandFailure {
    /// Converts a client error. Callers with more context build their own message.
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
            | ExecServerError::TooManyCalls(_)
            | ExecServerError::SendBufferFull(_)
            | ExecServerError::IdInUse(_)
            | ExecServerError::Malformed { .. }
            | _ => FailureKind::Failed,
        };
        Self::new(kind, error)
    }
}

impl From<TunnelError> for CommandFailure {
    fn from(error: TunnelError) -> Self {
        match error {
            TunnelError::Unsupported => {
                Self::failed(error).next("it needs an exec-server of this version there")
            }
            TunnelError::Disconnected(_) => Self::new(FailureKind::Lost, error),
            TunnelError::Remote(error) => Self::failed(error.message),
            TunnelError::Refused(_) | TunnelError::Host(_) | _ => Self::failed(error),
        }
    }
}
