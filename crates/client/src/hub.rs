//! What handles tell the driver without a call: that somebody waits, caught up, or let go.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use crate::events::ProcessEvents;

/// Bytes of writes that may wait for the driver to take them.
const QUEUED_BYTES: usize = 64 << 20;

/// Shared by the driver of one connection and all handles that came from it.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    /// Wakes the driver: something here has changed.
    poke: Notify,
    /// The driver does not read: followers lag behind.
    full: AtomicBool,
    waiting: AtomicUsize,
    queued: AtomicUsize,
    /// Bounded by the handles there are: each is let go of once.
    released: Mutex<Vec<Arc<ProcessEvents>>>,
}

impl Hub {
    /// Wakes the driver.
    pub(crate) fn poke(&self) {
        self.poke.notify_one();
    }

    /// Wakes the driver if it does not read.
    pub(crate) fn poke_if_full(&self) {
        if self.full.load(Ordering::Relaxed) {
            self.poke();
        }
    }

    /// Says whether the driver reads.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// Resolves when something here has changed.
    pub(crate) async fn poked(&self) {
        self.poke.notified().await;
    }

    /// Says that somebody waits for something to be read, until the guard is dropped.
    pub(crate) fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.poke();
        Waiting(Arc::clone(self))
    }

    /// Tells whether anybody waits for something to be read.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Takes room for a write until the guard is dropped, if there is any.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Room> {
        let room = Room {
            hub: Arc::clone(self),
            bytes,
        };
        let before = self.queued.fetch_add(bytes, Ordering::Relaxed);
        // A single large write is taken when nothing is queued.
        (before == 0 || before + bytes <= QUEUED_BYTES).then_some(room)
    }

    /// Lets go of a process: it is to be ended.
    pub(crate) fn release(&self, process: Arc<ProcessEvents>) {
        process.release();
        self.released
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(process);
        self.poke();
    }

    /// Takes the processes that were let go of.
    pub(crate) fn take_released(&self) -> Vec<Arc<ProcessEvents>> {
        std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Somebody waits.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Hub>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Room for a write that waits.
#[derive(Debug)]
pub(crate) struct Room {
    hub: Arc<Hub>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.hub.queued.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
