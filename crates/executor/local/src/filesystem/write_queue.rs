//! Serial write queue for changes of one session, and the blocking pool for its other operations.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use exec_env::filesystem::{FileError, FileFuture};
use exec_fs::CancelFlag;
use exec_wire::limits;
use futures_util::future::{BoxFuture, FutureExt};
use tokio::{
    sync::{Semaphore, oneshot},
    task::spawn_blocking,
};

/// Maximum number of queued changes.
const MAX_QUEUED: usize = 8192;

/// Runs changes in call order, one at a time. Clones share the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteQueue(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: VecDeque<QueuedChange>,
    running: bool,
}

/// A change that waits for its turn.
enum QueuedChange {
    /// Runs on the blocking pool, together with the blocking changes that follow it.
    Blocking(Box<dyn FnOnce() + Send>),
    /// Runs as a task.
    Async(BoxFuture<'static, ()>),
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .field("running", &self.running)
            .finish()
    }
}

impl WriteQueue {
    /// Queues a blocking change. Dropping its future before it starts cancels it.
    pub(super) fn push<T: Send + 'static>(
        &self,
        change: impl FnOnce(&CancelFlag) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        let (reply, outcome) = oneshot::channel();
        let stop = StopOnDrop::default();
        let stop_handle = stop.stop();
        let change = Box::new(move || {
            if !reply.is_closed() {
                // Sending fails only if the caller dropped its future.
                drop(reply.send(change(&stop_handle)));
            }
        });
        let outcome = self.enqueue(QueuedChange::Blocking(change), outcome);
        async move {
            let _stop = stop;
            outcome.await
        }
        .boxed()
    }

    /// Queues a change that waits for another process. Dropping the returned future before the
    /// change starts cancels it; a change that has started runs to completion.
    pub(super) fn push_async<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, FileError>> + Send + 'static,
    ) -> FileFuture<T> {
        let (reply, outcome) = oneshot::channel();
        let change = async move {
            if !reply.is_closed() {
                drop(reply.send(change.await));
            }
        };
        let outcome = self.enqueue(QueuedChange::Async(change.boxed()), outcome);
        outcome.boxed()
    }

    /// Queues a change. The returned future waits for its reply.
    fn enqueue<T: Send + 'static>(
        &self,
        change: QueuedChange,
        outcome: oneshot::Receiver<Result<T, FileError>>,
    ) -> impl Future<Output = Result<T, FileError>> + Send + use<T> {
        let is_queued = self.try_enqueue(change);
        async move {
            if !is_queued {
                let text = format!("more than {MAX_QUEUED} file changes are queued");
                return Err(FileError::Host(text));
            }
            let incomplete = |_| Err(FileError::Host("file change did not complete".to_owned()));
            outcome.await.unwrap_or_else(incomplete)
        }
    }

    fn try_enqueue(&self, change: QueuedChange) -> bool {
        let mut state = self.lock();
        if state.waiting.len() >= MAX_QUEUED {
            return false;
        }
        state.waiting.push_back(change);
        if !state.running {
            self.start_next(&mut state);
        }
        true
    }

    /// Starts the next change where it can run, or marks the queue as idle.
    fn start_next(&self, state: &mut State) {
        let queue = self.clone();
        state.running = match state.waiting.front() {
            None => false,
            Some(QueuedChange::Blocking(_)) => {
                drop(spawn_blocking(move || queue.run_blocking()));
                true
            }
            Some(QueuedChange::Async(_)) => {
                drop(tokio::spawn(queue.run_async()));
                true
            }
        };
    }

    fn run_blocking(&self) {
        let is_blocking = |next: &mut _| matches!(next, QueuedChange::Blocking(_));
        while let Some(QueuedChange::Blocking(change)) = self.next_if(is_blocking) {
            // A panicking change fails alone; later changes still run.
            report_panic(&catch_unwind(AssertUnwindSafe(change)));
        }
    }

    async fn run_async(self) {
        let is_async = |next: &mut _| matches!(next, QueuedChange::Async(_));
        while let Some(QueuedChange::Async(change)) = self.next_if(is_async) {
            report_panic(&AssertUnwindSafe(change).catch_unwind().await);
        }
    }

    /// Takes the next change if it can run here. Otherwise starts it where it can.
    fn next_if(&self, runs_here: impl FnOnce(&mut QueuedChange) -> bool) -> Option<QueuedChange> {
        let mut state = self.lock();
        let next = state.waiting.pop_front_if(runs_here);
        if next.is_none() {
            self.start_next(&mut state);
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report_panic(outcome: &thread::Result<()>) {
    if outcome.is_err() {
        tracing::error!("file change panicked");
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

    use tokio::task::yield_now;

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
    async fn blocking_and_async_changes_share_one_order() {
        let queue = WriteQueue::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let changes: Vec<_> = (0..100)
            .map(|number| {
                let seen = Arc::clone(&seen);
                let note = move || {
                    seen.lock().unwrap().push(number);
                    Ok(())
                };
                if number % 3 == 0 {
                    queue.push(move |_| note())
                } else {
                    queue.push_async(async move {
                        yield_now().await;
                        note()
                    })
                }
            })
            .collect();
        for change in changes.into_iter().rev() {
            change.await.unwrap();
        }
        assert_eq!(*seen.lock().unwrap(), (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn started_async_change_completes_without_its_caller() {
        let queue = WriteQueue::default();
        let (started, is_started) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let abandoned = queue.push_async(async move {
            started.send(()).unwrap();
            released.await.unwrap();
            done.send(()).unwrap();
            Ok(())
        });
        let cancelled = queue.push_async::<()>(async { panic!("must not run") });
        let mut next = queue.push(|_| Ok(()));
        is_started.await.unwrap();
        drop((abandoned, cancelled));
        assert!((&mut next).now_or_never().is_none());
        release.send(()).unwrap();
        assert_eq!(next.await, Ok(()));
        assert_eq!(is_done.await, Ok(()));
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
        let panicking = queue.push_async::<()>(async { panic!("on purpose") });
        let next = queue.push_async(async { Ok(2) });
        assert!(panicking.await.is_err());
        assert_eq!(next.await, Ok(2));
    }
}
