//! Recovery: reconnects with backoff until the session is resumed.
//!
//! [`ResumeState`] survives the disconnect. On the next connection the client reads every process
//! after its last received event, because the server does not repeat events but sends live ones
//! from the resume on. The same read decides whether an unanswered start succeeded. Then it retries
//! the calls that may be retried, in order and before new ones.
//!
//! A read that is interrupted again is retried in smaller pages, so that unstable connections make
//! progress.

use std::{sync::Arc, time::Duration};

use exec_env::{environment::DisconnectReason, process::ProcessError};
use exec_wire::{error::ErrorCode, id::SessionId, method::Method, process::StartProcess};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    ClientDriver, DriverState,
    call::{AttachWaiter, Call, CallResult, ConnectionNumber, ResponseSink},
    connection::{ClientConnection, FlowControlMode},
    session_processes::{FinalAck, SessionProcesses},
};
use crate::{
    client::ConnectionState,
    client_shared::{ClientShared, DeferredRelease},
    connect::{BackoffDelay, ServerConnector},
    error::{ConnectError, ExecServerError},
    events::{EventsError, ProcessEvents, ProcessOwner},
    handshake::{OpenedSession, open_session},
};

/// Minimum duration of recovery, also used for servers that do not report a session lifetime. As in
/// the stock client since 0.169. A server that has dropped the session says so earlier.
const MIN_RECOVERY_WINDOW: Duration = Duration::from_secs(45);
/// Maximum duration of recovery.
const MAX_RECOVERY_WINDOW: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Minimum backoff between a failed attempt and a requested retry.
const MIN_BACKOFF: Duration = Duration::from_millis(100);

/// An attempt that has not led to a useful connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReconnectAttempt {
    started: Instant,
    ended: Instant,
    /// Number of attempts before it.
    number: u32,
}

impl ReconnectAttempt {
    /// Returns the start time of the next attempt.
    fn next_start(self, connector: &dyn ServerConnector) -> Instant {
        match connector.backoff(self.number) {
            BackoffDelay::FromStart(delay) => self.started + delay,
            BackoffDelay::FromEnd(delay) => self.ended + delay,
        }
    }
}

/// Outcome of the reconnect attempts.
pub(super) enum ReopenOutcome {
    Opened(Box<OpenedSession>),
    /// The recovery window is over. Holds the last error, if any.
    TimedOut(Option<ConnectError>),
    /// A permanent error, which a retry would not fix.
    Refused(ConnectError),
    /// All handles are dropped.
    ClientDropped,
}

impl ClientDriver {
    /// Returns the duration of recovery: the session's lifetime on the server, or the reconnect
    /// timeout if that is shorter.
    pub(super) fn recovery_window(&self) -> Duration {
        let ttl = self.shared.session_state.borrow().session.session_ttl_ms;
        let window = ttl.map_or(MIN_RECOVERY_WINDOW, Duration::from_millis);
        let window = window.clamp(MIN_RECOVERY_WINDOW, MAX_RECOVERY_WINDOW);
        let limit = self.shared.reconnect_timeout();
        limit.map_or(window, |limit| limit.min(window))
    }

    /// Retries until the session is resumed, is refused, or the recovery window is over.
    pub(super) async fn recover(&mut self, resume_state: ResumeState) -> DriverState {
        let Some(connector) = self.connector.clone() else {
            let reason = DisconnectReason::Transport(resume_state.cause.clone());
            return self.lose_session(resume_state, reason);
        };
        self.shared.set_connection(ConnectionState::Reconnecting);
        let (session, window) = (resume_state.session.clone(), self.recovery_window());
        let deadline = resume_state.since + window;
        match self.reopen(&connector, Some(session), deadline).await {
            ReopenOutcome::Opened(opened) => self.resume(*opened, resume_state),
            ReopenOutcome::TimedOut(last) => {
                let reason = timed_out(&resume_state, window, last);
                self.lose_session(resume_state, reason)
            }
            ReopenOutcome::Refused(error) => {
                let reason = refused(&resume_state, error);
                self.lose_session(resume_state, reason)
            }
            ReopenOutcome::ClientDropped => DriverState::Stopped,
        }
    }

