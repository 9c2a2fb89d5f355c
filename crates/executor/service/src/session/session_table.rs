//! All sessions of a server: opening, resuming, detaching and expiry.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use exec_core::lease::{Lease, ResumeError};
use exec_env::{
    durable::{DurableSession, DurableState},
    environment::Environment,
};
use exec_transport::link::Principal;
use exec_wire::{
    error::{ErrorCode, RpcError},
    id::SessionId,
    limits,
};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::{Session, SessionLimits, retention::RetentionMode};
use crate::{metrics::ServiceMetrics, send_queue::SendQueue};

/// Sessions by id.
#[derive(Debug)]
pub(crate) struct SessionTable {
    ttl: Duration,
    session_limits: SessionLimits,
    metrics: Arc<ServiceMetrics>,
    durable: Option<Arc<dyn DurableState>>,
    /// Whether the saved sessions belong to another server.
    handed_over: AtomicBool,
    sessions: Mutex<BTreeMap<SessionId, Arc<Session>>>,
}

/// Why `initialize` cannot open or resume a session.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum SessionAttachError {
    /// Caller: the session never existed or has expired.
    #[error("unknown session id {0}")]
    Unknown(SessionId),
    /// Caller: another connection is attached; sessions cannot be taken over.
    #[error("session {0} is already attached to another connection")]
    Attached(SessionId),
    /// Host: the server is at its session limit.
    #[error("server is at its limit of {0} sessions")]
    TooMany(usize),
}

impl From<SessionAttachError> for RpcError {
    fn from(error: SessionAttachError) -> Self {
        let code = match &error {
            SessionAttachError::Unknown(_) => ErrorCode::INVALID_REQUEST,
            SessionAttachError::Attached(_) => ErrorCode::SESSION_ATTACHED,
            SessionAttachError::TooMany(_) => ErrorCode::INTERNAL,
        };
        Self::new(code, error.to_string())
    }
}

impl SessionTable {
    pub(crate) fn new(
        ttl: Duration,
        session_limits: SessionLimits,
        metrics: Arc<ServiceMetrics>,
        durable: Option<Arc<dyn DurableState>>,
    ) -> Self {
        Self {
            ttl,
            session_limits,
            metrics,
            durable,
            handed_over: AtomicBool::new(false),
            sessions: Mutex::default(),
        }
    }

    /// Opens a session for a new client.
    pub(crate) fn open(
        &self,
        environment: Environment,
        principal: Option<Principal>,
        send_queue: Arc<SendQueue>,
        retention_mode: RetentionMode,
    ) -> Result<Arc<Session>, SessionAttachError> {
        // Declared before the guard, so that the session is dropped after the lock is released.
        let evicted;
        let mut sessions = self.lock();
        if sessions.len() >= limits::MAX_SESSIONS {
            // Evict an idle detached session: clients that run one command each leave many behind.
            evicted = evictable_session(&sessions).and_then(|id| sessions.remove(&id));
            let Some(session) = &evicted else {
                return Err(SessionAttachError::TooMany(limits::MAX_SESSIONS));
            };
            self.metrics.sessions_expired.increment();
            self.forget_saved(&session.id);
            session.clear();
        }
        let id = SessionId::new(&Uuid::new_v4().to_string());
        let lease = Lease::new(self.ttl);
        let session = Arc::new(Session::new(
            id.clone(),
            environment,
            principal,
            lease,
            self.session_limits,
            Arc::clone(&self.metrics),
        ));
        session.attach(send_queue, retention_mode);
        sessions.insert(id, Arc::clone(&session));
        Ok(session)
    }

    /// Restores a session of an earlier server. Its lease begins now.
    pub(crate) fn restore(
        self: &Arc<Self>,
        environment: Environment,
        session: &DurableSession,
    ) -> Arc<Session> {
        let restored = Arc::new(Session::new(
            session.id.clone(),
            environment,
            session
                .principal
                .as_deref()
                .map(|name| Principal(name.into())),
            Lease::new(self.ttl),
            self.session_limits,
            Arc::clone(&self.metrics),
        ));
        restored.restore(session);
        self.lock()
            .insert(session.id.clone(), Arc::clone(&restored));
        self.detach(Arc::clone(&restored));
        restored
    }

