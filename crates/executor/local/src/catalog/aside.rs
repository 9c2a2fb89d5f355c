//! Work that may take long: files hold what others wrote, and the thread that asks serves everybody.

use tokio::task::{JoinError, spawn_blocking};

/// Runs work on a thread that may block. Dropping the future does not end the work.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Lost> {
    spawn_blocking(work).await.map_err(Lost)
}

/// Host: the work was not done, because the runtime ends or the work panicked.
#[derive(Debug, thiserror::Error)]
#[error("what was read was lost: {0}")]
pub(super) struct Lost(JoinError);
