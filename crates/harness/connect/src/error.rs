//! Why a target cannot be used, with the next step for the user.

use std::{fmt, io, time::Duration};

use exec_transport::connect::{ConnectError, ConnectFault, ProgramExit};

use crate::dist::Architecture;

/// Why a target did not become an environment. Nothing half-installed remains at the target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Caller: the program of the first hop cannot be started.
    #[error("cannot start `{program}`: {error}; {}", start_step(.variable))]
    Start {
        /// The program.
        program: &'static str,
        /// The variable that names a replacement.
        variable: Option<&'static str>,
        /// Cause.
        error: io::Error,
    },
    /// Peer: the connection ended before the server started.
    #[error("{0}")]
    Closed(ClosedConnection),
    /// Peer: nothing answered.
    #[error(
        "no answer within {0:?}; check that `sh` starts there, and that no profile waits for input"
    )]
    Silent(Duration),
    /// Peer: it writes output that is not an answer.
    #[error("its output is not that of a shell; check what its profile or forced command prints")]
    Noise,
    /// Peer: the script at the target gave up.
    #[error("{0}")]
    Refused(ShellRefusal),
    /// Caller: no program for that architecture was found.
    #[error(
        "no exec-server for its architecture `{0}` is at hand; `exec-server dist` shows where one \
         is sought"
    )]
    Architecture(String),
    /// Caller: the program to push cannot be read.
    #[error("cannot read the program for {}: {error}", .architecture.name())]
    Program {
        /// Its architecture.
        architecture: Architecture,
        /// Cause.
        error: io::Error,
    },
    /// Peer: its server does not answer.
    #[error("{0}; check the server there")]
    Server(ConnectError),
}

fn start_step(variable: &Option<&'static str>) -> String {
    match variable {
        Some(variable) => format!("install it, or name another program in {variable}"),
        None => "check the command".to_owned(),
    }
}

impl PlaceError {
    /// Returns the party that has to act.
    fn fault(&self) -> ConnectFault {
        match self {
            Self::Start { .. } | Self::Architecture(_) | Self::Program { .. } => {
                ConnectFault::Caller
            }
            Self::Closed(closed) if closed.cause.is_transient() => ConnectFault::Transport,
            Self::Silent(_) => ConnectFault::Transport,
            Self::Closed(_) | Self::Noise | Self::Refused(_) | Self::Server(_) => {
                ConnectFault::Peer
            }
        }
    }
}

impl From<PlaceError> for ConnectError {
    fn from(error: PlaceError) -> Self {
        let fault = error.fault();
        let is_transient = match &error {
            PlaceError::Server(error) => error.is_transient(),
            PlaceError::Start { .. }
            | PlaceError::Closed(_)
            | PlaceError::Silent(_)
            | PlaceError::Noise
            | PlaceError::Refused(_)
            | PlaceError::Architecture(_)
            | PlaceError::Program { .. } => fault == ConnectFault::Transport,
        };
        Self::Place {
            fault,
            is_transient,
            error: Box::new(error),
        }
    }
}

