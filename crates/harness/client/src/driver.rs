//! The task that owns a client's connection to its server, in one of four states.
//!
//! - *Connected* ([`connection`]): reads, writes, matches responses to calls, and passes every event
//!   to its process and every change to its watch.
//! - *Recovering* ([`recovery`]): the connection broke. Opens another one and resumes the session on
//!   it ([`resume_state`]). Calls wait.
//! - *Renewing*: the session is gone, but processes that belong to the server have handles. Opens
//!   another session and attaches to them again.
//! - *Lost*: everything of the session has failed. The next call opens another session.
//!
//! Invariant: every caller gets a response, or an error that says why there is none.

mod attach;
mod backpressure;
mod call;
mod connection;
mod receive;
mod recovery;
mod resume_state;
mod send;
mod server_requests;
mod session_processes;
mod streams;

pub(crate) use self::{
    call::{
        Answered, Ask, ConnectionNumber, Opens, Pending, QUEUE, Repeat, Reply, Request, Waiter,
    },
    server_requests::Watch,
};

use std::{sync::Arc, time::Duration};

use exec_env::disconnect::Disconnect;
use tokio::{sync::mpsc, time::Instant};

use self::{
    call::Queue,
    connection::{Cause, Connection},
    recovery::{Attempt, Reopened},
    resume_state::Remains,
};
use crate::{
    client::{ConnectionState, ExecServerClientConnectOptions},
    client_shared::Hub,
    connect::{Connector, Continuity},
    error::ExecServerError,
    handshake::{Opened, open},
};

/// How often a server may break the protocol, on connections that do not last, before its session is
/// given up.
const MAX_BROKEN_PROMISES: u32 = 3;
/// How long a connection lasts whose predecessors do not count any more.
const LONG: Duration = Duration::from_secs(25);

#[derive(Debug)]
pub(crate) struct Driver {
    /// Opens connections. Without one there is only the first.
    connector: Option<Arc<dyn Connector>>,
    options: ExecServerClientConnectOptions,
    queue: Queue,
    hub: Arc<Hub>,
    /// The last attempt to recover, unless it has led to something.
    attempted: Option<Attempt>,
    connections: u64,
    broken_promises: u32,
}

/// Why there is nothing any more if nothing went wrong with the connection.
pub(crate) fn stopped() -> Disconnect {
    Disconnect::Transport("the client's task was stopped".to_owned())
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.hub.current().borrow().lost.is_none() {
            self.hub.handle_lost(&stopped());
        }
        self.hub.set_connection(ConnectionState::Lost);
        self.hub.close();
    }
}

/// Where the client stands.
#[derive(Debug)]
enum State {
    /// There is a connection.
    Connected(Box<Connection>),
    /// There was one.
    Recovering(Remains),
    /// There was a session, and processes are left that do not belong to it.
    Renewing(Remains, Disconnect),
    /// There is no session.
    Lost(Disconnect),
    /// Nobody needs it any more.
    Over,
}

impl Driver {
    pub(crate) fn new(
        connector: Option<Arc<dyn Connector>>,
        options: ExecServerClientConnectOptions,
        asks: mpsc::Receiver<Ask>,
        hub: Arc<Hub>,
    ) -> Self {
        Self {
            connector,
            options,
            queue: Queue::new(asks),
            hub,
            attempted: None,
            connections: 0,
            broken_promises: 0,
        }
    }

    /// Runs until nobody needs the client.
    pub(crate) async fn run(mut self, opened: Opened) {
        let mut state = self.begin(opened);
        loop {
            state = match state {
                State::Connected(connection) => self.drive(connection).await,
                State::Recovering(remains) => self.recover(remains).await,
                State::Renewing(remains, gone) => self.renew(remains, gone).await,
                State::Lost(gone) => self.wait_for_use(gone).await,
                State::Over => return,
            };
        }
    }

    /// Begins a session.
    fn begin(&mut self, opened: Opened) -> State {
        let number = self.next_connection();
        let connection = Connection::new(opened, number, &self.hub);
        State::Connected(Box::new(connection))
    }

