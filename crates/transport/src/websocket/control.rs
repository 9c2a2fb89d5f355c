//! What the two halves of a websocket tell each other.

use std::sync::{Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tokio::sync::OwnedSemaphorePermit;

/// Control frames that the reader owes the peer, sent by the writer, and those it has seen.
#[derive(Debug, Default)]
pub(super) struct Control {
    owed: Mutex<Owed>,
    /// Wakes the writer's upkeep.
    pub(super) waker: AtomicWaker,
    /// The connection's place among those of a listener: given back when both halves are gone.
    pub(super) slot: OnceLock<OwnedSemaphorePermit>,
}

/// At most one of each: only the newest ping needs an answer.
#[derive(Debug, Default)]
pub(super) struct Owed {
    pub(super) pong: Option<Bytes>,
    pub(super) close: bool,
    /// Not owed, but told in the same place: a pong has come.
    pub(super) ponged: bool,
}

impl Control {
    pub(super) fn owe(&self, change: impl FnOnce(&mut Owed)) {
        change(&mut self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        self.waker.wake();
    }

    pub(super) fn take(&self) -> Owed {
        std::mem::take(&mut *self.owed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
