//! What handles tell the driver without a call: that somebody waits, caught up, or let go.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use crate::events::ProcessEvents;

/// Shared by the driver of one connection and all handles that came from it.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    /// Wakes the driver: something here has changed.
    poke: Notify,
    waiting: AtomicUsize,
    /// Bounded by the handles there are: each is let go of once.
    released: Mutex<Vec<Arc<ProcessEvents>>>,
}

impl Hub {
    /// Wakes the driver.
    pub(crate) fn poke(&self) {
        self.poke.notify_one();
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