    /// Retries until a connection with this session, or with a new one, is open.
    pub(super) async fn reopen(
        &mut self,
        connector: &Arc<dyn ServerConnector>,
        session: Option<SessionId>,
        deadline: Instant,
    ) -> ReopenOutcome {
        let mut last = None;
        loop {
            let (connector, options) = (Arc::clone(connector), self.options.clone());
            let session = session.clone();
            let (last_attempt, shared) = (self.last_attempt, Arc::clone(&self.shared));
            let attempt = async {
                if let Some(last) = last_attempt {
                    let retry = async {
                        shared.retry.notified().await;
                        sleep_until(last.ended + MIN_BACKOFF).await;
                    };
                    tokio::select! {
                        () = sleep_until(last.next_start(&*connector)) => {}
                        () = retry => {}
                    }
                }
                let started = Instant::now();
                let link = match session {
                    Some(_) => connector.reconnect(),
                    None => connector.renew(),
                };
                (started, open_session(link, &options, session).await)
            };
            let attempt = timeout_at(deadline, attempt);
            let Some(attempt) = self.queue.hold_while(attempt).await else {
                return ReopenOutcome::ClientDropped;
            };
            let Ok((started, attempt)) = attempt else {
                return ReopenOutcome::TimedOut(last);
            };
            self.last_attempt = Some(ReconnectAttempt {
                started,
                ended: Instant::now(),
                number: self
                    .last_attempt
                    .map_or(0, |last| last.number.saturating_add(1)),
            });
            match attempt {
                Ok(opened) => return ReopenOutcome::Opened(Box::new(opened)),
                Err(error) if error.is_transient() => {
                    tracing::debug!(%error, "reconnect attempt failed");
                    last = Some(error);
                }
                Err(error) => return ReopenOutcome::Refused(error),
            }
        }
    }

    pub(super) fn resume(
        &mut self,
        opened: OpenedSession,
        resume_state: ResumeState,
    ) -> DriverState {
        let number = self.next_connection();
        let connection = ClientConnection::resume(opened, number, &self.shared, resume_state);
        DriverState::Connected(Box::new(connection))
    }
}

/// Describes the end of the recovery window.
fn timed_out(
    resume_state: &ResumeState,
    window: Duration,
    last: Option<ConnectError>,
) -> DisconnectReason {
    let last = last.map_or_else(
        || "the server did not answer".to_owned(),
        |error| error.to_string(),
    );
    let ResumeState { cause, .. } = resume_state;
    let text = format!("{cause}; session was not resumed within {window:?}: {last}");
    DisconnectReason::Transport(text)
}

/// Describes a permanent refusal.
pub(super) fn refused(resume_state: &ResumeState, error: ConnectError) -> DisconnectReason {
    let text = |text: String| format!("{}; session was not resumed: {text}", resume_state.cause);
    match error.into_disconnect() {
        DisconnectReason::Session(reason) => DisconnectReason::Session(text(reason)),
        DisconnectReason::Protocol(reason) => DisconnectReason::Protocol(text(reason)),
        DisconnectReason::Transport(reason) => DisconnectReason::Transport(text(reason)),
        other => other,
    }
}

/// The state that survives a disconnect.
#[derive(Debug)]
pub(super) struct ResumeState {
    pub(super) session: SessionId,
    /// Why the connection ended.
    pub(super) cause: String,
    /// Start of the period without a useful connection.
    pub(super) since: Instant,
    pub(super) processes: SessionProcesses,
    /// Unanswered starts, and processes to attach.
    pub(super) pending: Vec<(AttachWaiter, Arc<ProcessEvents>)>,
    /// Calls to retry.
    pub(super) retries: Vec<Call>,
    /// Calls that were not sent.
    pub(super) unsent: Vec<Call>,
}

impl ResumeState {
    /// Fails everything because the session is lost.
    pub(super) fn fail(mut self, reason: &DisconnectReason) {
        self.processes
            .fail(&ProcessError::Disconnected(reason.clone()));
        for (pending, _) in self.pending {
            pending.fail(reason.clone().into());
        }
        for call in self.retries.into_iter().chain(self.unsent) {
            call.sink.fail(reason.clone().into());
        }
    }

    /// Fails the state of the session, and returns the rest: server-owned processes and their
    /// calls.
    pub(super) fn fail_session(mut self, reason: &DisconnectReason) -> Self {
        let attached = self.processes.take_server_owned();
        let is_server_owned =
            |(_, process): &mut (_, Arc<ProcessEvents>)| process.owner() == ProcessOwner::Server;
        let pending = self.pending.extract_if(.., is_server_owned).collect();
        let is_server_owned = |call: &mut Call| call.target.is_some();
        let retries = self.retries.extract_if(.., is_server_owned).collect();
        let unsent = self.unsent.extract_if(.., is_server_owned).collect();
        let server_state = Self {
            session: self.session.clone(),
            cause: self.cause.clone(),
            since: self.since,
            processes: attached,
            pending,
            retries,
            unsent,
        };
        self.fail(reason);
        server_state
    }
}

