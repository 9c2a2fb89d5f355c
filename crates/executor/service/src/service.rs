//! The service: what all connections of a server share.

use std::{fmt, num::NonZeroUsize, sync::Arc, time::Duration};

use exec_core::lease::Lease;
use exec_env::environment::Environment;
use exec_transport::link::Link;
use exec_wire::{
    id::SessionId,
    initialize::ServerName,
    limits,
    process::{TerminateMode, WaitUntil},
};
use tokio::time::timeout;

use crate::{
    connection,
    meters::{Levels, Meters},
    request_guard::ContinueTrace,
    session::{Session, SessionLimits, SessionTable},
};

/// How long ending processes may take when the server stops.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// What a service is to be like.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// How long a session outlives its connection.
    pub session_ttl: Duration,
    /// How long a finished process stays readable. Sessions that live longer than this keep their
    /// finished processes as long as they live without a connection.
    pub process_retention: Duration,
    /// Processes of one session.
    pub max_processes: usize,
    /// Whether commands are run that the caller did not mark as prepared.
    pub allow_direct_exec: bool,
    /// Whether commands are run that the caller marked as prepared.
    pub allow_prepared_exec: bool,
    /// How requests of one connection run.
    pub concurrency: Concurrency,
    /// How long a connection keeps its thread awake after each message, so that what follows need not
    /// wake it up. Zero where there is only one core: whoever is to answer needs it.
    pub attention: Duration,
    /// What clients are told of the software.
    pub server: ServerName,
}

/// How requests of one connection run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Concurrency {
    /// One at a time, in the order in which they came.
    Serial,
    /// At most this many, with the outcome of serial order.
    AtMost(NonZeroUsize),
}

/// Opens an environment for a new session.
type Open = dyn Fn() -> Environment + Send + Sync;

/// Serves connections. Clones share everything.
#[derive(Clone)]
pub struct Service {
    pub(crate) shared: Arc<ServiceShared>,
}

pub(crate) struct ServiceShared {
    pub(crate) config: ServiceConfig,
    pub(crate) sessions: Arc<SessionTable>,
    /// Processes that belong to the server.
    pub(crate) detached: Arc<Session>,
    pub(crate) meters: Arc<Meters>,
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
    /// Makes a service that opens an environment for each session with `open`.
    pub fn new(
        config: ServiceConfig,
        open: impl Fn() -> Environment + Send + Sync + 'static,
    ) -> Self {
        Self::traced(config, open, |_, _| {})
    }

    /// Makes a service that has `continue_trace` make the span of a request part of the trace that the
    /// request came with, and that of a process part of its start's, before anything happens in it.
    pub fn traced(
        config: ServiceConfig,
        open: impl Fn() -> Environment + Send + Sync + 'static,
        continue_trace: ContinueTrace,
    ) -> Self {
        let meters = Arc::new(Meters::default());
        let session_limits = SessionLimits {
            max_processes: config.max_processes,
            // A client may resume until the session ends, and asks then what its processes came to.
            retention: config.process_retention.max(config.session_ttl),
        };
        let sessions = Arc::new(SessionTable::new(
            config.session_ttl,
            session_limits,
            Arc::clone(&meters),
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
            Arc::clone(&meters),
        ));
        Self {
            shared: Arc::new(ServiceShared {
                config,
                sessions,
                detached,
                meters,
                continue_trace,
                open: Box::new(open),
            }),
        }
    }

    /// Serves one connection until it ends. Its session is then detached.
    pub async fn serve(&self, link: Link) {
        connection::serve(Arc::clone(&self.shared), link).await;
    }

    /// Returns what was counted so far.
    pub fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    /// Counts what there is now. It takes time for each session and each process.
    pub fn levels(&self) -> Levels {
        let mut levels = Levels::default();
        for session in self.shared.sessions.all() {
            if session.is_attached() {
                levels.sessions_attached += 1;
            } else {
                levels.sessions_detached += 1;
            }
            session.add_to(&mut levels);
        }
        self.shared.detached.add_to(&mut levels);
        levels
    }

    /// Ends every process: with `grace`, they are asked first.
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
        // Output that a slow client has not read yet is not waited for.
        drop(timeout(KILL_TIMEOUT, wait_all(&sessions, WaitUntil::Exited)).await);
        for session in &sessions {
            session.clear();
        }
    }

    /// Waits until no process runs. What connections start meanwhile is not waited for.
    pub async fn quiet(&self) {
        let mut sessions = self.shared.sessions.all();
        sessions.push(Arc::clone(&self.shared.detached));
        wait_all(&sessions, WaitUntil::Exited).await;
    }

    /// Tells whether a detached process is there, be it one that has finished and can still be read.
    pub fn keeps_detached(&self) -> bool {
        !self.shared.detached.list().is_empty()
    }

    /// Kills every process, also those of sessions without a connection, and waits for nothing.
    pub fn end(&self) {
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
