//! Tasks that end with whoever holds them.

use tokio::task::AbortHandle;

/// A task that ends with its value.
#[derive(Debug)]
pub(crate) struct Task(pub(crate) AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
