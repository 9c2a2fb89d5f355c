//! The environments of one model step, captured together.

use std::{collections::BTreeMap, sync::Arc};

use exec_env::environment::Environment;

use super::{environment_id::EnvironmentId, source::OpenError};

/// The environments of one model step, as they were at one moment: each that was ready with the very
/// handle that was ready. It stays as it is, whatever the manager does.
///
/// Environments that nobody has started and those that do not exist are not in it.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentSnapshot {
    environments: BTreeMap<EnvironmentId, Option<Arc<Environment>>>,
    failed: BTreeMap<EnvironmentId, Arc<OpenError>>,
}

impl EnvironmentSnapshot {
    /// Adds one that is ready.
    pub(super) fn record_ready(&mut self, id: EnvironmentId, handle: Arc<Environment>) {
        self.environments.insert(id, Some(handle));
    }

    /// Adds one that is starting.
    pub(super) fn record_starting(&mut self, id: EnvironmentId) {
        self.environments.insert(id, None);
    }

    /// Adds one that failed.
    pub(super) fn record_failed(&mut self, id: EnvironmentId, error: Arc<OpenError>) {
        self.failed.insert(id, error);
    }

    /// Returns what was captured: `Some(handle)` for a ready environment, `None` for one that was
    /// starting, in the order of their ids.
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

    /// Tells whether the environment was starting.
    pub fn is_starting(&self, id: &EnvironmentId) -> bool {
        self.environments.get(id).is_some_and(Option::is_none)
    }

    /// Returns why the environment had failed, if it had.
    pub fn failure(&self, id: &EnvironmentId) -> Option<&Arc<OpenError>> {
        self.failed.get(id)
    }
}

/// How far an environment was when the manager was asked.
#[derive(Clone, Debug)]
pub enum EnvironmentState {
    /// Nobody has asked for it.
    NotStarted,
    /// It is being opened.
    Starting,
    /// It can be used, through this handle.
    Ready(Arc<Environment>),
    /// Opening it failed. It is tried again when somebody asks for it.
    Failed(Arc<OpenError>),
}
