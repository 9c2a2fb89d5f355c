//! Which circuits have frames, without asking all of them.
//!
//! Each circuit has a bell, which is the waker it is polled with. A bell that rings puts its circuit
//! at the end of the list once; circuits are served in the order of the list.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use futures_util::task::AtomicWaker;

use crate::switch::CircuitId;

/// The circuits that have something to say.
#[derive(Debug, Default)]
pub(super) struct ReadyList {
    ids: Mutex<VecDeque<CircuitId>>,
    task: AtomicWaker,
}

impl ReadyList {
    /// Returns the next circuit; if there is none, `cx` is woken when there is.
    pub(super) fn poll_next(&self, cx: &Context<'_>) -> Option<CircuitId> {
        if let Some(id) = self.pop() {
            return Some(id);
        }
        self.task.register(cx.waker());
        // One may have come in between.
        self.pop()
    }

    fn pop(&self) -> Option<CircuitId> {
        self.ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }
}

/// Wakes the task of an executor socket, and tells it which circuit did.
#[derive(Debug)]
pub(super) struct Bell {
    id: CircuitId,
    list: Arc<ReadyList>,
    rung: AtomicBool,
}

impl Bell {
    /// Makes the bell of a circuit. It has rung: a new circuit is looked at once.
    pub(super) fn new(id: CircuitId, list: &Arc<ReadyList>) -> (Arc<Self>, Waker) {
        let bell = Arc::new(Self {
            id,
            list: Arc::clone(list),
            rung: AtomicBool::new(false),
        });
        bell.wake_by_ref();
        let waker = Waker::from(Arc::clone(&bell));
        (bell, waker)
    }

    /// Lets it ring again. Called before the circuit is looked at, so that nothing is missed.
    pub(super) fn reset(&self) {
        self.rung.store(false, Ordering::Release);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        self.list
            .ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(self.id);
        self.list.task.wake();
    }
}
