//! Who has something to do for a driver.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::Waker,
};

use futures_util::task::AtomicWaker;

use super::cell::Cell;

/// Cells that their driver has to visit, in the order in which they asked. Each is in it once, so
/// there are no more entries than streams.
#[derive(Debug, Default)]
pub(super) struct Bell {
    queue: Mutex<VecDeque<Weak<Cell>>>,
    driver: AtomicWaker,
}

impl Bell {
    /// Wakes the driver.
    pub(super) fn ring(&self) {
        self.driver.wake();
    }

    /// Puts a cell at the end of the queue. The cell sees to it that it is in it once.
    pub(super) fn queue_up(&self, cell: Weak<Cell>) {
        self.lock().push_back(cell);
    }

    /// Notes whom to wake.
    pub(super) fn listen(&self, driver: &Waker) {
        self.driver.register(driver);
    }

    /// Returns the cell whose turn it is.
    pub(super) fn next(&self) -> Option<Arc<Cell>> {
        let mut queue = self.lock();
        while let Some(cell) = queue.pop_front() {
            if let Some(cell) = cell.upgrade() {
                return Some(cell);
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Weak<Cell>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
