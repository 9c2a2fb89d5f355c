//! Work on threads that may block.

use std::sync::Arc;

use exec_env::filesystem::{FileError, FileFuture};
use exec_fs::Stop;
use exec_wire::limits;
use futures_util::future::FutureExt;
use tokio::{sync::Semaphore, task::spawn_blocking};

/// Asks for work to stop when it is dropped.
#[derive(Debug, Default)]
pub(super) struct StopOnDrop(Stop);

impl StopOnDrop {
    pub(super) fn stop(&self) -> Stop {
        self.0.clone()
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.ask();
    }
}

/// Threads that may block, for one session: so many at a time. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Threads(Arc<Semaphore>);

impl Default for Threads {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(limits::MAX_BLOCKED_OPERATIONS)))
    }
}

impl Threads {
    /// Runs work that may block. It is asked to stop when the future is dropped; until it does, it
    /// counts.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Stop) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T> {
        let threads = Arc::clone(&self.0);
        async move {
            // The semaphore is never closed.
            let thread = threads.acquire_owned().await;
            let stop = StopOnDrop::default();
            let asked = stop.stop();
            let task = spawn_blocking(move || {
                let _thread = thread;
                asked.check()?;
                work(&asked)
            });
            let lost = |error| Err(FileError::Host(format!("file operation was lost: {error}")));
            let outcome = task.await.unwrap_or_else(lost);
            drop(stop);
            outcome
        }
        .boxed()
    }
}
