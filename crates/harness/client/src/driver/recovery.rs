//! Recovery: reconnects with backoff until the session is resumed.

use std::{sync::Arc, time::Duration};

use exec_env::environment::DisconnectReason;
use exec_wire::id::SessionId;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{ClientDriver, DriverState, connection::ClientConnection, resume_state::ResumeState};
use crate::{
    client::ConnectionState,
    connect::{RetryDelay, ServerConnector},
    error::ConnectError,
    handshake::{OpenedSession, open_session},
};

/// Minimum duration of recovery, also used for servers that do not report a session lifetime. As in
/// the stock client since 0.169. A server that has dropped the session says so earlier.
const MIN_RECOVERY_WINDOW: Duration = Duration::from_secs(45);
/// Maximum duration of recovery.
const MAX_RECOVERY_WINDOW: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Minimum delay between a failed attempt and a requested retry.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);

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
        match connector.retry_delay(self.number) {
            RetryDelay::FromStart(pause) => self.started + pause,
            RetryDelay::FromEnd(pause) => self.ended + pause,
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
        let ttl = self.shared.session_state().borrow().session.session_ttl_ms;
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
                        shared.retry_requested().await;
                        sleep_until(last.ended + MIN_RETRY_DELAY).await;
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
