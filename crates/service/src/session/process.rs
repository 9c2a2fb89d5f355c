//! A process in a table.

use std::sync::Arc;

use exec_env::process::ExecProcess;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
    process::ProcessSummary,
};
use tokio::sync::Notify;

use super::{kept::Kept, watcher::Watcher};
use crate::notify::Dialect;

/// A started process, and what was asked for.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) handle: Arc<dyn ExecProcess>,
    pub(crate) dialect: Dialect,
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: PathUri,
    pub(crate) tty: bool,
    pub(crate) detached: bool,
    /// Who is asked about its network, if it has a proxy.
    pub(crate) watcher: Option<Arc<Watcher>>,
    /// What its client has not acknowledged.
    pub(crate) kept: Kept,
}

impl Process {
    /// Keeps what its client does not acknowledge, from the oldest that is still there.
    pub(super) fn keep(&self) {
        // The first dialect has no numbers to acknowledge by.
        if !self.detached && self.dialect == Dialect::Process {
            self.kept.begin(&*self.handle);
        }
    }

    /// Lets go of what was kept for its client.
    pub(super) fn let_go(&self) {
        self.kept.end();
    }

    /// Lets go of events up to `seq`. Tells whether that was the last of them.
    pub(super) fn acknowledge(&self, seq: OutputSeq) -> bool {
        self.kept.acknowledge(&*self.handle, seq)
    }

    /// Tells whether something may not be acknowledged yet.
    pub(super) fn is_kept(&self) -> bool {
        self.kept.is_any()
    }

    /// Returns how much memory it takes when it has finished: its output and its arguments.
    pub(super) fn finished_bytes(&self) -> usize {
        let arguments: usize = self.argv.iter().map(String::len).sum();
        self.handle.status().retained_bytes + arguments
    }

    pub(crate) fn summary(&self) -> ProcessSummary {
        let status = self.handle.status();
        ProcessSummary {
            process_id: self.handle.id().clone(),
            argv: self.argv.clone(),
            cwd: self.cwd.clone(),
            tty: self.tty,
            running: status.exit.is_none(),
            exit_code: status.exit.as_ref().map(|exit| exit.code),
            started_at_ms: status.started_at_ms,
            os_pid: status.os_pid,
            detached: self.detached,
            usage: match status.exit {
                Some(exit) => exit.usage,
                None => self.handle.usage(),
            },
        }
    }
}

/// A place in a table.
#[derive(Debug)]
pub(super) enum Entry {
    /// Taken, but nothing runs yet. Notifying it cancels the start.
    Starting(Arc<Notify>),
    /// Runs, or has run.
    Started(Arc<Process>),
}

/// What a table knows of an id.
#[derive(Debug)]
pub(crate) enum Found {
    Unknown,
    Starting(Arc<Notify>),
    Started(Arc<Process>),
}

/// Processes by id.
pub(super) type Table = std::collections::BTreeMap<ProcessId, Entry>;

impl Found {
    pub(super) fn of(entry: Option<&Entry>) -> Self {
        match entry {
            None => Self::Unknown,
            Some(Entry::Starting(cancel)) => Self::Starting(Arc::clone(cancel)),
            Some(Entry::Started(process)) => Self::Started(Arc::clone(process)),
        }
    }
}