impl ClientConnection {
    /// Resumes a session. Messages from the handshake are handled when the connection is driven.
    pub(super) fn resume(
        opened: OpenedSession,
        number: ConnectionNumber,
        shared: &Arc<ClientShared>,
        resume_state: ResumeState,
    ) -> Self {
        let mut connection = Self::new(opened, number, shared);
        connection.processes = resume_state.processes;
        // Processes record their own release, and most other resources ended with the connection.
        for release in shared.take_releases() {
            if let DeferredRelease::Tunnel(id) = release {
                shared.tunnels.tunnels.send_close(id, None);
            }
        }
        connection.last_cause = resume_state.cause;
        connection.resend_final_acks();
        let mut all_pending = resume_state.pending;
        let mut unconfirmed = Vec::new();
        let mut processes = connection.processes.all();
        if let Some(offset) = number.0.checked_rem(processes.len() as u64) {
            // Rotate the order, because an unstable connection may answer only the first read.
            processes.rotate_left(usize::try_from(offset).unwrap_or_default());
        }
        for process in processes {
            let pending = all_pending
                .iter()
                .position(|(_, pending)| Arc::ptr_eq(pending, &process));
            let pending =
                pending.map_or(AttachWaiter::None, |index| all_pending.swap_remove(index).0);
            match process.owner() {
                ProcessOwner::Session => connection.resume_process(&process, pending),
                ProcessOwner::Server => {
                    unconfirmed.extend(connection.resume_attached(&process, pending));
                }
            }
        }
        connection.look_up(unconfirmed);
        for call in resume_state.retries {
            match &call.target {
                None => connection.send(call),
                Some(_) => connection.handle_call(call),
            }
        }
        for call in resume_state.unsent {
            connection.handle_call(call);
        }
        if connection.unanswered > 0 {
            connection.stalled_since = Some(resume_state.since);
        }
        connection
    }

    /// Repeats the final acks that may have been lost.
    fn resend_final_acks(&mut self) {
        for FinalAck { id, seq, .. } in self.processes.finished.take_unconfirmed() {
            let process = self.processes.find(&id);
            // The id may name a new process with unread events.
            let is_open = process.is_some_and(|process| !process.is_closed());
            if self.flow_control == FlowControlMode::PerProcess && !is_open {
                self.send_final_ack(&id, seq);
            }
        }
    }

    fn resume_process(&mut self, process: &Arc<ProcessEvents>, pending: AttachWaiter) {
        let start = match pending {
            AttachWaiter::Start(reply) => Some(reply),
            // Only server-owned processes are attached.
            AttachWaiter::None | AttachWaiter::Attach(_) => None,
        };
        if start.is_some() && self.processes.finished.contains(process.id()) {
            // The server may still know a previous process with this id.
            let reason = DisconnectReason::Transport(self.last_cause.clone());
            process.fail(ProcessError::Disconnected(reason));
        }
        if process.is_failed() {
            if let Some(reply) = start {
                drop(reply.send(Err(self.not_started())));
            }
            // The earlier termination may have been lost.
            return self.terminate_failed(process);
        }
        if process.is_released() {
            self.terminate(process);
        }
        let sink = match start {
            Some(reply) => ResponseSink::ProbeStart(reply, Arc::clone(process)),
            None if process.is_closed() => return self.remove_if_done(process),
            None => ResponseSink::FillGap(Arc::clone(process)),
        };
        let missing = process.handle_resume();
        self.read_output(process, missing, sink);
    }

    /// Decides whether a start succeeded by whether the server knows the process.
    pub(super) fn handle_start_probe(
        &mut self,
        reply: oneshot::Sender<CallResult>,
        process: &Arc<ProcessEvents>,
        page: CallResult,
    ) {
        match page {
            Ok(page) => {
                let answered = self.start_response(process.id());
                self.handed_out_process = true;
                if reply.send(Ok(answered)).is_err() {
                    self.terminate(process);
                }
                self.handle_page(process, Ok(page));
            }
            Err(_) => {
                // The start may still be on its way. Terminating an unknown process is harmless.
                self.terminate(process);
                self.processes.finish(process);
                drop(reply.send(Err(self.not_started())));
            }
        }
    }

    pub(super) fn not_started(&self) -> ExecServerError {
        ExecServerError::Interrupted {
            method: StartProcess::NAME.as_str(),
            reason: self.last_cause.clone(),
        }
    }

    /// Handles the response to `process/read`.
    pub(super) fn handle_page(&mut self, process: &Arc<ProcessEvents>, page: CallResult) {
        let recorded = match page {
            Ok(page) => serde_json::from_slice(&page.result)
                .map_err(|error| {
                    EventsError::Malformed(format!("result of `process/read`: {error}"))
                })
                .and_then(|page| process.handle_page(page)),
            Err(error) => Err(read_failure(error)),
        };
        self.apply_recorded(process, recorded);
    }
}

/// Maps a failed read to the failure of its process.
pub(super) fn read_failure(error: ExecServerError) -> EventsError {
    if let ExecServerError::Remote(error) = &error
        && error.code == ErrorCode::INVALID_REQUEST
    {
        return EventsError::Unknown(error.message.clone());
    }
    EventsError::ReadFailed(error.to_string())
}