/// A connection that ended too early. Only the program's messages explain why.
#[derive(Debug)]
pub struct ClosedConnection {
    cause: ClosedCause,
    /// The line of the program's messages that explains it best.
    line: Option<String>,
    exit: ProgramExit,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ClosedCause {
    HostKeyChanged,
    HostKeyUnknown,
    Denied,
    Network,
    NoContainer,
    NotRunning,
    NoPod,
    Forbidden,
    NoEngine,
    NoShell,
    NoProgram,
    NoPrompt,
    Other,
}

/// Phrases of ssh, docker, podman, kubectl, sudo and shells in lower case, and the cause they stand for.
/// The first match wins.
const WORDS: [(&str, ClosedCause); 37] = [
    (
        "host identification has changed",
        ClosedCause::HostKeyChanged,
    ),
    ("host key verification failed", ClosedCause::HostKeyUnknown),
    ("permission denied (", ClosedCause::Denied),
    ("permission denied, please try again", ClosedCause::Denied),
    ("too many authentication failures", ClosedCause::Denied),
    ("the connection to the server", ClosedCause::Network),
    ("could not resolve hostname", ClosedCause::Network),
    ("connection refused", ClosedCause::Network),
    ("connection timed out", ClosedCause::Network),
    ("connection reset", ClosedCause::Network),
    ("no route to host", ClosedCause::Network),
    ("network is unreachable", ClosedCause::Network),
    ("broken pipe", ClosedCause::Network),
    ("no such container", ClosedCause::NoContainer),
    ("no container with name or id", ClosedCause::NoContainer),
    ("is not running", ClosedCause::NotRunning),
    ("is paused", ClosedCause::NotRunning),
    ("container state improper", ClosedCause::NotRunning),
    ("cannot connect to the docker daemon", ClosedCause::NoEngine),
    ("failed to connect to the docker api", ClosedCause::NoEngine),
    (
        "permission denied while trying to connect to the docker",
        ClosedCause::NoEngine,
    ),
    ("cannot connect to podman", ClosedCause::NoEngine),
    ("forbidden", ClosedCause::Forbidden),
    ("unauthorized", ClosedCause::Forbidden),
    ("must be logged in", ClosedCause::Forbidden),
    ("(notfound)", ClosedCause::NoPod),
    (
        "cannot exec into a container in a completed pod",
        ClosedCause::NoPod,
    ),
    ("is not valid for pod", ClosedCause::NoPod),
    ("exec: \"sh\"", ClosedCause::NoShell),
    ("sh: not found", ClosedCause::NoShell),
    ("sh: no such file", ClosedCause::NoShell),
    ("sh: command not found", ClosedCause::NoShell),
    ("executable file not found", ClosedCause::NoProgram),
    ("a terminal is required", ClosedCause::NoPrompt),
    ("a password is required", ClosedCause::NoPrompt),
    ("no tty present", ClosedCause::NoPrompt),
    ("/dev/tty", ClosedCause::NoPrompt),
];

/// Statuses of shells and container engines for a program that is missing or cannot start.
const NOT_STARTED: [i32; 2] = [126, 127];

impl ClosedConnection {
    /// Interprets the exit of the program, before or after the shell has answered.
    pub(crate) fn new(exit: ProgramExit, has_answered: bool) -> Self {
        let lower: Vec<String> = exit
            .stderr_lines
            .iter()
            .map(|it| it.to_lowercase())
            .collect();
        let found = WORDS.iter().find_map(|(words, cause)| {
            let at = lower.iter().position(|line| line.contains(words))?;
            Some((*cause, exit.stderr_lines[at].clone()))
        });
        let status = exit.status.and_then(|status| status.code());
        let is_missing = status.is_some_and(|status| NOT_STARTED.contains(&status));
        let (cause, line) = match found {
            Some((cause, line)) => (cause, Some(line)),
            None if is_missing && !has_answered => {
                (ClosedCause::NoProgram, exit.stderr_lines.last().cloned())
            }
            None => (ClosedCause::Other, exit.stderr_lines.last().cloned()),
        };
        Self { cause, line, exit }
    }
}

impl ClosedCause {
    /// Returns whether a retry may succeed without intervention.
    fn is_transient(self) -> bool {
        matches!(self, Self::Network | Self::Other)
    }

    fn next_step(self) -> &'static str {
        match self {
            Self::HostKeyChanged => {
                "if that is expected, remove the old key with `ssh-keygen -R HOST`, else ask its \
                 administrator"
            }
            Self::HostKeyUnknown => "connect once with `ssh` to check and accept its host key",
            Self::Denied => {
                "add your key to the ssh agent or to the account there; without a terminal, and \
                 when it reconnects, ssh cannot ask for a password"
            }
            Self::Network => "check the address and the network",
            Self::NoContainer => "check the name: `docker ps` or `podman ps` lists what runs",
            Self::NotRunning => "start the container first",
            Self::NoPod => {
                "check it with `kubectl get pods`; a pod of a context is \
                 k8s:CONTEXT/NAMESPACE/POD/"
            }
            Self::Forbidden => {
                "ask for the right to `create` the resource `pods/exec`, or sign in again"
            }
            Self::NoEngine => "check that the container engine runs and that you may use it",
            Self::NoShell => "choose a place that has a POSIX shell",
            Self::NoProgram => "install what is missing there, or choose another place",
            Self::NoPrompt => {
                "it asks for a password: run the command in the foreground of a terminal, or \
                 configure a login that needs none"
            }
            Self::Other => "check that the place runs a POSIX shell for you",
        }
    }
}

impl fmt::Display for ClosedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cause, &self.line) {
            (ClosedCause::HostKeyChanged, _) => f.write_str("its host key has changed")?,
            (ClosedCause::HostKeyUnknown, _) => f.write_str("its host key is not known")?,
            (ClosedCause::NoShell, _) => f.write_str("there is no `sh`")?,
            (ClosedCause::Other, _) | (_, None) => {
                write!(f, "it closed the connection: its program {}", self.exit)?;
            }
            (_, Some(line)) => f.write_str(line)?,
        }
        write!(f, "; {}", self.cause.next_step())
    }
}

