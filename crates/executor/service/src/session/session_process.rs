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
    network_watcher::ClientNetworkWatcher,
    retention::{RetentionMode, UnackedOutput},
};
use crate::{
    connection::MethodFamily,
    meters::{Endings, Meters},
    request_guard::{ContinueTrace, Origin, truncate_for_log},
};

/// A started process, and what was asked for.
#[derive(Debug)]
pub(crate) struct SessionProcess {
    pub(crate) handle: Arc<dyn ExecProcess>,
    pub(crate) family: MethodFamily,
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: PathUri,
    pub(crate) tty: bool,
    /// Whose table it is in.
    pub(crate) owner: OwnerCell,
    /// Who is asked about its network, if it has a proxy.
    pub(crate) watcher: Option<Arc<ClientNetworkWatcher>>,
    /// What its client has not acknowledged.
    pub(crate) unacked: UnackedOutput,
}

impl SessionProcess {
    /// Tells whether it belongs to the server.
    pub(crate) fn is_detached(&self) -> bool {
        self.owner.lock().detached
    }

    /// Keeps what its client does not acknowledge, from the oldest that is still there.
    pub(super) fn hold_unacked(&self) {
        // The first dialect has no numbers to acknowledge by.
        if !self.is_detached() && self.family == MethodFamily::Process {
            self.unacked.hold(&*self.handle);
        }
    }

    /// Lets go of what was kept for its client.
    pub(super) fn release_unacked(&self) {
        self.unacked.release();
    }

    /// Lets go of events up to `seq`. Tells whether that was the last of them.
    pub(super) fn acknowledge(&self, seq: OutputSeq) -> bool {
        self.unacked.acknowledge(&*self.handle, seq)
    }

    /// Tells whether something may not be acknowledged yet.
    pub(super) fn has_unacked(&self) -> bool {
        self.unacked.is_held()
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
pub(crate) struct OwnerCell(Mutex<TableOwner>);

#[derive(Clone, Debug)]
struct TableOwner {
    session: Weak<Session>,
    /// The table is that of the server.
    detached: bool,
}

impl OwnerCell {
    /// Begins in the table of a session, or in that of the server.
    pub(crate) fn new(session: &Arc<Session>, detached: bool) -> Self {
        Self(Mutex::new(TableOwner {
            session: Arc::downgrade(session),
            detached,
        }))
    }

    /// Moves to the table of the server.
    pub(super) fn detach(&self, server: &Arc<Session>) {
        *self.lock() = TableOwner {
            session: Arc::downgrade(server),
            detached: true,
        };
    }

    /// Returns whose table it is in, if that still exists.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.lock().session.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, TableOwner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in a table.
#[derive(Debug)]
pub(super) enum ProcessEntry {
    /// Taken, but nothing runs yet. Notifying it cancels the start.
    Starting(Arc<Notify>),
    /// Runs, or has run.
    Started(Arc<SessionProcess>),
}

/// What a table knows of an id.
#[derive(Debug)]
pub(crate) enum ProcessLookup {
    Unknown,
    Starting(Arc<Notify>),
    Started(Arc<SessionProcess>),
}

/// Processes by id.
pub(super) type ProcessTable = std::collections::BTreeMap<ProcessId, ProcessEntry>;

impl ProcessLookup {
    pub(super) fn of(entry: Option<&ProcessEntry>) -> Self {
        match entry {
            None => Self::Unknown,
            Some(ProcessEntry::Starting(cancel)) => Self::Starting(Arc::clone(cancel)),
            Some(ProcessEntry::Started(process)) => Self::Started(Arc::clone(process)),
        }
    }
}

/// A process that runs. Of its arguments nothing is shown: they may hold secrets.
#[derive(Debug)]
pub(crate) struct ProcessSpan(Span);

impl ProcessSpan {
    /// Begins with a process that was started. Its span belongs to that of the request, which ends long
    /// before it and is not to be kept open by it.
    pub(crate) fn begin(
        process: &SessionProcess,
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
            span.record("process_id", truncate_for_log(id.as_str()));
            span.record("process.pid", process.handle.status().os_pid);
            span.record("process.executable.name", program);
            tracing::info!(
                target: "exec_service::process",
                process_id = truncate_for_log(id.as_str()), process.executable.name = program,
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
fn program(process: &SessionProcess) -> &str {
    let program = process.argv.first().map_or("", String::as_str);
    let name = Path::new(program).file_name();
    truncate_for_log(name.and_then(|name| name.to_str()).unwrap_or_default())
}

/// A place for a process that is starting. Given back if it does not start, to the one that had it.
#[derive(Debug)]
pub(crate) struct StartReservation {
    pub(super) session: Arc<Session>,
    pub(super) id: ProcessId,
    pub(super) cancel: Arc<Notify>,
    pub(super) started: bool,
}

impl StartReservation {
    pub(crate) fn id(&self) -> &ProcessId {
        &self.id
    }

    /// Resolves when the process is terminated before it runs.
    pub(crate) async fn cancelled(&self) {
        self.cancel.notified().await;
    }

    /// Fills the place. Returns `false` if the session ended meanwhile.
    pub(crate) fn finish(mut self, process: &Arc<SessionProcess>, span: ProcessSpan) -> bool {
        self.started = true;
        // Declared before the lock is taken, so that it is dropped behind it.
        let displaced;
        let mut state = self.session.lock();
        if !state.table.contains_key(&self.id) {
            return false;
        }
        displaced = state.displaced.get(&self.id).cloned();
        if let Some(process) = &displaced {
            state.forget(process);
        }
        let entry = ProcessEntry::Started(Arc::clone(process));
        state.table.insert(self.id.clone(), entry);
        if state.retention_mode == RetentionMode::UntilAcknowledged {
            process.hold_unacked();
        }
        drop(state);
        self.session.meters.processes_started.increment();
        Session::watch_exit(process, span, Arc::clone(&self.session.meters));
        true
    }
}

impl Drop for StartReservation {
    fn drop(&mut self) {
        if self.started {
            return;
        }
        let mut state = self.session.lock();
        let ours = |entry: &ProcessEntry| match entry {
            ProcessEntry::Starting(cancel) => Arc::ptr_eq(cancel, &self.cancel),
            ProcessEntry::Started(_) => false,
        };
        if !state.table.get(&self.id).is_some_and(ours) {
            return;
        }
        match state.displaced.remove(&self.id) {
            None => drop(state.table.remove(&self.id)),
            Some(process) => {
                let entry = ProcessEntry::Started(process);
                state.table.insert(self.id.clone(), entry);
            }
        }
    }
}
