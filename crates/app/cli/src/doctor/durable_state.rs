//! The durable state of a server: its directory, and its keeper. Looking at it changes nothing, and
//! works while a server uses it.

use std::path::PathBuf;

use exec_journal::{StateDir, StateDirError};
use exec_spawn::keeper::KeeperClient;
use exec_wire::error::error_chain;
use serde::Serialize;

use crate::command::ps::bytes as format_bytes;

/// Durable state of a server.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DurableStateStatus {
    /// State directory.
    pub directory: PathBuf,
    /// Whether the directory exists. The first server that uses it creates it.
    pub exists: bool,
    /// Number of recorded processes.
    pub records: usize,
    /// Bytes on disk of all records.
    pub bytes: u64,
    /// Why the directory cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Process id of the keeper, if one runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keeper_pid: Option<u32>,
    /// Why the keeper cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keeper_error: Option<String>,
}

impl DurableStateStatus {
    /// Looks at a state directory. Blocks on the disk, and up to seven seconds on a keeper that
    /// does not answer.
    pub(super) fn check(directory: PathBuf) -> Self {
        let mut status = Self {
            exists: true,
            directory,
            ..Self::default()
        };
        let reader = match StateDir::open_read_only(&status.directory) {
            Ok(reader) => reader,
            Err(StateDirError::Missing(_)) => {
                status.exists = false;
                return status;
            }
            Err(error) => {
                status.error = Some(error_chain(&error));
                return status;
            }
        };
        match reader.usage() {
            Ok(usage) => (status.records, status.bytes) = (usage.records, usage.bytes),
            Err(error) => status.error = Some(format!("failed to list the records: {error}")),
        }
        match KeeperClient::connect(&reader.keeper_socket()) {
            Ok(keeper) => status.keeper_pid = keeper.map(|keeper| keeper.pid()),
            Err(error) => status.keeper_error = Some(error_chain(&error)),
        }
        status
    }

    /// Describes the state, a paragraph per item.
    pub(super) fn lines(&self) -> Vec<String> {
        let directory = self.directory.display();
        if !self.exists {
            return vec![format!(
                "the first server creates the directory {directory}"
            )];
        }
        if let Some(error) = &self.error {
            return vec![format!("the directory {directory} cannot be used: {error}")];
        }
        let size = format_bytes(self.bytes);
        let records = match self.records {
            1 => "1 process".to_owned(),
            records => format!("{records} processes"),
        };
        let keeper = match (self.keeper_pid, &self.keeper_error) {
            (Some(pid), _) => format!("their keeper runs as process {pid}"),
            (None, Some(error)) => format!("their keeper cannot be used: {error}"),
            (None, None) => "no keeper runs: the next durable process starts it".to_owned(),
        };
        vec![
            format!("{records} recorded, {size}, in {directory}"),
            keeper,
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use exec_journal::JournalLimits;

    use super::*;

    #[test]
    fn missing_used_and_unusable_directories_are_distinguished() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("state");
        let missing = DurableStateStatus::check(path.clone());
        assert!(!missing.exists && missing.error.is_none(), "{missing:?}");
        assert!(!path.exists());
        // The lock is held meanwhile.
        let state = StateDir::open(&path, JournalLimits::default()).unwrap();
        let used = DurableStateStatus::check(path.clone());
        assert!(used.exists && used.error.is_none(), "{used:?}");
        assert_eq!((used.records, used.keeper_pid), (0, None));
        let lines = used.lines();
        assert!(
            lines[0].starts_with("0 processes recorded, 0B, in "),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("no keeper runs"), "{lines:?}");
        drop(state);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let open = DurableStateStatus::check(path);
        let error = open.error.as_deref().unwrap();
        assert!(error.contains("chmod 700"), "{error}");
        assert!(open.lines()[0].contains("cannot be used"), "{open:?}");
    }
}
