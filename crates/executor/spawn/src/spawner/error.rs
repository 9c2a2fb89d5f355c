//! Why a command does not start.

use std::io;

use crate::enclosure::Part;

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
        part: Part,
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