    /// Attaches a client to its detached session.
    pub(crate) fn resume(
        &self,
        id: &SessionId,
        send_queue: &Arc<SendQueue>,
        retention_mode: RetentionMode,
    ) -> Result<Arc<Session>, SessionAttachError> {
        let session = self.lock().get(id).cloned();
        let session = session.ok_or_else(|| SessionAttachError::Unknown(id.clone()))?;
        match session.resume(send_queue, retention_mode, Instant::now().into_std()) {
            Ok(()) => Ok(session),
            Err(ResumeError::Attached) => Err(SessionAttachError::Attached(id.clone())),
            Err(_) => Err(SessionAttachError::Unknown(id.clone())),
        }
    }

    /// Detaches a session from its lost connection and expires it when its lease ends.
    pub(crate) fn detach(self: &Arc<Self>, session: Arc<Session>) {
        let Some(deadlines) = session.detach(Instant::now().into_std()) else {
            return;
        };
        // Weak, so that an evicted session is freed before its deadlines.
        let (table, weak) = (Arc::clone(self), Arc::downgrade(&session));
        tokio::spawn(async move {
            // The session may be resumed and detached again meanwhile, with new deadlines.
            if let Some(until) = deadlines
                .unacked_until
                .filter(|until| *until < deadlines.expires_at)
            {
                sleep_until(until.into()).await;
                if let Some(session) = weak.upgrade() {
                    session.expire_unacked(Instant::now().into_std());
                }
            }
            sleep_until(deadlines.expires_at.into()).await;
            let Some(session) = weak.upgrade() else {
                return;
            };
            if session.is_expired(Instant::now().into_std()) && table.remove(&session.id) {
                table.metrics.sessions_expired.increment();
                tracing::info!(
                    target: "exec_service::session", session = session.id.redacted(),
                    "session ended: its client did not resume it in time"
                );
                session.clear();
            }
        });
    }

    /// Returns the other sessions of the same principal. The client of `session` may attach to
    /// their processes.
    pub(crate) fn others(&self, session: &Arc<Session>) -> Vec<Arc<Session>> {
        let sessions = self.lock();
        let others = sessions
            .values()
            .filter(|other| !Arc::ptr_eq(other, session) && other.principal == session.principal);
        others.cloned().collect()
    }

    /// Returns every session.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().cloned().collect()
    }

    /// Removes every session, and drops their processes. Saved ones stay saved.
    pub(crate) fn clear(&self) {
        let sessions = std::mem::take(&mut *self.lock());
        // The lock is released now.
        for session in sessions.values() {
            session.clear();
        }
    }

    fn remove(&self, id: &SessionId) -> bool {
        self.forget_saved(id);
        self.lock().remove(id).is_some()
    }

    /// Returns the sessions without a client that have no processes. There may be many of them.
    pub(crate) fn unused(&self) -> BTreeSet<SessionId> {
        let sessions = self.lock();
        let unused = sessions
            .values()
            .filter(|session| !session.is_attached() && session.list().is_empty());
        unused.map(|session| session.id.clone()).collect()
    }

    /// Saves every session except `unused`, so that the next server restores it. From now on this
    /// table leaves the saved ones alone.
    pub(crate) fn hand_over(&self, unused: &BTreeSet<SessionId>) {
        let Some(durable) = &self.durable else {
            return;
        };
        let sessions = self.all();
        for session in sessions
            .iter()
            .filter(|session| !unused.contains(&session.id))
        {
            if let Err(error) = session.save(&**durable) {
                tracing::warn!(%error, "failed to save a session; its client cannot resume it");
            }
        }
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// Removes a session from the saved ones.
    fn forget_saved(&self, id: &SessionId) {
        if let Some(durable) = &self.durable
            && !self.handed_over.load(Ordering::Relaxed)
        {
            durable.remove_session(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the evictable session that expires first.
fn evictable_session(sessions: &BTreeMap<SessionId, Arc<Session>>) -> Option<SessionId> {
    let ends = sessions
        .values()
        .filter_map(|session| Some((session.evictable_until()?, session)));
    let (_, first) = ends.min_by_key(|(ends, _)| *ends)?;
    Some(first.id.clone())
}
