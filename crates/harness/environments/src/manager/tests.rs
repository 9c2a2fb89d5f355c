//! The manager, with sources that the tests control.

mod lifetime;
mod race;
mod replacing;
mod starting;

use tokio::runtime::Handle;

use super::EnvironmentManager;

/// Returns a manager that starts on the runtime of the test.
fn manager() -> EnvironmentManager {
    EnvironmentManager::new(Handle::current())
}
