//! The service: configuration, sessions and metrics shared by all connections of a server.

use std::{fmt, num::NonZeroUsize, sync::Arc, time::Duration};

use exec_core::lease::Lease;
use exec_env::environment::Environment;
use exec_transport::link::Link;
use exec_wire::{
    id::SessionId,
    initialize::ServerInfo,
    limits,
    process::{TerminateMode, WaitUntil},
};
use tokio::time::timeout;

use crate::{
    connection,
    metrics::{GaugeSnapshot, ServiceMetrics},
    request_guard::ContinueTrace,
    session::{Session, SessionLimits, SessionTable},
};

/// Time limit for killed processes to exit when the server shuts down.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Configuration of a [`Service`].
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// How long a session outlives its connection.
    pub session_ttl: Duration,
    /// How long a finished process stays readable. A longer `session_ttl` takes precedence, so that
    /// a client can resume and still read.
    pub process_retention: Duration,
    /// Maximum number of live processes in one session.
    pub max_processes: usize,
    /// Accepts `process/start` in direct mode, which is the default mode.
    pub allow_direct_exec: bool,
    /// Accepts `process/start` in prepared mode.
    pub allow_prepared_exec: bool,
    /// How many requests of one connection run at once.
    pub concurrency: Concurrency,
    /// Busy polling: how long a connection keeps its thread awake after each message, so that the
    /// next message need not wake it. Use zero on a single core, because the peer needs that core
    /// to respond.
    pub busy_poll: Duration,
    /// Name and version that `initialize` returns.
    pub server_name: ServerInfo,
}

/// How many requests of one connection run at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Concurrency {
    /// One at a time, in order of arrival.
    Serial,
    /// At most this many, with the same results as serial execution.
    AtMost(NonZeroUsize),
}

/// Opens an environment for a new session.
type Open = dyn Fn() -> Environment + Send + Sync;

/// Serves connections. Clones share all state.
#[derive(Clone)]
pub struct Service {
    pub(crate) shared: Arc<ServiceShared>,
}

pub(crate) struct ServiceShared {
    pub(crate) config: ServiceConfig,
    pub(crate) sessions: Arc<SessionTable>,
    /// Processes that belong to the server instead of a session.
    pub(crate) detached: Arc<Session>,
    pub(crate) metrics: Arc<ServiceMetrics>,
    pub(crate) continue_trace: ContinueTrace,
    open: Box<Open>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

impl Service {
    /// Creates a service that calls `open` for the environment of each new session.
    pub fn new(
        config: ServiceConfig,
        open: impl Fn() -> Environment + Send + Sync + 'static,
    ) -> Self {
        Self::with_tracing(config, open, |_, _| {})
    }

    /// Creates a service that calls `continue_trace` for each new span: with the trace context of a
    /// request, and with the span of the request that starts a process.
    pub fn with_tracing(
        config: ServiceConfig,
        open: impl Fn() -> Environment + Send + Sync + 'static,
        continue_trace: ContinueTrace,
    ) -> Self {
        let metrics = Arc::new(ServiceMetrics::default());
        let session_limits = SessionLimits {
            max_processes: config.max_processes,
            // A client may resume and read until its session ends.
            retention: config.process_retention.max(config.session_ttl),
        };
        let sessions = Arc::new(SessionTable::new(
            config.session_ttl,
            session_limits,
            Arc::clone(&metrics),
        ));
        let detached = Arc::new(Session::new(
            SessionId::new("detached"),
            open(),
            None,
            Lease::new(config.session_ttl),
            SessionLimits {
                max_processes: limits::MAX_DETACHED_PROCESSES,
                retention: limits::DETACHED_RETENTION,
            },
            Arc::clone(&metrics),
        ));
        Self {
            shared: Arc::new(ServiceShared {
                config,
                sessions,
                detached,
                metrics,
                continue_trace,
                open: Box::new(open),
            }),
        }
    }

    /// Serves one connection until it ends, then detaches its session.
    pub async fn serve(&self, link: Link) {
        connection::serve(Arc::clone(&self.shared), link).await;
    }

    /// Returns the counters of this service.
    pub fn metrics(&self) -> &ServiceMetrics {
        &self.shared.metrics
    }

    /// Takes a snapshot of the gauges. The cost is linear in sessions and processes.
    pub fn gauges(&self) -> GaugeSnapshot {
        let mut gauges = GaugeSnapshot::default();
        for session in self.shared.sessions.all() {
            if session.is_attached() {
                gauges.sessions_attached += 1;
            } else {
                gauges.sessions_detached += 1;
            }
            session.add_to(&mut gauges);
        }
        self.shared.detached.add_to(&mut gauges);
        gauges
    }

    /// Ends every process. A nonzero `grace` sends a termination signal first and waits that long.
    pub async fn shut_down(&self, grace: Duration) {
        let mut sessions = self.shared.sessions.all();
        sessions.push(Arc::clone(&self.shared.detached));
        if !grace.is_zero() {
            let timeout_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            for session in &sessions {
                session.abandon_absent_client();
                session.terminate_all(TerminateMode::Graceful { timeout_ms });
            }
            drop(timeout(grace, wait_all(&sessions, WaitUntil::Closed)).await);
        }
        for session in &sessions {
            session.terminate_all(TerminateMode::Force);
        }
        // Does not wait for slow clients to read the remaining output.
        drop(timeout(KILL_TIMEOUT, wait_all(&sessions, WaitUntil::Exited)).await);
        for session in &sessions {
            session.clear();
        }
    }

    /// Waits until every process that runs now has exited.
    pub async fn wait_idle(&self) {
        let mut sessions = self.shared.sessions.all();
        sessions.push(Arc::clone(&self.shared.detached));
        wait_all(&sessions, WaitUntil::Exited).await;
    }

    /// Returns whether any detached process is retained, running or finished.
    pub fn has_detached_processes(&self) -> bool {
        !self.shared.detached.list().is_empty()
    }

    /// Kills every process, including those of detached sessions, without waiting.
    pub fn kill_all(&self) {
        for session in self.shared.sessions.all() {
            session.clear();
        }
        self.shared.detached.clear();
    }
}

impl ServiceShared {
    pub(crate) fn open(&self) -> Environment {
        (self.open)()
    }
}

async fn wait_all(sessions: &[Arc<Session>], until: WaitUntil) {
    for session in sessions {
        session.wait_all(until).await;
    }
}
