//! A process in a table.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use exec_env::process::ExecProcess;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
    process::{ExitCause, ProcessOwner, ProcessState, ProcessSummary},
};
use tokio::sync::Notify;

use super::{kept::Kept, state::Session, watcher::Watcher};
use crate::notify::Dialect;

/// A started process, and what was asked for.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) handle: Arc<dyn ExecProcess>,
    pub(crate) dialect: Dialect,
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: PathUri,
    pub(crate) tty: bool,
    /// Whose table it is in.
    pub(crate) owner: OwnerCell,
    /// Who is asked about its network, if it has a proxy.
    pub(crate) watcher: Option<Arc<Watcher>>,
    /// What its client has not acknowledged.
    pub(crate) kept: Kept,
}

impl Process {
    /// Tells whether it belongs to the server.
    pub(crate) fn is_detached(&self) -> bool {
        self.owner.lock().detached
    }

    /// Keeps what its client does not acknowledge, from the oldest that is still there.
    pub(super) fn keep(&self) {
        // The first dialect has no numbers to acknowledge by.
        if !self.is_detached() && self.dialect == Dialect::Process {
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
        let (status, detached) = (self.handle.status(), self.is_detached());
        let state = match &status.exit {
            None => ProcessState::Running,
            Some(exit) if exit.cause == ExitCause::Lost => ProcessState::Lost,
            Some(_) => ProcessState::Exited,
        };
        ProcessSummary {
            process_id: self.handle.id().clone(),
            argv: self.argv.clone(),
            cwd: self.cwd.clone(),
            tty: self.tty,
            running: status.exit.is_none(),
            exit_code: status.exit.as_ref().map(|exit| exit.code),
            started_at_ms: status.started_at_ms,
            os_pid: status.os_pid,
            detached,
            usage: match status.exit {
                Some(exit) => exit.usage,
                None => self.handle.usage(),
            },
            owner: Some(if detached {
                ProcessOwner::Server
            } else {
                ProcessOwner::Session
            }),
            state: Some(state),
            output_bytes: Some(status.retained_bytes as u64),
        }
    }
}

/// Whose table a process is in. That changes once at most, when the server takes it over.
#[derive(Debug)]
pub(crate) struct OwnerCell(Mutex<Owner>);

#[derive(Clone, Debug)]
struct Owner {
    session: Weak<Session>,
    /// The table is that of the server.
    detached: bool,
}

impl OwnerCell {
    /// Begins in the table of a session, or in that of the server.
    pub(crate) fn new(session: &Arc<Session>, detached: bool) -> Self {
        Self(Mutex::new(Owner {
            session: Arc::downgrade(session),
            detached,
        }))
    }

    /// Moves to the table of the server.
    pub(super) fn detach(&self, server: &Arc<Session>) {
        *self.lock() = Owner {
            session: Arc::downgrade(server),
            detached: true,
        };
    }

    /// Returns whose table it is in, if that still exists.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.lock().session.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, Owner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