/// Why the script at the target gave up.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ShellRefusal {
    kind: String,
    text: String,
}

impl ShellRefusal {
    /// Creates a refusal from the words of a `fail` report.
    pub(crate) fn new(kind: &str, text: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            text: text.trim().to_owned(),
        }
    }
}

impl fmt::Display for ShellRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match self.kind.as_str() {
            "system" => write!(f, "it runs `{text}`; only Linux is supported"),
            "libc" => write!(
                f,
                "it lacks {text}, which the program at hand needs; set EXEC_SERVER_DIST to a \
                 directory with a static one (see `exec-server dist`)"
            ),
            "tool" => write!(
                f,
                "it lacks `{text}`; install it, because programs are verified before they run"
            ),
            "directory" => write!(
                f,
                "no directory for the program: {text}; make one of them writable for programs, or \
                 install exec-server on its PATH"
            ),
            "write" => write!(
                f,
                "cannot store the program: {text}; make room there, or install exec-server on its \
                 PATH"
            ),
            "digest" => write!(
                f,
                "the program was damaged on the way to {text}; try again, and check its disk"
            ),
            "run" => write!(
                f,
                "the program does not run there: {text}; set EXEC_SERVER_DIST to a directory with \
                 a static one (see `exec-server dist`)"
            ),
            kind => write!(f, "it refused: {kind} {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

    use super::*;

    fn closed(status: i32, lines: &[&str]) -> String {
        let exit = ProgramExit {
            status: Some(ExitStatus::from_raw(status << 8)),
            stderr_lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        };
        ClosedConnection::new(exit, false).to_string()
    }

    #[test]
    fn words_of_other_programs_become_a_reason_and_a_next_step() {
        let changed = [
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
            "Host key verification failed.",
        ];
        for (status, lines, reason, step) in [
            (
                255,
                &changed[..],
                "its host key has changed",
                "ssh-keygen -R",
            ),
            (
                255,
                &changed[1..],
                "its host key is not known",
                "connect once",
            ),
            (
                255,
                &["me@box: Permission denied (publickey)."],
                "Permission denied",
                "agent",
            ),
            (
                255,
                &["ssh: Could not resolve hostname nope: Name or service not known"],
                "Could not resolve",
                "address",
            ),
            (
                1,
                &["Error response from daemon: No such container: web"],
                "No such",
                "docker ps",
            ),
            (
                1,
                &["Error response from daemon: container 0123 is not running"],
                "is not running",
                "start the container",
            ),
            (
                1,
                &["Error from server (NotFound): pods \"x\" not found"],
                "pods",
                "get pods",
            ),
            (
                1,
                &["Error from server (Forbidden): pods \"x\" is forbidden: User \"u\" cannot"],
                "forbidden",
                "pods/exec",
            ),
            (
                127,
                &["OCI runtime exec failed: exec: \"sh\": executable file not found in $PATH"],
                "there is no `sh`",
                "POSIX shell",
            ),
            (
                127,
                &["bash: line 1: docker: command not found"],
                "docker",
                "install",
            ),
            (
                1,
                &["sudo: a password is required"],
                "sudo: a password",
                "foreground of a terminal",
            ),
            (0, &[], "exited with status 0", "POSIX shell"),
            (
                3,
                &["go away"],
                "exited with status 3: go away",
                "POSIX shell",
            ),
        ] {
            let text = closed(status, lines);
            let (said, next) = text.rsplit_once("; ").unwrap();
            assert!(said.contains(reason) || text.contains(reason), "{text}");
            assert!(next.contains(step) || text.contains(step), "{text}");
        }
    }

    #[test]
    fn only_a_lost_network_is_worth_a_retry() {
        let is_transient = |lines: &[&str]| {
            let exit = ProgramExit {
                status: None,
                stderr_lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            };
            let error = PlaceError::Closed(ClosedConnection::new(exit, false));
            ConnectError::from(error).is_transient()
        };
        assert!(is_transient(&[
            "connect to host x port 22: Connection refused"
        ]));
        assert!(is_transient(&[]));
        assert!(!is_transient(&["Permission denied (publickey)."]));
        assert!(!is_transient(&["Host key verification failed."]));
    }
}
