//! Facts about a process that never change.

use std::{io, os::fd::AsFd};

use exec_wire::{
    id::{ProcessId, SessionId},
    process::{ProcessLimits, TerminalSize},
};
use serde::{Deserialize, Serialize};

use crate::{
    journal_error::{JournalError, encode_json},
    limits::MAX_HEAD_FILE_BYTES,
    private_file::{OpenMode, PrivateFile, read_file},
};

const HEAD_FILE: &str = "head.json";

/// Facts about a process that never change. Unknown members are ignored.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalHead {
    /// Version of these members, for readers that must distinguish them.
    pub version: u32,
    /// Process id that the client chose.
    pub process_id: ProcessId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory as the text of a path URI.
    pub cwd: String,
    /// Runs on a terminal.
    pub tty: bool,
    /// Terminal size at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<TerminalSize>,
    /// Keeps stdin writable without a terminal.
    #[serde(default)]
    pub pipe_stdin: bool,
    /// Family of methods that started the process. The journal does not interpret it.
    pub family: String,
    /// Owner at the start.
    pub owner: JournalOwner,
    /// Authenticated client that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Start time in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// Start time in milliseconds since boot, which no change of the clock affects.
    #[serde(default)]
    pub started_at_boot_ms: u64,
    /// Boot of the host in which the process was started.
    pub boot_id: String,
    /// Runs in a sandbox.
    #[serde(default)]
    pub sandboxed: bool,
    /// Resource limits.
    #[serde(default)]
    pub limits: ProcessLimits,
}

/// Owner of a durable process at its start.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum JournalOwner {
    /// The server: the process is detached.
    Server,
    /// A session. The process ends with it.
    Session(SessionId),
}

impl JournalHead {
    /// Writes the head into the new directory of a record.
    pub(crate) fn save(&self, directory: impl AsFd) -> Result<(), JournalError> {
        let action = "write `head.json`";
        let text = encode_json(self, action, ("head of the journal", MAX_HEAD_FILE_BYTES))?;
        PrivateFile::open(directory, HEAD_FILE, OpenMode::CreateNew)
            .and_then(|file| file.write_at(&text, 0))
            .map_err(JournalError::io(action))
    }

    /// Reads the head of a record.
    pub(crate) fn load(directory: impl AsFd) -> Result<Self, JournalError> {
        let damaged = |reason: String| JournalError::Damaged {
            file: HEAD_FILE,
            reason,
        };
        let text = match read_file(directory, HEAD_FILE, MAX_HEAD_FILE_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged("the file is missing".to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(damaged(format!("exceeds {MAX_HEAD_FILE_BYTES} bytes")));
            }
            Err(error) => return Err(JournalError::opening(HEAD_FILE)(error)),
        };
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))
    }
}
