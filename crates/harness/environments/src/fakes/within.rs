//! The one bound of every wait.

use std::time::Duration;

/// Waits for something that must happen.
#[track_caller]
pub(crate) fn within<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(LIMIT, future).await {
            Ok(output) => output,
            Err(_) => panic!("did not happen within {LIMIT:?}, at {caller}"),
        }
    }
}

/// How long anything may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(20);
