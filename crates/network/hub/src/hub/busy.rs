//! How many requests and sockets there are, to know when there are none.

use tokio::sync::watch;

/// Counts what goes on. Clones count together.
#[derive(Clone, Debug)]
pub(super) struct Busy(watch::Sender<usize>);

impl Default for Busy {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Busy {
    /// Counts one more, until the guard is dropped.
    pub(super) fn begin(&self) -> Guard {
        self.0.send_modify(|count| *count += 1);
        Guard(self.clone())
    }

    /// Resolves when nothing goes on.
    pub(super) async fn idle(&self) {
        // The sender is here, so the channel is open.
        drop(self.0.subscribe().wait_for(|count| *count == 0).await);
    }
}

/// Something that goes on.
#[derive(Debug)]
pub(super) struct Guard(Busy);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
