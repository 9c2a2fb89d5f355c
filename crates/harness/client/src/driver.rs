//! The task that owns a client's connection to its server, in one of four states.
//!
//! - *Connected* ([`connection`]): reads, writes, matches responses to calls, and passes every event
//!   to its process and every change to its watch.
//! - *Recovering* ([`recovery`]): the connection broke. Opens another one and resumes the session on
//!   it. Calls wait.
//! - *Renewing*: the session is gone, but processes that belong to the server have handles. Opens
//!   another session and attaches to them again.
//! - *Lost*: everything of the session has failed. The next call opens another session.
//!
//! Invariant: every caller gets a response, or an error with the reason.

mod attach;
mod call;
mod connection;
mod receive;
mod recovery;
mod send;
mod server_requests;
mod session_processes;

pub(crate) use self::{
    call::{
        AttachWaiter, Call, CallResult, ConnectionNumber, MAX_QUEUED_CALLS, OpenedResource,
        RawResponse, RequestBuilder, ResponseSink, RetryPolicy,
    },
    server_requests::NetworkHook,
};

use std::{sync::Arc, time::Duration};

use exec_env::environment::DisconnectReason;
use tokio::{sync::mpsc, time::Instant};

use self::{
    call::CallQueue,
    connection::{ClientConnection, DisconnectCause},
    recovery::{ReconnectAttempt, ReopenOutcome, ResumeState},
};
use crate::{
    client::{ConnectionState, ExecServerClientConnectOptions},
    client_shared::ClientShared,
    connect::{ServerConnector, SessionContinuity},
    error::ExecServerError,
    handshake::{OpenedSession, open_session},
};

/// Maximum number of protocol violations, on connections that do not last, before the session is
/// abandoned.
const MAX_PROTOCOL_VIOLATIONS: u32 = 3;
/// Age at which a connection clears the record of earlier failures.
const STABLE_AFTER: Duration = Duration::from_secs(25);

#[derive(Debug)]
pub(crate) struct ClientDriver {
    /// Opens connections. Absent: the client cannot reconnect.
    connector: Option<Arc<dyn ServerConnector>>,
    options: ExecServerClientConnectOptions,
    queue: CallQueue,
    shared: Arc<ClientShared>,
    /// The last reconnect attempt, until a connection has been useful.
    last_attempt: Option<ReconnectAttempt>,
    connection_count: u64,
    protocol_violations: u32,
}

/// Returns the reason for operations that fail because the driver has stopped.
pub(crate) fn driver_stopped() -> DisconnectReason {
    DisconnectReason::Transport("the client's driver was stopped".to_owned())
}

impl Drop for ClientDriver {
    fn drop(&mut self) {
        if self.shared.session_state.borrow().lost.is_none() {
            self.shared.handle_lost(&driver_stopped());
        }
        self.shared.set_connection(ConnectionState::Lost);
        self.shared.close();
    }
}

/// State of the driver.
#[derive(Debug)]
enum DriverState {
    /// Connected.
    Connected(Box<ClientConnection>),
    /// Reconnecting to resume the session.
    Recovering(ResumeState),
    /// Opening a new session for the server-owned processes that outlived the previous one.
    Renewing(ResumeState, DisconnectReason),
    /// Without a session.
    Lost(DisconnectReason),
    /// All handles are dropped.
    Stopped,
}

impl ClientDriver {
    pub(crate) fn new(
        connector: Option<Arc<dyn ServerConnector>>,
        options: ExecServerClientConnectOptions,
        calls: mpsc::Receiver<Call>,
        shared: Arc<ClientShared>,
    ) -> Self {
        Self {
            connector,
            options,
            queue: CallQueue::new(calls),
            shared,
            last_attempt: None,
            connection_count: 0,
            protocol_violations: 0,
        }
    }

    /// Runs until all handles are dropped.
    pub(crate) async fn run(mut self, opened: OpenedSession) {
        let mut state = self.start_session(opened);
        loop {
            state = match state {
                DriverState::Connected(connection) => self.drive(connection).await,
                DriverState::Recovering(resume_state) => self.recover(resume_state).await,
                DriverState::Renewing(resume_state, reason) => {
                    self.renew(resume_state, reason).await
                }
                DriverState::Lost(reason) => self.wait_for_call(reason).await,
                DriverState::Stopped => return,
            };
        }
    }

    /// Starts using a new session.
    fn start_session(&mut self, opened: OpenedSession) -> DriverState {
        let number = self.next_connection();
        let connection = ClientConnection::new(opened, number, &self.shared);
        DriverState::Connected(Box::new(connection))
    }