    fn next_connection(&mut self) -> ConnectionNumber {
        self.connections += 1;
        ConnectionNumber(self.connections)
    }

    /// Uses a connection until it breaks.
    async fn drive(&mut self, mut connection: Box<Connection>) -> State {
        let Err(cause) = connection.drive(&mut self.queue).await else {
            return State::Over;
        };
        tracing::debug!(%cause, "connection is given up");
        let resumable = self.is_resumable();
        if connection.has_answered() {
            self.attempted = None;
        }
        if connection.age() >= LONG {
            self.attempted = None;
            self.broken_promises = 0;
        }
        if matches!(cause, Cause::Protocol(_)) {
            self.broken_promises += 1;
        }
        if resumable && self.broken_promises < MAX_BROKEN_PROMISES {
            return State::Recovering(connection.into_remains(&cause, None));
        }
        let gone = Disconnect::from(cause.clone());
        self.lose(connection.into_remains(&cause, Some(&gone)), gone)
    }

    /// Tells whether a server outlives its connections.
    fn is_resumable(&self) -> bool {
        let connector = self.connector.as_ref();
        connector.is_some_and(|connector| connector.continuity() == Continuity::Resumed)
    }

    /// Fails everything that belongs to the session. What belongs to the server goes on in another
    /// one, unless the server is out of reach.
    fn lose(&mut self, remains: Remains, gone: Disconnect) -> State {
        // Said first: whoever sees a process fail and asks again is not to wait for this session.
        self.hub.handle_lost(&gone);
        let remains = remains.fail_session(&gone);
        let renewable = matches!(gone, Disconnect::Session(_)) && self.is_resumable();
        if !renewable || remains.processes.is_empty() {
            return self.end(remains, gone);
        }
        let error = ExecServerError::Disconnected(gone.clone());
        self.queue.fail_session(&error);
        State::Renewing(remains, gone)
    }

    /// Fails everything there is.
    fn end(&mut self, remains: Remains, gone: Disconnect) -> State {
        self.hub.set_connection(ConnectionState::Lost);
        remains.fail(&gone);
        if self.connector.is_none() {
            self.queue.close();
        }
        self.queue
            .fail(&ExecServerError::Disconnected(gone.clone()));
        State::Lost(gone)
    }
}

impl Driver {
    /// Tries until there is a session, until there can be none, or until the time is up.
    async fn renew(&mut self, remains: Remains, gone: Disconnect) -> State {
        let Some(connector) = self.connector.clone() else {
            return self.end(remains, gone);
        };
        let window = self.window();
        let deadline = Instant::now() + window;
        match self.reopen(&connector, None, deadline).await {
            Reopened::Opened(opened) => {
                // The session is new, and so is the time in which it can be resumed.
                let since = Instant::now();
                self.resume(*opened, Remains { since, ..remains })
            }
            Reopened::Over => State::Over,
            Reopened::OutOfTime(last) => {
                tracing::debug!(?last, "no other session within {window:?}");
                self.end(remains, gone)
            }
            Reopened::Refused(error) => {
                tracing::debug!(%error, "no other session");
                self.end(remains, gone)
            }
        }
    }
}

impl Driver {
    /// Waits for a call and begins another session for it. If that fails, the call does: whoever made
    /// it knows best whether to try again.
    async fn wait_for_use(&mut self, gone: Disconnect) -> State {
        let Some(ask) = self.queue.next().await else {
            return State::Over;
        };
        let Some(connector) = self.connector.clone() else {
            ask.waiter.fail(gone.clone().into());
            return State::Lost(gone);
        };
        if !ask.waiter.is_awaited() {
            return State::Lost(gone);
        }
        self.queue.hold(ask);
        self.hub.set_connection(ConnectionState::Reconnecting);
        let options = self.options.clone();
        let opening = open(connector.connect(), &options, None);
        match self.queue.hold_while(opening).await {
            None => State::Over,
            Some(Ok(opened)) => {
                self.attempted = None;
                self.begin(opened)
            }
            Some(Err(error)) => {
                self.hub.set_connection(ConnectionState::Lost);
                self.queue.fail(&ExecServerError::Connect(error));
                State::Lost(gone)
            }
        }
    }
}
