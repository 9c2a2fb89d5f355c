//! One start: the task that opens a source and tells what came of it.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Weak},
};

use futures_util::FutureExt;
use tokio::time::Instant;

use super::{
    registry::Shared,
    source::OpenError,
    table::{Decided, Outcome},
};

/// Opens a source and records the outcome, if the start is still current by then. Dropping the future,
/// even before it was polled, leaves the environment as failed, unless it was replaced.
pub(super) fn run(manager: Weak<Shared>, decided: Decided) -> impl Future<Output = ()> + Send {
    let source = Arc::clone(&decided.source);
    let unfinished = Unfinished {
        manager,
        decided: Some(decided),
    };
    async move {
        let open = AssertUnwindSafe(async move { source.open().await }).catch_unwind();
        let outcome = match open.await {
            Ok(Ok(environment)) => Ok(Arc::new(environment)),
            Ok(Err(error)) => Err(Arc::new(error)),
            Err(_panic) => Err(Arc::new(OpenError::Panicked)),
        };
        unfinished.finish(outcome);
    }
}

/// A start without an outcome. Dropped, it has one: nobody waits for a task that is gone.
#[derive(Debug)]
struct Unfinished {
    manager: Weak<Shared>,
    decided: Option<Decided>,
}

impl Unfinished {
    fn finish(mut self, outcome: Outcome) {
        self.settle(outcome);
    }

    fn settle(&mut self, outcome: Outcome) {
        let (Some(decided), Some(manager)) = (self.decided.take(), self.manager.upgrade()) else {
            return;
        };
        let Decided { id, start, .. } = decided;
        let now = Instant::now();
        let waiting = manager.table().record_outcome(&id, start, &outcome, now);
        if let Some(waiting) = waiting {
            waiting.send_replace(Some(outcome));
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.decided.is_some() {
            self.settle(Err(Arc::new(OpenError::Cancelled)));
        }
    }
}
