//! The one bound of every wait.

use std::time::Duration;

use tokio::time::timeout;

/// How long anything may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits for something that must happen.
#[track_caller]
pub(crate) fn within<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match timeout(LIMIT, future).await {
            Ok(output) => output,
            Err(_) => panic!("{what}: did not happen within {LIMIT:?}, at {caller}"),
        }
    }
}
