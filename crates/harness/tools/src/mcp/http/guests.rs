//! Who is in over HTTP: what the library calls a session, which of ours it is, and when it was used last.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use http::request::Parts;
use rmcp::{RoleServer, service::RequestContext};
use tokio::time::Instant;

use crate::mcp::session::Session;

/// The guests, by the names that the library gave them. As many as there are sessions.
#[derive(Debug, Default)]
pub(super) struct Guests(Mutex<BTreeMap<String, Guest>>);

#[derive(Debug)]
struct Guest {
    session: Weak<Session>,
    used: Instant,
}

/// Somebody at the door, whose session is not known yet. It travels with the first request.
#[derive(Clone, Debug, Default)]
pub(in crate::mcp) struct Visitor(Arc<OnceLock<Weak<Session>>>);

impl Visitor {
    /// Tells the session that a first request began.
    pub(in crate::mcp) fn begin(context: &RequestContext<RoleServer>, session: &Arc<Session>) {
        let parts = context.extensions.get::<Parts>();
        if let Some(Self(begun)) = parts.and_then(|parts| parts.extensions.get::<Self>()) {
            begun.get_or_init(|| Arc::downgrade(session));
        }
    }
}

impl Guests {
    /// Takes note of a visitor who was let in by this name.
    pub(super) fn come(&self, name: &str, visitor: &Visitor) {
        let Some(session) = visitor.0.get() else {
            return;
        };
        let mut guests = self.lock();
        guests.retain(|_, guest| guest.session.strong_count() > 0);
        let guest = Guest {
            session: session.clone(),
            used: Instant::now(),
        };
        guests.insert(name.to_owned(), guest);
    }

    /// Takes note that a guest does something.
    pub(super) fn seen(&self, name: &str) {
        if let Some(guest) = self.lock().get_mut(name) {
            guest.used = Instant::now();
        }
    }

    /// Returns the guest who has done nothing for the longest time, and forgets it. One with a call or a
    /// command under way is not idle.
    pub(super) fn take_idlest(&self) -> Option<String> {
        let mut guests = self.lock();
        let idle = guests.iter().filter(|(_, guest)| {
            let session = guest.session.upgrade();
            session.is_some_and(|session| session.is_idle())
        });
        let (name, _) = idle.min_by_key(|(_, guest)| guest.used)?;
        let name = name.clone();
        guests.remove(&name);
        Some(name)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Guest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
