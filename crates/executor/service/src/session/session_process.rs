//! Processes in a session's table: the entry, its owner, its tracing span and the reservation while
//! it starts.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use exec_core::output_log::ExitInfo;
use exec_env::{process::ExecProcess, tunnel::EnvironmentNetwork};
use exec_wire::{
    id::{OutputSeq, ProcessId, SessionId},
    path_uri::PathUri,
    process::{ExitCause, ProcessOwner, ProcessState, ProcessSummary},
};
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tracing::{Span, field::Empty};

use super::{
    Session,
    process_records::RecordKey,
    retention::{RetentionMode, UnackedOutput},
};
use crate::{
    connection::MethodFamily,
    metrics::{ExitCauseCounters, ServiceMetrics},
    request_guard::{ContinueTrace, TraceOrigin, truncate_for_log},
    server_requests::ClientNetworkWatcher,
};

/// A started process with the parameters that `process/list` shows.
#[derive(Debug)]
pub(crate) struct SessionProcess {
    pub(crate) handle: Arc<dyn ExecProcess>,
    pub(crate) family: MethodFamily,
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: PathUri,
    pub(crate) tty: bool,
    /// Network of the environment that started the process, which finds it by its id.
    pub(crate) network: Arc<dyn EnvironmentNetwork>,
    /// Table that owns the process.
    pub(crate) owner: OwnerCell,
    /// Network watcher, if the process has a proxy.
    pub(crate) watcher: Option<Arc<ClientNetworkWatcher>>,
    /// Output that the client has not acknowledged.
    pub(crate) unacked: UnackedOutput,
    /// Whether the process is left to the next server.
    pub(crate) released: AtomicBool,
}

impl SessionProcess {
    /// Returns whether the server owns the process.
    pub(crate) fn is_detached(&self) -> bool {
        self.owner.lock().detached
    }

    /// Leaves a durable process that runs to the next server.
    pub(super) fn release(&self) -> BoxFuture<'static, bool> {
        let (is_running, released) = (self.has_live_tree(), self.handle.release());
        let is_durable = self.handle.record_id().is_some();
        self.released.store(is_running && is_durable, Relaxed);
        released
    }

    /// Returns whether the process is left to the next server.
    pub(super) fn is_released(&self) -> bool {
        self.released.load(Relaxed)
    }

    /// Starts to hold unacknowledged output, from the oldest retained chunk on.
    pub(super) fn hold_unacked(&self) {
        // `command/exec*` output has no sequence numbers to acknowledge.
        if !self.is_detached() && self.family == MethodFamily::Process {
            self.unacked.hold(&*self.handle);
        }
    }

    /// Stops holding unacknowledged output.
    pub(super) fn release_unacked(&self) {
        self.unacked.release();
    }

    /// Releases events up to `seq`. Returns whether these were the last ones.
    pub(super) fn acknowledge(&self, seq: OutputSeq) -> bool {
        self.unacked.acknowledge(&*self.handle, seq)
    }

    /// Returns whether unacknowledged output is held.
    pub(super) fn has_unacked(&self) -> bool {
        self.unacked.is_held()
    }

    /// Returns whether the process or a descendant is alive.
    pub(super) fn has_live_tree(&self) -> bool {
        self.handle.status().tree_alive
    }

    /// Returns the memory of a finished process: retained output and arguments.
    pub(super) fn finished_bytes(&self) -> usize {
        let arguments: usize = self.argv.iter().map(String::len).sum();
        self.handle.status().retained_bytes + arguments
    }

    pub(crate) fn summary(&self) -> ProcessSummary {
        let (status, detached) = (self.handle.status(), self.is_detached());
        let state = state_of(status.exit.as_ref());
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
            owner: Some(owner_of(detached)),
            state: Some(state),
            output_bytes: Some(status.retained_bytes as u64),
            durable: self.handle.record_id().map(|_| true),
            ended_at_ms: None,
            size: None,
        }
    }
}

/// Returns the state of a process with this exit.
pub(crate) fn state_of(exit: Option<&ExitInfo>) -> ProcessState {
    match exit {
        None => ProcessState::Running,
        Some(exit) if exit.cause == ExitCause::Lost => ProcessState::Lost,
        Some(_) => ProcessState::Exited,
    }
}

/// Returns the owner of a process.
pub(crate) fn owner_of(detached: bool) -> ProcessOwner {
    match detached {
        true => ProcessOwner::Server,
        false => ProcessOwner::Session,
    }
}

