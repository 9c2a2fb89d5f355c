//! A connector with links that end in the test.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};

use exec_client::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    connect::{BackoffDelay, ServerConnector, SessionContinuity},
};
use exec_transport::{connect::ConnectError, link::Link, memory};
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

use crate::scripted_server::{ScriptedServer, session, within};

/// The connector that the client uses.
#[derive(Debug)]
struct ScriptedConnector {
    open: mpsc::UnboundedSender<ScriptedServer>,
    /// Number of attempts to fail.
    closed: Arc<AtomicUsize>,
    /// HTTP status that refuses attempts; 0 accepts them.
    refusal: Arc<AtomicU16>,
    /// Times of the attempts.
    attempts: Arc<Mutex<Vec<Instant>>>,
    /// Reconnects find another server.
    server_replaced: Arc<AtomicBool>,
    continuity: SessionContinuity,
    backoff: fn(u32) -> BackoffDelay,
}

impl ServerConnector for ScriptedConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.attempts.lock().unwrap().push(Instant::now());
        let closed = self.closed.load(Ordering::SeqCst);
        if closed > 0 {
            self.closed.store(closed - 1, Ordering::SeqCst);
            let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            return ready(Err(refused.into())).boxed();
        }
        let status = self.refusal.load(Ordering::SeqCst);
        if status > 0 {
            let reason = "no entry".to_owned();
            return ready(Err(ConnectError::Refused { status, reason })).boxed();
        }
        let (client_link, server_link) = memory::pair();
        self.open.send(ScriptedServer(server_link)).unwrap();
        ready(Ok(client_link)).boxed()
    }

    fn reconnect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        if self.server_replaced.load(Ordering::SeqCst) {
            return ready(Err(ConnectError::ExecutorChanged)).boxed();
        }
        self.connect()
    }

    fn continuity(&self) -> SessionContinuity {
        self.continuity
    }

    fn backoff(&self, failures: u32) -> BackoffDelay {
        (self.backoff)(failures)
    }
}

/// The default delay of connectors.
fn default_backoff(_failures: u32) -> BackoffDelay {
    BackoffDelay::FromStart(Duration::from_millis(100))
}

/// The test's control of the connector.
#[derive(Debug)]
pub(crate) struct ConnectorControl {
    accepted: mpsc::UnboundedReceiver<ScriptedServer>,
    closed: Arc<AtomicUsize>,
    refusal: Arc<AtomicU16>,
    times: Arc<Mutex<Vec<Instant>>>,
    server_replaced: Arc<AtomicBool>,
}

impl ConnectorControl {
    /// Accepts a client with resumable sessions. The first session is `s`.
    pub(crate) async fn connect() -> (Self, ScriptedServer, ExecServerClient) {
        Self::connect_to(SessionContinuity::Resumed, session("s")).await
    }

    pub(crate) async fn connect_to(
        continuity: SessionContinuity,
        session: Value,
    ) -> (Self, ScriptedServer, ExecServerClient) {
        Self::connect_with(continuity, session, default_backoff).await
    }

    /// Accepts a client that reconnects with these delays.
    pub(crate) async fn connect_with_backoff(
        backoff: fn(u32) -> BackoffDelay,
    ) -> (Self, ScriptedServer, ExecServerClient) {
        Self::connect_with(SessionContinuity::Resumed, session("s"), backoff).await
    }

    async fn connect_with(
        continuity: SessionContinuity,
        session: Value,
        backoff: fn(u32) -> BackoffDelay,
    ) -> (Self, ScriptedServer, ExecServerClient) {
        let (open, accepted) = mpsc::unbounded_channel();
        let (closed, times) = (Arc::default(), Arc::default());
        let refusal: Arc<AtomicU16> = Arc::default();
        let server_replaced: Arc<AtomicBool> = Arc::default();
        let scripted_connector = ScriptedConnector {
            open,
            closed: Arc::clone(&closed),
            refusal: Arc::clone(&refusal),
            attempts: Arc::clone(&times),
            server_replaced: Arc::clone(&server_replaced),
            continuity,
            backoff,
        };
        let mut connector = Self {
            accepted,
            closed,
            refusal,
            times,
            server_replaced,
        };
        let options = ExecServerClientConnectOptions::default();
        let connect = ExecServerClient::connect_with(Arc::new(scripted_connector), options);
        let accept = async {
            let mut server = connector.accept().await;
            server.handshake(session).await;
            server
        };
        let (client, server) = futures_util::join!(connect, accept);
        (connector, server, client.unwrap())
    }

    /// Accepts the next link.
    pub(crate) async fn accept(&mut self) -> ScriptedServer {
        within(self.accepted.recv())
            .await
            .expect("no connection attempt")
    }

    /// Resumes session `s` over the next link.
    pub(crate) async fn resume(&mut self) -> ScriptedServer {
        let mut server = self.accept().await;
        let initialize = server.handshake(session("s")).await;
        assert_eq!(initialize["params"]["resumeSessionId"], "s");
        server
    }

    /// Fails this number of attempts.
    pub(crate) fn fail_attempts(&self, attempts: usize) {
        self.closed.store(attempts, Ordering::SeqCst);
    }

    /// Refuses attempts with an HTTP status.
    pub(crate) fn refuse_with(&self, status: u16) {
        self.refusal.store(status, Ordering::SeqCst);
    }

    /// Lets reconnects find another server.
    pub(crate) fn replace_server(&self) {
        self.server_replaced.store(true, Ordering::SeqCst);
    }

    /// Returns the times of the attempts.
    pub(crate) fn times(&self) -> Vec<Instant> {
        self.times.lock().unwrap().clone()
    }
}
