//! What a supervisor tells the server, and what the server asks of it.

use std::{io, time::Duration};

use crate::enclosure::SetupStep;

/// Bytes of a report on the socket: six numbers of eight bytes.
pub const REPORT_BYTES: usize = 48;
/// Bytes of an order: kind and signal.
pub(super) const ORDER_BYTES: usize = 8;

const STARTED: u64 = 1;
const FAILED: u64 = 2;
const EXITED: u64 = 3;

const SIGNAL: u32 = 1;
const KILL: u32 = 2;

/// What happened to a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SupervisorReport {
    /// It runs.
    Started {
        /// The command's number.
        pid: u32,
        /// The supervisor's number.
        supervisor: u32,
    },
    /// It does not: at this step, for this reason.
    Failed {
        /// The step, as [`Stage`](super::Stage) numbers them.
        stage: u32,
        /// The error number.
        errno: i32,
        /// The part of an enclosure, if that is the step: its kind and its index.
        part: (u32, u32),
    },
    /// It was reaped.
    Exited(ExitReport),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExitReport {
    /// The status, as `wait` encodes it.
    pub status: i32,
    /// Time in user mode, descendants that were waited for included.
    pub user: Duration,
    /// Time in the kernel.
    pub system: Duration,
    /// Most memory resident at once.
    pub max_rss_bytes: u64,
}

impl SupervisorReport {
    /// Encodes for the socket. Allocates nothing.
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

    /// Decodes from the socket.
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

/// What the server asks of a supervisor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SupervisorOrder {
    /// Signal the process group of the command.
    Signal(i32),
    /// Kill everything that descends from the command.
    Kill,
}

impl SupervisorOrder {
    /// Encodes for the socket.
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

fn micros(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(u64::from(duration.subsec_micros()))
}

/// Where starting a command can fail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Stage {
    /// Descriptors, session, terminal.
    Setup = 1,
    /// The working directory.
    Chdir = 2,
    /// A resource limit.
    Limit = 3,
    /// The program.
    Exec = 4,
    /// The process itself.
    Clone = 5,
    /// What encloses it.
    Enclosure = 6,
}

impl Stage {
    /// Returns the stage that a report names.
    pub fn from_number(number: u32) -> Self {
        match number {
            2 => Self::Chdir,
            3 => Self::Limit,
            4 => Self::Exec,
            5 => Self::Clone,
            6 => Self::Enclosure,
            _ => Self::Setup,
        }
    }
}

/// Why a command does not run. In every case nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// Host: a step failed.
    #[error("process could not be started")]
    Host {
        /// The step.
        stage: Stage,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Host: it was not enclosed. It is never run without.
    #[error("cannot {part}")]
    Enclosure {
        /// What the host refused.
        part: SetupStep,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Caller: the operating system's texts end at a NUL byte.
    #[error("{0} must not contain a NUL byte")]
    Nul(&'static str),
    /// Host: the supervisor vanished before it said anything.
    #[error("process supervisor is gone")]
    Lost,
}

impl SpawnError {
    /// Returns the error with everything that caused it, for places that keep a text only.
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

    /// Tells whether an enclosure was refused because a path is not there any more, or is a link now.
    pub fn is_about_missing_files(&self) -> bool {
        let Self::Enclosure { source, .. } = self else {
            return false;
        };
        let errno = source.raw_os_error();
        [libc::ENOENT, libc::ENOTDIR, libc::ELOOP]
            .map(Some)
            .contains(&errno)
    }

    /// Says that a step failed.
    pub fn host(stage: Stage, source: io::Error) -> Self {
        Self::Host { stage, source }
    }
}