/// The table that owns a process. It changes at most once, when the server takes the process over.
#[derive(Debug)]
pub(crate) struct OwnerCell(Mutex<TableOwner>);

#[derive(Clone, Debug)]
struct TableOwner {
    session: Weak<Session>,
    /// The owner is the server.
    detached: bool,
}

impl OwnerCell {
    /// Creates the cell with its first owner, a session or the server.
    pub(crate) fn new(session: &Arc<Session>, detached: bool) -> Self {
        Self(Mutex::new(TableOwner {
            session: Arc::downgrade(session),
            detached,
        }))
    }

    /// Changes the owner to the server.
    pub(super) fn detach(&self, server: &Arc<Session>) {
        *self.lock() = TableOwner {
            session: Arc::downgrade(server),
            detached: true,
        };
    }

    /// Returns the owner, if it still exists.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.lock().session.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, TableOwner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of looking up a process id.
#[derive(Debug)]
pub(crate) enum ProcessLookup {
    Unknown,
    Starting(Arc<Notify>),
    Started(Arc<SessionProcess>),
}

/// Tracing span of a process from start to exit. It records no arguments, which may hold secrets.
#[derive(Debug)]
pub(crate) struct ProcessSpan(Span);

impl ProcessSpan {
    /// Opens the span as a child of the start request's span in the exported trace. It is not a
    /// child in the subscriber's tree, because it would keep the request's span open.
    pub(crate) fn start(
        process: &SessionProcess,
        owner: &SessionId,
        continue_trace: ContinueTrace,
    ) -> Self {
        let span = tracing::info_span!(
            target: "exec_service::process", parent: None, "process",
            process_id = Empty,
            session = owner.redacted(),
            process.pid = Empty,
            process.executable.name = Empty,
            process.exit.code = Empty,
            otel.status_code = Empty,
            cause = Empty,
            sandbox_denied = Empty,
        );
        if !span.is_disabled() {
            continue_trace(&span, TraceOrigin::Span(&Span::current()));
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

    /// Returns no span, for a process that an earlier server has started.
    pub(crate) fn none() -> Self {
        Self(Span::none())
    }

    /// Closes the span and counts the exit. An unknown exit counts as lost.
    pub(super) fn end(self, exit: Option<ExitInfo>, metrics: &ServiceMetrics) {
        let Self(span) = self;
        let cause = exit.as_ref().map_or(ExitCause::Lost, |exit| exit.cause);
        metrics.processes_ended.count(cause);
        let denied = exit.as_ref().is_some_and(|exit| exit.sandbox_denied);
        if denied {
            metrics.sandbox_denials.increment();
        }
        if span.is_disabled() {
            return;
        }
        let (cause, code) = (ExitCauseCounters::name(cause), exit.map(|exit| exit.code));
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

/// Returns the file name of the program.
fn program(process: &SessionProcess) -> &str {
    let program = process.argv.first().map_or("", String::as_str);
    let name = Path::new(program).file_name();
    truncate_for_log(name.and_then(|name| name.to_str()).unwrap_or_default())
}

/// Reservation of a process id. Dropping it frees the id, or restores the displaced process.
#[derive(Debug)]
pub(crate) struct StartReservation {
    pub(super) session: Arc<Session>,
    pub(super) key: RecordKey,
    pub(super) cancel: Arc<Notify>,
}

impl StartReservation {
    pub(crate) fn id(&self) -> &ProcessId {
        &self.key.0
    }

    /// Resolves when the start is cancelled.
    pub(crate) async fn cancelled(&self) {
        self.cancel.notified().await;
    }

    /// Enters the started process into the table. Returns `false` if the session ended meanwhile.
    pub(crate) fn finish(self, process: &Arc<SessionProcess>, span: ProcessSpan) -> bool {
        // Declared before the guard, so that the process is dropped after the lock is released.
        let displaced;
        let mut state = self.session.lock();
        displaced = state.processes.start(&self.key, process);
        if displaced.is_none() {
            return false;
        }
        if state.retention_mode == RetentionMode::UntilAcknowledged {
            process.hold_unacked();
        }
        drop(state);
        self.session.metrics.processes_started.increment();
        Session::watch_exit(process, span, Arc::clone(&self.session.metrics));
        true
    }
}

impl Drop for StartReservation {
    fn drop(&mut self) {
        self.session.lock().processes.cancel(&self.key);
    }
}
