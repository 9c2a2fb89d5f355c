//! Recovering: connections are opened until one takes up the session.

use std::{sync::Arc, time::Duration};

use exec_env::disconnect::Disconnect;
use exec_wire::id::SessionId;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Driver, State, connection::Connection, resume_state::Remains};
use crate::{
    client::ConnectionState,
    connect::{Connector, Pause},
    error::ConnectError,
    handshake::{Opened, open},
};

/// How long recovery is tried at least, and with servers that do not tell how long they keep a
/// session: as the stock client since 0.169. A server that has dropped the session says so.
const WINDOW: Duration = Duration::from_secs(45);
/// How long it is tried at most, whatever the server tells.
const MAX_WINDOW: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long after an attempt failed the next one may begin if somebody asks for it.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// An attempt that has not led to anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    begun: Instant,
    ended: Instant,
    /// How many there were before it.
    number: u32,
}

impl Attempt {
    /// Returns when the next one may begin.
    fn next(self, connector: &dyn Connector) -> Instant {
        match connector.pause(self.number) {
            Pause::AfterBegin(pause) => self.begun + pause,
            Pause::AfterEnd(pause) => self.ended + pause,
        }
    }
}

/// What attempts came to.
pub(super) enum Reopened {
    Opened(Box<Opened>),
    /// The time is up. What the last attempt came to, if there was one.
    OutOfTime(Option<ConnectError>),
    /// Another attempt would come to nothing either.
    Refused(ConnectError),
    /// Nobody needs it any more.
    Over,
}

impl Driver {
    /// Returns how long recovery is tried: as long as the server keeps the session, unless somebody
    /// wants to give up earlier.
    pub(super) fn window(&self) -> Duration {
        let kept = self.hub.current().borrow().session.session_ttl_ms;
        let window = kept.map_or(WINDOW, Duration::from_millis);
        let window = window.clamp(WINDOW, MAX_WINDOW);
        let limit = self.hub.reconnect_timeout();
        limit.map_or(window, |limit| limit.min(window))
    }

    /// Tries until the session is resumed, until it cannot be, or until the time is up.
    pub(super) async fn recover(&mut self, remains: Remains) -> State {
        let Some(connector) = self.connector.clone() else {
            let gone = Disconnect::Transport(remains.cause.clone());
            return self.lose(remains, gone);
        };
        self.hub.set_connection(ConnectionState::Reconnecting);
        let (session, window) = (remains.session.clone(), self.window());
        let deadline = remains.since + window;
        match self.reopen(&connector, Some(session), deadline).await {
            Reopened::Opened(opened) => self.resume(*opened, remains),
            Reopened::OutOfTime(last) => {
                let gone = out_of_time(&remains, window, last);
                self.lose(remains, gone)
            }
            Reopened::Refused(error) => {
                let gone = given_up(&remains, error);
                self.lose(remains, gone)
            }
            Reopened::Over => State::Over,
        }
    }

    /// Tries until there is a connection with this session on it, or with a new one.
    pub(super) async fn reopen(
        &mut self,
        connector: &Arc<dyn Connector>,
        session: Option<SessionId>,
        deadline: Instant,
    ) -> Reopened {
        let mut last = None;
        loop {
            let (connector, options) = (Arc::clone(connector), self.options.clone());
            let session = session.clone();
            let (attempted, hub) = (self.attempted, Arc::clone(&self.hub));
            let attempt = async {
                if let Some(last) = attempted {
                    let retry = async {
                        hub.retry_requested().await;
                        sleep_until(last.ended + RETRY_PAUSE).await;
                    };
                    tokio::select! {
                        () = sleep_until(last.next(&*connector)) => {}
                        () = retry => {}
                    }
                }
                let begun = Instant::now();
                let link = match session {
                    Some(_) => connector.reconnect(),
                    None => connector.renew(),
                };
                (begun, open(link, &options, session).await)
            };
            let attempt = timeout_at(deadline, attempt);
            let Some(attempt) = self.queue.hold_while(attempt).await else {
                return Reopened::Over;
            };
            let Ok((begun, attempt)) = attempt else {
                return Reopened::OutOfTime(last);
            };
            self.attempted = Some(Attempt {
                begun,
                ended: Instant::now(),
                number: self
                    .attempted
                    .map_or(0, |last| last.number.saturating_add(1)),
            });
            match attempt {
                Ok(opened) => return Reopened::Opened(Box::new(opened)),
                Err(error) if error.is_passing() => {
                    tracing::debug!(%error, "session is not resumed yet");
                    last = Some(error);
                }
                Err(error) => return Reopened::Refused(error),
            }
        }
    }

    pub(super) fn resume(&mut self, opened: Opened, remains: Remains) -> State {
        let number = self.next_connection();
        let connection = Connection::resume(opened, number, &self.hub, remains);
        State::Connected(Box::new(connection))
    }
}

/// Why it was not tried any longer.
fn out_of_time(remains: &Remains, window: Duration, last: Option<ConnectError>) -> Disconnect {
    let last = last.map_or_else(
        || "the server did not answer".to_owned(),
        |error| error.to_string(),
    );
    let Remains { cause, .. } = remains;
    let text = format!("{cause}; session was not resumed within {window:?}: {last}");
    Disconnect::Transport(text)
}

/// Why it was not tried again.
pub(super) fn given_up(remains: &Remains, error: ConnectError) -> Disconnect {
    let text = |text: String| format!("{}; session was not resumed: {text}", remains.cause);
    match error.disconnect() {
        Disconnect::Session(reason) => Disconnect::Session(text(reason)),
        Disconnect::Protocol(reason) => Disconnect::Protocol(text(reason)),
        Disconnect::Transport(reason) => Disconnect::Transport(text(reason)),
        other => other,
    }
}
