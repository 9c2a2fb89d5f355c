//! Work on threads that may block.

use exec_env::filesystem::{FileError, FileFuture};
use exec_fs::Stop;
use futures_util::future::FutureExt;
use tokio::task::spawn_blocking;

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

/// Runs work that may block. It is asked to stop when the future is dropped.
pub(super) fn offload<T: Send + 'static>(
    work: impl FnOnce(&Stop) -> Result<T, FileError> + Send + 'static,
) -> FileFuture<T> {
    let stop = StopOnDrop::default();
    let asked = stop.stop();
    let task = spawn_blocking(move || work(&asked));
    async move {
        let _stop = stop;
        let lost = |error| Err(FileError::Host(format!("file operation was lost: {error}")));
        task.await.unwrap_or_else(lost)
    }
    .boxed()
}
