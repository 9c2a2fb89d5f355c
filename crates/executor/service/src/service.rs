//! The service: configuration, sessions and metrics shared by all connections of a server.

use std::{
    collections::BTreeMap,
    fmt, io,
    num::NonZeroUsize,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use exec_core::lease::Lease;
use exec_env::{
    durable::{DurableOwner, DurableState},
    environment::Environment,
};
use exec_transport::link::Link;
use exec_wire::{
    error::RpcError,
    id::SessionId,
    initialize::ServerInfo,
    limits,
    process::{ProcessSummary, TerminateMode, WaitUntil},
    server::{ServerStatus, UpgradeServer, UpgradeStarted},
};
use futures_util::future::{BoxFuture, join_all};
use tokio::{sync::watch, time::timeout};

use crate::{
    connection,
    metrics::{GaugeSnapshot, ServiceMetrics},
    request_guard::{ContinueTrace, truncate_for_log},
    session::{AdmitError, Session, SessionLimits, SessionTable},
};

/// Time limit for killed processes to exit when the server shuts down.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limits for the rest of the output, and for clients to read it, when the server shuts down.
/// Together they are shorter than the next server waits for the state directory.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(300);

/// Time limit for connections to end when another server takes over.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Processes that outlive the server. Absent: every process is ordinary.
    pub durability: Option<Durability>,
}

/// Processes that outlive the server.
#[derive(Clone, Debug)]
pub struct Durability {
    /// State that outlives the server.
    pub state: Arc<dyn DurableState>,
    /// Which processes are durable if their start does not say.
    pub default: DurabilityDefault,
}

impl ServiceConfig {
    /// Returns the state that outlives the server.
    pub(crate) fn durable_state(&self) -> Option<&Arc<dyn DurableState>> {
        self.durability.as_ref().map(|durability| &durability.state)
    }
}

/// Which processes outlive the server if their start does not say.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DurabilityDefault {
    /// None.
    #[default]
    Off,
    /// Detached processes.
    Detached,
    /// All processes.
    All,
}

/// What a server has restored.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RestoredCounts {
    /// Sessions that clients may resume.
    pub sessions: usize,
    /// Processes that run.
    pub running: usize,
    /// Processes that have ended.
    pub ended: usize,
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
    /// Number of open connections.
    pub(crate) connections: watch::Sender<usize>,
    /// Number of upgrades that refuse to start processes that are not durable.
    ordinary_refusals: AtomicUsize,
    /// Whether every connection shall end.
    pub(crate) closing: watch::Sender<bool>,
    /// What clients may ask of the server process.
    pub(crate) control: OnceLock<Arc<dyn ServerControl>>,
    open: Box<Open>,
}

/// What clients may ask of the server process.
pub trait ServerControl: fmt::Debug + Send + Sync {
    /// Describes the server process.
    fn status(&self) -> ServerStatus;

