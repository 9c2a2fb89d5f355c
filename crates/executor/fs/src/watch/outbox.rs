//! Between the thread that gathers and the task that tells.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use exec_env::filesystem::Changes;
use futures_util::Stream;

use super::gathered::Gathered;
use crate::inotify::Subscription;

/// Makes the two ends.
pub(super) fn pair() -> (Outbox, Batches) {
    let shared = Arc::<Mutex<Shared>>::default();
    (Outbox(Arc::clone(&shared)), Batches(shared))
}

/// The end that is filled. The changes end when it is dropped.
pub(super) struct Outbox(Arc<Mutex<Shared>>);

impl Outbox {
    /// Adds to what waits to be taken, and never waits itself.
    pub(super) fn put(&self, gathered: Gathered) {
        if !gathered.is_empty() {
            self.change(|shared| shared.ready.append(gathered));
        }
    }

    fn change(&self, change: impl FnOnce(&mut Shared)) {
        let waker = {
            let mut shared = lock(&self.0);
            change(&mut shared);
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.change(|shared| shared.ended = true);
    }
}

/// The end that is emptied.
pub(super) struct Batches(Arc<Mutex<Shared>>);

impl Batches {
    /// Returns the changes as a stream that ends the watch when it is dropped.
    pub(super) fn until_dropped(self, subscription: Subscription) -> ChangeStream {
        ChangeStream {
            batches: self,
            _subscription: subscription,
        }
    }

    /// Takes what waits to be taken.
    #[cfg(test)]
    pub(super) fn take(&self) -> Option<Changes> {
        let taken = lock(&self.0).ready.take();
        (!taken.is_empty()).then(|| taken.into_changes())
    }
}

/// The changes of one watch.
pub(super) struct ChangeStream {
    batches: Batches,
    _subscription: Subscription,
}

impl Stream for ChangeStream {
    type Item = Changes;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Changes>> {
        let taken = {
            let mut shared = lock(&self.batches.0);
            if shared.ready.is_empty() {
                if shared.ended {
                    return Poll::Ready(None);
                }
                shared.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            shared.ready.take()
        };
        Poll::Ready(Some(taken.into_changes()))
    }
}

#[derive(Default)]
struct Shared {
    ready: Gathered,
    ended: bool,
    waker: Option<Waker>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
