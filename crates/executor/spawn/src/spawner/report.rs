//! Messages between a supervisor and the server: reports, orders, and the error of a failed start.

use std::{io, time::Duration};

use crate::{keeper::KeeperError, sandbox_setup::SetupStep};

/// Size of a report on the socket: six 64-bit words.
pub const REPORT_BYTES: usize = 48;
/// Size of an order on the socket: kind and signal.
pub(super) const ORDER_BYTES: usize = 8;

const STARTED: u64 = 1;
const FAILED: u64 = 2;
const EXITED: u64 = 3;

const SIGNAL: u32 = 1;
const KILL: u32 = 2;

/// Report of a supervisor about its command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SupervisorReport {
    /// The command is running.
    Started {
        /// Pid of the command.
        pid: u32,
        /// Pid of the supervisor.
        supervisor: u32,
    },
    /// The command could not be started.
    Failed {
        /// The failed stage, as a number.
        stage: u32,
        /// The error number.
        errno: i32,
        /// The failed step of the sandbox set-up, if that is the stage: its kind and index.
        part: (u32, u32),
    },
    /// The command has exited and was reaped.
    Exited(ExitReport),
}

/// How a command exited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExitReport {
    /// Exit status as encoded by `wait`.
    pub status: i32,
    /// CPU time in user mode, including descendants that were waited for.
    pub user: Duration,
    /// CPU time in kernel mode.
    pub system: Duration,
    /// Peak resident memory.
    pub max_rss_bytes: u64,
}

impl ExitReport {
    /// Converts what `wait` returns.
    pub(super) fn new(status: i32, usage: &libc::rusage) -> Self {
        let time = |time: libc::timeval| {
            let micros = u64::try_from(time.tv_usec).unwrap_or(0);
            Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
                + Duration::from_micros(micros)
        };
        Self {
            status,
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            max_rss_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}

impl SupervisorReport {
    /// Encodes the report for the socket, without allocating.
    #[expect(clippy::cast_sign_loss, reason = "numbers travel as bit patterns")]
    pub fn encode(self) -> [u8; REPORT_BYTES] {
        let words: [u64; 6] = match self {
            Self::Started { pid, supervisor } => {
                [STARTED, u64::from(pid), u64::from(supervisor), 0, 0, 0]
            }
            Self::Failed { stage, errno, part } => [
                FAILED,
                u64::from(stage),
                errno as u64,
                u64::from(part.0),
                u64::from(part.1),
                0,
            ],
            Self::Exited(exit) => [
                EXITED,
                exit.status as u64,
                micros(exit.user),
                micros(exit.system),
                exit.max_rss_bytes,
                0,
            ],
        };
        let mut bytes = [0; REPORT_BYTES];
        let mut index = 0;
        while index < REPORT_BYTES {
            bytes[index] = words[index / 8].to_le_bytes()[index % 8];
            index += 1;
        }
        bytes
    }

    /// Decodes a report from the socket.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "numbers travel as bit patterns"
    )]
    pub fn decode(bytes: &[u8; REPORT_BYTES]) -> Option<Self> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(word)
        };
        match word(0) {
            STARTED => Some(Self::Started {
                pid: word(1) as u32,
                supervisor: word(2) as u32,
            }),
            FAILED => Some(Self::Failed {
                stage: word(1) as u32,
                errno: word(2) as i32,
                part: (word(3) as u32, word(4) as u32),
            }),
            EXITED => Some(Self::Exited(ExitReport {
                status: word(1) as i32,
                user: Duration::from_micros(word(2)),
                system: Duration::from_micros(word(3)),
                max_rss_bytes: word(4),
            })),
            _ => None,
        }
    }
}

/// Order of the server to a supervisor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SupervisorOrder {
    /// Signal the command's process group.
    Signal(i32),
    /// Kill the command and all its descendants.
    Kill,
}

impl SupervisorOrder {
    /// Encodes the order for the socket.
    pub fn encode(self) -> [u8; ORDER_BYTES] {
        let (kind, signal) = match self {
            Self::Signal(signal) => (SIGNAL, signal),
            Self::Kill => (KILL, 0),
        };
        let ([a, b, c, d], [e, f, g, h]) = (kind.to_le_bytes(), signal.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }

    pub(super) fn decode(bytes: [u8; ORDER_BYTES]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = bytes;
        match u32::from_le_bytes([a, b, c, d]) {
            SIGNAL => Some(Self::Signal(i32::from_le_bytes([e, f, g, h]))),
            KILL => Some(Self::Kill),
            _ => None,
        }
    }
}

pub(super) fn micros(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(u64::from(duration.subsec_micros()))
}

/// Stage of starting a command, as named in errors.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum SpawnStage {
    /// Descriptors, session and terminal.
    Setup = 1,
    /// Changing to the working directory.
    Chdir = 2,
    /// Setting a resource limit.
    Limit = 3,
    /// Executing the program.
    Exec = 4,
    /// Cloning the process.
    Clone = 5,
    /// The sandbox set-up.
    SandboxSetup = 6,
}

impl SpawnStage {
    /// Returns the stage of a report.
    pub fn from_number(number: u32) -> Self {
        match number {
            2 => Self::Chdir,
            3 => Self::Limit,
            4 => Self::Exec,
            5 => Self::Clone,
            6 => Self::SandboxSetup,
            _ => Self::Setup,
        }
    }
}

/// Why a command was not started. Nothing is left running in any of these cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// Host: a stage failed.
    #[error("process could not be started")]
    Host {
        /// The failed stage.
        stage: SpawnStage,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Host: the sandbox could not be set up. The command never runs without it.
    #[error("cannot {part}")]
    SandboxSetup {
        /// The failed step.
        part: SetupStep,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Caller: strings of the operating system end at a NUL byte.
    #[error("{0} must not contain a NUL byte")]
    Nul(&'static str),
    /// Host: the supervisor exited before it sent a report.
    #[error("process supervisor is gone")]
    Lost,
    /// Host: the keeper did not start a durable spawner, or did not take over the process.
    #[error("keeper cannot make the process durable")]
    Keeper(#[source] KeeperError),
}

impl SpawnError {
    /// Returns the error with all its causes, for callers that keep only text.
    pub fn explained(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(": ");
            text.push_str(&error.to_string());
            source = error.source();
        }
        text
    }

    /// Returns whether the sandbox set-up failed because a path was removed or replaced by a link.
    pub fn is_missing_path(&self) -> bool {
        let Self::SandboxSetup { source, .. } = self else {
            return false;
        };
        let errno = source.raw_os_error();
        [libc::ENOENT, libc::ENOTDIR, libc::ELOOP]
            .map(Some)
            .contains(&errno)
    }

    /// Creates the error of a failed stage.
    pub fn host(stage: SpawnStage, source: io::Error) -> Self {
        Self::Host { stage, source }
    }
}