    fn next_connection(&mut self) -> ConnectionNumber {
        self.connection_count += 1;
        ConnectionNumber(self.connection_count)
    }

    /// Drives a connection until it breaks.
    async fn drive(&mut self, mut connection: Box<ClientConnection>) -> DriverState {
        let Err(cause) = connection.drive(&mut self.queue).await else {
            return DriverState::Stopped;
        };
        tracing::debug!(%cause, "connection ended");
        let resumable = self.is_resumable();
        if connection.has_response() {
            self.last_attempt = None;
        }
        if connection.age() >= STABLE_AFTER {
            self.last_attempt = None;
            self.protocol_violations = 0;
        }
        if matches!(cause, DisconnectCause::Protocol(_)) {
            self.protocol_violations += 1;
        }
        if resumable && self.protocol_violations < MAX_PROTOCOL_VIOLATIONS {
            return DriverState::Recovering(connection.into_resume_state(&cause, None));
        }
        let reason = DisconnectReason::from(cause.clone());
        self.lose_session(connection.into_resume_state(&cause, Some(&reason)), reason)
    }

    /// Returns whether the server survives its connections.
    fn is_resumable(&self) -> bool {
        let connector = self.connector.as_ref();
        connector.is_some_and(|connector| connector.continuity() == SessionContinuity::Resumed)
    }

    /// Fails everything that belongs to the session. Server-owned processes continue in another
    /// session, unless the server is unreachable.
    fn lose_session(&mut self, resume_state: ResumeState, reason: DisconnectReason) -> DriverState {
        // First, so that a caller that sees a process fail and calls again does not wait for this
        // session.
        self.shared.handle_lost(&reason);
        let resume_state = resume_state.fail_session(&reason);
        let renewable = matches!(reason, DisconnectReason::Session(_)) && self.is_resumable();
        if !renewable || resume_state.processes.is_empty() {
            return self.fail_all(resume_state, reason);
        }
        let error = ExecServerError::Disconnected(reason.clone());
        self.queue.fail_session(&error);
        DriverState::Renewing(resume_state, reason)
    }

    /// Fails everything.
    fn fail_all(&mut self, resume_state: ResumeState, reason: DisconnectReason) -> DriverState {
        self.shared.set_connection(ConnectionState::Lost);
        resume_state.fail(&reason);
        if self.connector.is_none() {
            self.queue.close();
        }
        self.queue
            .fail(&ExecServerError::Disconnected(reason.clone()));
        DriverState::Lost(reason)
    }
}

impl ClientDriver {
    /// Retries until a new session is open, is refused, or the recovery window is over.
    async fn renew(&mut self, resume_state: ResumeState, reason: DisconnectReason) -> DriverState {
        let Some(connector) = self.connector.clone() else {
            return self.fail_all(resume_state, reason);
        };
        let window = self.recovery_window();
        let deadline = Instant::now() + window;
        match self.reopen(&connector, None, deadline).await {
            ReopenOutcome::Opened(opened) => {
                // The new session has its own recovery window.
                let since = Instant::now();
                self.resume(
                    *opened,
                    ResumeState {
                        since,
                        ..resume_state
                    },
                )
            }
            ReopenOutcome::ClientDropped => DriverState::Stopped,
            ReopenOutcome::TimedOut(last) => {
                tracing::debug!(?last, "failed to open a new session within {window:?}");
                self.fail_all(resume_state, reason)
            }
            ReopenOutcome::Refused(error) => {
                tracing::debug!(%error, "failed to open a new session");
                self.fail_all(resume_state, reason)
            }
        }
    }
}

impl ClientDriver {
    /// Waits for a call and opens another session for it. If that fails, the call fails, and its
    /// caller decides about a retry.
    async fn wait_for_call(&mut self, reason: DisconnectReason) -> DriverState {
        let Some(call) = self.queue.next().await else {
            return DriverState::Stopped;
        };
        let Some(connector) = self.connector.clone() else {
            call.sink.fail(reason.clone().into());
            return DriverState::Lost(reason);
        };
        if !call.sink.is_awaited() {
            return DriverState::Lost(reason);
        }
        self.queue.hold(call);
        self.shared.set_connection(ConnectionState::Reconnecting);
        let options = self.options.clone();
        let opening = open_session(connector.connect(), &options, None);
        match self.queue.hold_while(opening).await {
            None => DriverState::Stopped,
            Some(Ok(opened)) => {
                self.last_attempt = None;
                self.start_session(opened)
            }
            Some(Err(error)) => {
                self.shared.set_connection(ConnectionState::Lost);
                self.queue.fail(&ExecServerError::Connect(error));
                DriverState::Lost(reason)
            }
        }
    }
}
