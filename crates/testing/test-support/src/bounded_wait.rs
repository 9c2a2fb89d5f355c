//! Waits that fail the test after one common timeout.

use std::{panic::Location, time::Duration};

use tokio::time::{sleep, timeout};

/// Timeout of every wait, sized for a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Waits for a future and panics after [`LIMIT`].
#[track_caller]
pub fn within<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    async move {
        match timeout(LIMIT, future).await {
            Ok(output) => output,
            Err(_) => panic!("{what}: did not happen within {LIMIT:?}, at {caller}"),
        }
    }
}

/// Polls until a condition holds, for state without notifications. Panics after [`LIMIT`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    within(what, async move {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    })
}
