//! State that the driver changes and one reader polls.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// State with the waker of its reader. Each change wakes the reader.
#[derive(Debug, Default)]
pub(crate) struct PolledState<S> {
    shared: Mutex<SharedState<S>>,
}

#[derive(Debug, Default)]
struct SharedState<S> {
    state: S,
    reader: Option<Waker>,
}

impl<S> PolledState<S> {
    /// Changes the state and wakes the reader.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        let mut shared = self.lock();
        let result = change(&mut shared.state);
        let reader = shared.reader.take();
        // Released first, so that the reader does not wait for the lock.
        drop(shared);
        if let Some(reader) = reader {
            reader.wake();
        }
        result
    }

    /// Reads from the state. The next change wakes a reader that got [`Poll::Pending`].
    pub(crate) fn poll<R>(
        &self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut S) -> Poll<R>,
    ) -> Poll<R> {
        let mut shared = self.lock();
        let result = read(&mut shared.state);
        if result.is_pending() {
            shared.reader = Some(cx.waker().clone());
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, SharedState<S>> {
        // Ignores poisoning: no code panics under the lock, and the state would still be
        // consistent.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
