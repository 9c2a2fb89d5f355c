//! Serial write queue for changes of one session, and the blocking pool for its other operations.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_env::filesystem::{FileError, FileFuture};
use exec_fs::CancelFlag;
use exec_wire::limits;
use futures_util::future::{FutureExt, ready};
use tokio::{
    sync::{Semaphore, oneshot},
    task::spawn_blocking,
};

/// Maximum number of queued changes.
const MAX_QUEUED: usize = 8192;

/// Runs changes in call order, one at a time, on the blocking pool. Clones share the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteQueue(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: bool,
}

type Job = Box<dyn FnOnce() + Send>;

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .field("running", &self.running)
            .finish()
    }
}

impl WriteQueue {
    /// Queues a change. Dropping its future before it starts cancels it.
    pub(super) fn push<T: Send + 'static>(
        &self,
        change: impl FnOnce(&CancelFlag) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        let (reply, outcome) = oneshot::channel();
        let stop = StopOnDrop::default();
        let stop_handle = stop.stop();
        let job = Box::new(move || {
            if !reply.is_closed() {
                // Sending fails only if the caller dropped its future.
                drop(reply.send(change(&stop_handle)));
            }
        });
        if !self.try_enqueue(job) {
            let text = format!("more than {MAX_QUEUED} file changes are queued");
            return ready(Err(FileError::Host(text))).boxed();
        }
        async move {
            let _stop = stop;
            let incomplete = |_| Err(FileError::Host("file change did not complete".to_owned()));
            outcome.await.unwrap_or_else(incomplete)
        }
        .boxed()
    }

    fn try_enqueue(&self, job: Job) -> bool {
        let mut state = self.lock();
        if state.waiting.len() >= MAX_QUEUED {
            return false;
        }
        state.waiting.push_back(job);
        if !state.running {
            state.running = true;
            let queue = self.clone();
            drop(spawn_blocking(move || queue.run()));
        }
        true
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            // A panicking change fails alone; later changes still run.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("file change panicked");
            }
        }
    }

    /// Takes the next change, or marks the queue as idle.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        let job = state.waiting.pop_front();
        state.running = job.is_some();
        job
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests a stop when dropped.
#[derive(Debug, Default)]
pub(super) struct StopOnDrop(CancelFlag);

impl StopOnDrop {
    pub(super) fn stop(&self) -> CancelFlag {
        self.0.clone()
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs blocking work of one session with a limit on concurrency. Clones share the limit.
#[derive(Clone, Debug)]
pub(super) struct BlockingPool(Arc<Semaphore>);

impl Default for BlockingPool {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(limits::MAX_BLOCKED_OPERATIONS)))
    }
}

impl BlockingPool {
    /// Runs blocking work. Dropping the future requests a stop; the work counts towards the limit
    /// until it ends.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelFlag) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        let pool = Arc::clone(&self.0);
        async move {
            // The semaphore is never closed.
            let permit = pool.acquire_owned().await;
            let stop = StopOnDrop::default();
            let stop_handle = stop.stop();
            let task = spawn_blocking(move || {
                let _permit = permit;
                stop_handle.check()?;
                work(&stop_handle)
            });
            let incomplete = |error| {
                Err(FileError::Host(format!(
                    "file operation did not complete: {error}"
                )))
            };
            let outcome = task.await.unwrap_or_else(incomplete);
            drop(stop);
            outcome
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn changes_run_in_call_order() {
        let queue = WriteQueue::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let changes: Vec<_> = (0..100)
            .map(|number| {
                let seen = Arc::clone(&seen);
                queue.push(move |_| {
                    seen.lock().unwrap().push(number);
                    Ok(())
                })
            })
            .collect();
        // Awaited in reverse order.
        for change in changes.into_iter().rev() {
            change.await.unwrap();
        }
        assert_eq!(*seen.lock().unwrap(), (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn dropped_change_does_not_run() {
        let queue = WriteQueue::default();
        let (release, released) = mpsc::channel::<()>();
        let first = queue.push(move |_| Ok(released.recv().is_ok()));
        let dropped = queue.push::<()>(|_| panic!("must not run"));
        let last = queue.push(|_| Ok(()));
        drop(dropped);
        release.send(()).unwrap();
        assert_eq!(first.await, Ok(true));
        assert_eq!(last.await, Ok(()));
    }

    #[tokio::test]
    async fn queue_survives_a_panicking_change() {
        let queue = WriteQueue::default();
        assert!(queue.push::<()>(|_| panic!("on purpose")).await.is_err());
        assert_eq!(queue.push(|_| Ok(1)).await, Ok(1));
    }
}
