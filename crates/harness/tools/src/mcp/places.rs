//! The sessions that there are: bounded, and known, so that all can be ended.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::session::Session;

/// Sessions at once. Each may run dozens of commands.
const MAX_SESSIONS: usize = 64;

/// Every session.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    taken: Arc<Mutex<Taken>>,
    /// Told when a place was given back.
    freed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Taken {
    sessions: BTreeMap<u64, Arc<Session>>,
    next: u64,
}

/// Why there is no place for a session. The client may come again.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{MAX_SESSIONS} sessions are open already: end one, or come again later")]
pub(super) struct NoPlace;

impl Places {
    /// Takes a place.
    pub(super) fn take(&self, session: Session) -> Result<Place, NoPlace> {
        let mut taken = self.lock();
        if taken.sessions.len() >= MAX_SESSIONS {
            return Err(NoPlace);
        }
        let (number, session) = (taken.next, Arc::new(session));
        taken.next += 1;
        taken.sessions.insert(number, session.clone());
        Ok(Place {
            places: self.clone(),
            number,
            session,
        })
    }

    /// Whether one more is refused.
    pub(super) fn are_full(&self) -> bool {
        self.lock().sessions.len() >= MAX_SESSIONS
    }

    /// Waits until one more is not refused.
    pub(super) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Registered before looking: what is given back meanwhile is heard of.
            freed.as_mut().enable();
            if !self.are_full() {
                return;
            }
            freed.await;
        }
    }

    /// Lists the sessions.
    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        self.lock().sessions.values().cloned().collect()
    }

    fn give_back(&self, number: u64) {
        self.lock().sessions.remove(&number);
        self.freed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session with its place. Dropping it ends the session's commands.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    number: u64,
    session: Arc<Session>,
}

impl Place {
    /// The session.
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (places, number) = (self.places.clone(), self.number);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            places.give_back(number);
            return;
        };
        // The place is free when nothing runs there any more. Calls that are under way may hold the session
        // for a while; its commands must not wait for them.
        let session = self.session.clone();
        runtime.spawn(async move {
            session.exec.shut_down().await;
            places.give_back(number);
        });
    }
}
