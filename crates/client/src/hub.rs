//! What handles tell the driver without a call: that somebody waits, caught up, or let go.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use exec_wire::id::{HandleId, WatchId};
use tokio::sync::Notify;

use crate::events::ProcessEvents;

/// Bytes of writes that may wait for the driver to take them.
pub(crate) const QUEUED_BYTES: usize = 64 << 20;

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
    released: Mutex<Vec<Released>>,
    /// Numbers the names of open files and watches.
    names: AtomicU64,
    /// The last number of a watch for missing paths.
    missing: Mutex<u64>,
}

/// What nobody holds any more, and the server is to be told of.
#[derive(Debug)]
pub(crate) enum Released {
    /// A process, which is to be ended.
    Process(Arc<ProcessEvents>),
    /// A file, which is to be closed.
    File(HandleId),
    /// A watch, which is over.
    Watch(WatchId),
    /// A watch for missing paths, which is over.
    Missing(u64),
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

    /// Lets go of something.
    pub(crate) fn release(&self, released: Released) {
        if let Released::Process(process) = &released {
            process.release();
        }
        lock(&self.released).push(released);
        self.poke();
    }

    /// Takes what was let go of.
    pub(crate) fn take_released(&self) -> Vec<Released> {
        std::mem::take(&mut *lock(&self.released))
    }

    /// Returns a name that the connection has not seen, of 32 hexadecimal digits.
    pub(crate) fn name(&self) -> String {
        format!("{:032x}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the last number of a watch for missing paths. Whoever takes the next one holds the
    /// lock until it is in line: the server wants them to grow.
    pub(crate) fn missing(&self) -> MutexGuard<'_, u64> {
        lock(&self.missing)
    }
}

/// Something on the server that is let go of when this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    hub: Arc<Hub>,
    released: Option<Released>,
}

impl Kept {
    pub(crate) fn new(hub: &Arc<Hub>, released: Released) -> Self {
        Self {
            hub: Arc::clone(hub),
            released: Some(released),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(released) = self.released.take() {
            self.hub.release(released);
        }
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

/// Nothing panics while it holds a lock; if something did, what it guards is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