    /// Prepares another program to take over. Resolves when that program is ready. `ordinary` are
    /// the processes that would not survive.
    fn upgrade(
        &self,
        upgrade: UpgradeServer,
        ordinary: &[ProcessSummary],
    ) -> BoxFuture<'static, Result<UpgradeStarted, RpcError>>;
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
            config.durable_state().cloned(),
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
                connections: watch::Sender::new(0),
                ordinary_refusals: AtomicUsize::new(0),
                closing: watch::Sender::new(false),
                control: OnceLock::new(),
                open: Box::new(open),
            }),
        }
    }

    /// Restores what an earlier server has left: sessions wait for their clients, and processes go
    /// on. Call it once, before the first connection.
    ///
    /// # Errors
    /// Fails if the state cannot be read. Nothing is restored then.
    pub async fn restore(&self) -> io::Result<RestoredCounts> {
        let Some(durable) = self.shared.config.durable_state() else {
            return Ok(RestoredCounts::default());
        };
        let state = durable.restore().await?;
        let mut counts = RestoredCounts::default();
        let mut sessions = BTreeMap::new();
        for saved in &state.sessions {
            let session = self.shared.sessions.restore(self.shared.open(), saved);
            sessions.insert(saved.id.clone(), session);
            counts.sessions += 1;
        }
        for process in state.processes {
            let owner = match &process.owner {
                DurableOwner::Server => Some(&self.shared.detached),
                DurableOwner::Session(id) => sessions.get(id),
            };
            let running = process.process.status().exit.is_none();
            let id = process.process.id().clone();
            // Dropping the process of a session that is gone kills its tree.
            let Some(owner) = owner else { continue };
            match owner.restore_process(process) {
                Ok(()) if running => counts.running += 1,
                Ok(()) => counts.ended += 1,
                // The id names a newer process by now. The history still has the older one.
                Err(AdmitError::Exists(_)) if !running => {}
                Err(error) => {
                    let id = truncate_for_log(id.as_str());
                    tracing::warn!(process_id = id, %error, "failed to restore a process");
                }
            }
        }
        Ok(counts)
    }

    /// Lets clients control the server process. Without this they cannot.
    pub fn set_control(&self, control: Arc<dyn ServerControl>) {
        if self.shared.control.set(control).is_err() {
            tracing::debug!("the control of the server was set before");
        }
    }

    /// Leaves sessions and durable processes to the next server, which restores them. Ends every
    /// connection once its requests are answered, also a new one once it has a session. `served`
    /// resolves when there will be no more new ones.
    pub async fn hand_over(&self, served: impl Future<Output = ()>) {
        let unused = self.shared.sessions.unused();
        self.shared.closing.send_replace(true);
        let mut connections = self.shared.connections.subscribe();
        let closed = async {
            served.await;
            drop(connections.wait_for(|open| *open == 0).await);
        };
        drop(timeout(CLOSE_TIMEOUT, closed).await);
        self.shared.sessions.hand_over(&unused);
        self.release_durable().await;
    }

    /// Leaves all durable processes to the next server.
    async fn release_durable(&self) {
        let sessions = self.shared.all_sessions();
        let released: Vec<_> = sessions.iter().map(|it| it.release_durable()).collect();
        for released in released {
            released.await;
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

    /// Ends every process that is not durable. A nonzero `grace` sends a termination signal first
    /// and waits that long.
    pub async fn shut_down(&self, grace: Duration) {
        self.release_durable().await;
        let sessions = self.shared.all_sessions();
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
        drop(timeout(KILL_TIMEOUT, wait_all(&sessions, WaitUntil::Exited)).await);
        // The connections end with the server. A client that reads learns how its processes ended.
        drop(timeout(FLUSH_TIMEOUT, wait_all(&sessions, WaitUntil::Closed)).await);
        let send_queues = sessions.iter().filter_map(|session| session.send_queue());
        let flushed = send_queues.map(|send_queue| async move { send_queue.flushed().await });
        drop(timeout(FLUSH_TIMEOUT, join_all(flushed)).await);
        // Requests were served meanwhile, and may have started some.
        self.release_durable().await;
        for session in &sessions {
            session.clear();
        }
    }

    /// Waits until every process that runs now has exited.
    pub async fn wait_idle(&self) {
        wait_all(&self.shared.all_sessions(), WaitUntil::Exited).await;
    }

    /// Returns whether any detached process is retained in memory, running or finished. Finished
    /// durable ones are on disk.
    pub fn has_detached_processes(&self) -> bool {
        let detached = self.shared.detached.list();
        let in_memory = |process: &ProcessSummary| process.running || process.durable.is_none();
        detached.iter().any(in_memory)
    }

    /// Kills every process that is not durable, without waiting, and ends all sessions.
    pub fn kill_all(&self) {
        for session in self.shared.all_sessions() {
            drop(session.release_durable());
            session.clear();
        }
        self.shared.sessions.clear();
    }
}

impl ServiceShared {
    /// Returns whether starts of processes that are not durable are refused.
    pub(crate) fn refuses_ordinary(&self) -> bool {
        self.ordinary_refusals.load(Relaxed) > 0
    }

    pub(crate) fn open(&self) -> Environment {
        (self.open)()
    }

    /// Lists the processes that end with this server although they run, or their clients have not
    /// received all output.
    pub(crate) fn ordinary_processes(&self) -> Vec<ProcessSummary> {
        let sessions = self.all_sessions();
        let processes = sessions.iter().flat_map(|session| session.list_ordinary());
        processes.collect()
    }

    fn all_sessions(&self) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions.all();
        sessions.push(Arc::clone(&self.detached));
        sessions
    }
}

async fn wait_all(sessions: &[Arc<Session>], until: WaitUntil) {
    for session in sessions {
        session.wait_all(until).await;
    }
}

/// Refuses to start processes that are not durable, from the check of an upgrade to its handover.
/// Dropping it admits them again, unless it is kept.
pub(crate) struct OrdinaryRefusal(Option<Arc<ServiceShared>>);

impl OrdinaryRefusal {
    pub(crate) fn begin(shared: &Arc<ServiceShared>) -> Self {
        shared.ordinary_refusals.fetch_add(1, Relaxed);
        Self(Some(Arc::clone(shared)))
    }

    /// Refuses them for as long as this service lives.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for OrdinaryRefusal {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.ordinary_refusals.fetch_sub(1, Relaxed);
        }
    }
}
