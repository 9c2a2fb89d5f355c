//! The task: goes from state to state until nobody needs the client.

use std::{sync::Arc, time::Duration};

use exec_env::disconnect::Disconnect;
use tokio::sync::mpsc;

use super::{
    connection::{Cause, Connection},
    queue::Queue,
    recovering::Attempt,
    resume::Remains,
    waiter::{Ask, ConnectionNumber},
};
use crate::{
    connection::ConnectionState,
    connector::{Connector, Continuity},
    error::ExecServerError,
    handshake::Opened,
    hub::Hub,
    options::ExecServerClientConnectOptions,
};

/// How often a server may break the protocol, on connections that do not last, before its session is
/// given up.
const MAX_BROKEN_PROMISES: u32 = 3;
/// How long a connection lasts whose predecessors do not count any more.
const LONG: Duration = Duration::from_secs(25);

#[derive(Debug)]
pub(crate) struct Driver {
    /// Opens connections. Without one there is only the first.
    pub(super) connector: Option<Arc<dyn Connector>>,
    pub(super) options: ExecServerClientConnectOptions,
    pub(super) queue: Queue,
    pub(super) hub: Arc<Hub>,
    /// The last attempt to recover, unless it has led to something.
    pub(super) attempted: Option<Attempt>,
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
pub(super) enum State {
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
    pub(super) fn begin(&mut self, opened: Opened) -> State {
        let number = self.next_connection();
        let connection = Connection::new(opened, number, &self.hub);
        State::Connected(Box::new(connection))
    }

    pub(super) fn next_connection(&mut self) -> ConnectionNumber {
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
    pub(super) fn lose(&mut self, remains: Remains, gone: Disconnect) -> State {
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
    pub(super) fn end(&mut self, remains: Remains, gone: Disconnect) -> State {
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
