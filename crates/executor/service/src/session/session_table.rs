//! All sessions of a server.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_core::lease::{Lease, ResumeError};
use exec_env::environment::Environment;
use exec_transport::link::Principal;
use exec_wire::{
    error::{ErrorCode, RpcError},
    id::SessionId,
    limits,
};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::{Session, SessionLimits, retention::RetentionMode};
use crate::{meters::Meters, send_queue::SendQueue};

/// Sessions by id.
#[derive(Debug)]
pub(crate) struct SessionTable {
    ttl: Duration,
    session_limits: SessionLimits,
    meters: Arc<Meters>,
    sessions: Mutex<BTreeMap<SessionId, Arc<Session>>>,
}

/// Why a connection gets no session.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum SessionAttachError {
    /// Caller: it never existed, or its time is up.
    #[error("unknown session id {0}")]
    Unknown(SessionId),
    /// Caller: another connection has it; there is no take-over.
    #[error("session {0} is already attached to another connection")]
    Attached(SessionId),
    /// Host: there are too many.
    #[error("server already has {0} sessions, which is its limit")]
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
    pub(crate) fn new(ttl: Duration, session_limits: SessionLimits, meters: Arc<Meters>) -> Self {
        Self {
            ttl,
            session_limits,
            meters,
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
        // Declared before the lock is taken, so that it is dropped behind it.
        let evicted;
        let mut sessions = self.lock();
        if sessions.len() >= limits::MAX_SESSIONS {
            // Clients that come for one command each leave many behind.
            evicted = evictable_session(&sessions).and_then(|id| sessions.remove(&id));
            let Some(session) = &evicted else {
                return Err(SessionAttachError::TooMany(limits::MAX_SESSIONS));
            };
            self.meters.sessions_expired.increment();
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
            Arc::clone(&self.meters),
        ));
        session.attach(send_queue, retention_mode);
        sessions.insert(id, Arc::clone(&session));
        Ok(session)
    }

    /// Gives a detached session to a client that came back.
    pub(crate) fn resume(
        &self,
        id: &SessionId,
        send_queue: &Arc<SendQueue>,
        retention_mode: RetentionMode,
    ) -> Result<Arc<Session>, SessionAttachError> {
        let found = self.lock().get(id).cloned();
        let session = found.ok_or_else(|| SessionAttachError::Unknown(id.clone()))?;
        match session.resume(send_queue, retention_mode, Instant::now().into_std()) {
            Ok(()) => Ok(session),
            Err(ResumeError::Attached) => Err(SessionAttachError::Attached(id.clone())),
            Err(_) => Err(SessionAttachError::Unknown(id.clone())),
        }
    }

    /// Detaches a session whose connection is gone, and ends it when its time is up.
    pub(crate) fn detach(self: &Arc<Self>, session: Arc<Session>) {
        let Some(detached) = session.detach(Instant::now().into_std()) else {
            return;
        };
        // One that makes room for another is gone at once, however long it would have been kept.
        let (registry, kept) = (Arc::clone(self), Arc::downgrade(&session));
        tokio::spawn(async move {
            // It may be resumed, and detached again meanwhile: then other deadlines count.
            if let Some(until) = detached
                .unacked_until
                .filter(|until| *until < detached.ends)
            {
                sleep_until(until.into()).await;
                if let Some(session) = kept.upgrade() {
                    session.expire_unacked(Instant::now().into_std());
                }
            }
            sleep_until(detached.ends.into()).await;
            let Some(session) = kept.upgrade() else {
                return;
            };
            if session.is_expired(Instant::now().into_std()) && registry.remove(&session.id) {
                registry.meters.sessions_expired.increment();
                tracing::info!(
                    target: "exec_service::session", session = session.id.shown(),
                    "session ended: its client did not come back"
                );
                session.clear();
            }
        });
    }

    /// Returns the other sessions whose processes a session's client may attach to: those of the same
    /// principal.
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

    fn remove(&self, id: &SessionId) -> bool {
        self.lock().remove(id).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the session without a client, and without anything that runs, that would end first.
fn evictable_session(sessions: &BTreeMap<SessionId, Arc<Session>>) -> Option<SessionId> {
    let ends = sessions
        .values()
        .filter_map(|session| Some((session.evictable_until()?, session)));
    let (_, first) = ends.min_by_key(|(ends, _)| *ends)?;
    Some(first.id.clone())
}
