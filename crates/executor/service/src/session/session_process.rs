//! A process in a table.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use exec_core::log::Exit;
use exec_env::process::ExecProcess;
use exec_wire::{
    id::{OutputSeq, ProcessId, SessionId},
    path_uri::PathUri,
    process::{ExitCause, ProcessOwner, ProcessState, ProcessSummary},
};
use tokio::sync::Notify;
use tracing::{Span, field::Empty};

use super::{
    Session,
    network_watcher::Watcher,
    retention::{Keeping, Kept},
};
use crate::{
    connection::Dialect,
    meters::{Endings, Meters},
    request_guard::{ContinueTrace, Origin, shown},
};

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

/// A process that runs. Of its arguments nothing is shown: they may hold secrets.
#[derive(Debug)]
pub(crate) struct Life(Span);

impl Life {
    /// Begins with a process that was started. Its span belongs to that of the request, which ends long
    /// before it and is not to be kept open by it.
    pub(crate) fn begin(
        process: &Process,
        owner: &SessionId,
        continue_trace: ContinueTrace,
    ) -> Self {
        let span = tracing::info_span!(
            target: "exec_service::process", parent: None, "process",
            process_id = Empty,
            session = owner.shown(),
            process.pid = Empty,
            process.executable.name = Empty,
            process.exit.code = Empty,
            otel.status_code = Empty,
            cause = Empty,
            sandbox_denied = Empty,
        );
        if !span.is_disabled() {
            continue_trace(&span, Origin::Span(&Span::current()));
            let (program, id) = (program(process), process.handle.id());
            span.record("process_id", shown(id.as_str()));
            span.record("process.pid", process.handle.status().os_pid);
            span.record("process.executable.name", program);
            tracing::info!(
                target: "exec_service::process",
                process_id = shown(id.as_str()), process.executable.name = program,
                tty = process.tty, detached = process.is_detached(), "process started"
            );
        }
        Self(span)
    }

    /// Ends as the process did. One whose end is not known is lost.
    pub(super) fn end(self, exit: Option<Exit>, meters: &Meters) {
        let Self(span) = self;
        let cause = exit.as_ref().map_or(ExitCause::Lost, |exit| exit.cause);
        meters.processes_ended.count(cause);
        let denied = exit.as_ref().is_some_and(|exit| exit.sandbox_denied);
        if denied {
            meters.sandbox_denials.increment();
        }
        if span.is_disabled() {
            return;
        }
        let (cause, code) = (Endings::name(cause), exit.map(|exit| exit.code));
        span.record("cause", cause);
        span.record("sandbox_denied", denied);
        span.record("process.exit.code", code);
        if code != Some(0) {
            span.record("otel.status_code", "ERROR");
        }
        tracing::info!(
            target: "exec_service::process", parent: &span, exit_code = code, "process ended"
        );
    }
}

/// The name of the program, without where it is.
fn program(process: &Process) -> &str {
    let program = process.argv.first().map_or("", String::as_str);
    let name = Path::new(program).file_name();
    shown(name.and_then(|name| name.to_str()).unwrap_or_default())
}

/// A place for a process that is starting. Given back if it does not start, to the one that had it.
#[derive(Debug)]
pub(crate) struct Starting {
    pub(super) session: Arc<Session>,
    pub(super) id: ProcessId,
    pub(super) cancel: Arc<Notify>,
    pub(super) started: bool,
}

impl Starting {
    pub(crate) fn id(&self) -> &ProcessId {
        &self.id
    }

    /// Resolves when the process is terminated before it runs.
    pub(crate) async fn cancelled(&self) {
        self.cancel.notified().await;
    }

    /// Fills the place. Returns `false` if the session ended meanwhile.
    pub(crate) fn finish(mut self, process: &Arc<Process>, life: Life) -> bool {
        self.started = true;
        // Declared before the lock is taken, so that it is dropped behind it.
        let replaced;
        let mut state = self.session.lock();
        if !state.table.contains_key(&self.id) {
            return false;
        }
        replaced = state.replaced.get(&self.id).cloned();
        if let Some(process) = &replaced {
            state.forget(process);
        }
        let entry = Entry::Started(Arc::clone(process));
        state.table.insert(self.id.clone(), entry);
        if state.keeping == Keeping::Unacknowledged {
            process.keep();
        }
        drop(state);
        self.session.meters.processes_started.increment();
        Session::forget_later(process, life, Arc::clone(&self.session.meters));
        true
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if self.started {
            return;
        }
        let mut state = self.session.lock();
        let ours = |entry: &Entry| match entry {
            Entry::Starting(cancel) => Arc::ptr_eq(cancel, &self.cancel),
            Entry::Started(_) => false,
        };
        if !state.table.get(&self.id).is_some_and(ours) {
            return;
        }
        match state.replaced.remove(&self.id) {
            None => drop(state.table.remove(&self.id)),
            Some(process) => {
                let entry = Entry::Started(process);
                state.table.insert(self.id.clone(), entry);
            }
        }
    }
}
