//! The environments of one model step, captured together.

use std::{collections::BTreeMap, sync::Arc};

use exec_env::environment::Environment;

use super::{environment_id::EnvironmentId, source::EnvironmentOpenError};

/// The environments of one model step, captured together: each ready environment with the handle
/// that was ready. Immutable: later changes do not affect it.
///
/// Excludes environments that were not started and those that do not exist.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentSnapshot {
    environments: BTreeMap<EnvironmentId, Option<Arc<Environment>>>,
    failed: BTreeMap<EnvironmentId, Arc<EnvironmentOpenError>>,
}

impl EnvironmentSnapshot {
    /// Adds a ready environment.
    pub(super) fn record_ready(&mut self, id: EnvironmentId, handle: Arc<Environment>) {
        self.environments.insert(id, Some(handle));
    }

    /// Adds a starting environment.
    pub(super) fn record_starting(&mut self, id: EnvironmentId) {
        self.environments.insert(id, None);
    }

    /// Adds a failed environment.
    pub(super) fn record_failed(&mut self, id: EnvironmentId, error: Arc<EnvironmentOpenError>) {
        self.failed.insert(id, error);
    }

    /// Returns the captured environments sorted by id: `Some(handle)` if ready, `None` if starting.
    pub fn environments(
        &self,
    ) -> impl Iterator<Item = (&EnvironmentId, Option<&Arc<Environment>>)> {
        self.environments
            .iter()
            .map(|(id, handle)| (id, handle.as_ref()))
    }

    /// Returns the handle, if the environment was ready.
    pub fn ready(&self, id: &EnvironmentId) -> Option<&Arc<Environment>> {
        self.environments.get(id)?.as_ref()
    }

    /// Returns whether the environment was starting.
    pub fn is_starting(&self, id: &EnvironmentId) -> bool {
        self.environments.get(id).is_some_and(Option::is_none)
    }

    /// Returns the error, if the environment had failed.
    pub fn failure(&self, id: &EnvironmentId) -> Option<&Arc<EnvironmentOpenError>> {
        self.failed.get(id)
    }
}

/// State of an environment.
#[derive(Clone, Debug)]
pub enum EnvironmentState {
    /// Not requested yet.
    NotStarted,
    /// Being opened.
    Starting,
    /// Ready for use through this handle.
    Ready(Arc<Environment>),
    /// Failed to open. The next request retries it.
    Failed(Arc<EnvironmentOpenError>),
}
