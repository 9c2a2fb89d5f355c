//! What a step can use of the selection.

use std::sync::Arc;

use exec_wire::path_uri::PathUri;

use super::{
    list::SelectedRoots,
    selected::{RootId, RootLocation, SelectedCapabilityRoot},
};
use crate::manager::{
    EnvironmentId, EnvironmentManager, EnvironmentSnapshot, EnvironmentState, OpenError,
};
use exec_env::environment::Environment;

/// Pairs each selected root with the handle that the step has captured. Reads no files and waits for
/// nothing.
///
/// `manager` is asked to start selected environments that are neither ready nor starting in the
/// snapshot: a lazy one that nobody asked for, and one that failed a while ago. A later step can find
/// them ready; this one does not, even if they are by now.
pub fn resolve(
    selection: &SelectedRoots,
    snapshot: &EnvironmentSnapshot,
    manager: &EnvironmentManager,
) -> StepRoots {
    let mut step = StepRoots::default();
    for root in selection {
        match resolve_one(root, snapshot, manager) {
            Ok(resolved) => step.resolved.push(resolved),
            Err(reason) => step.omitted.push(OmittedRoot {
                root: root.clone(),
                reason,
            }),
        }
    }
    step
}

fn resolve_one(
    root: &SelectedCapabilityRoot,
    snapshot: &EnvironmentSnapshot,
    manager: &EnvironmentManager,
) -> Result<ResolvedRoot, Omission> {
    let RootLocation::Environment {
        environment_id,
        path,
        ..
    } = &root.location
    else {
        return Err(Omission::UnknownLocation);
    };
    if let Some(environment) = snapshot.ready(environment_id) {
        return Ok(ResolvedRoot {
            id: root.id.clone(),
            environment_id: environment_id.clone(),
            path: path.clone(),
            environment: Arc::clone(environment),
        });
    }
    if snapshot.is_starting(environment_id) {
        return Err(Omission::Starting);
    }
    let state = manager.offer_start(environment_id);
    if let Some(error) = snapshot.failure(environment_id) {
        return Err(Omission::Failed(Arc::clone(error)));
    }
    Err(match state {
        None => Omission::Missing,
        Some(EnvironmentState::NotStarted | EnvironmentState::Starting) => Omission::Starting,
        Some(EnvironmentState::Ready(_)) => Omission::NotCaptured,
        Some(EnvironmentState::Failed(error)) => Omission::Failed(error),
    })
}

/// The selection, as one step sees it. Both lists have its order.
#[derive(Clone, Debug, Default)]
pub struct StepRoots {
    /// What the step can use.
    pub resolved: Vec<ResolvedRoot>,
    /// What it cannot use, with the reasons, for diagnostics. The thread's selection keeps it.
    pub omitted: Vec<OmittedRoot>,
}

/// A selected root whose environment was ready.
#[derive(Clone, Debug)]
pub struct ResolvedRoot {
    /// Its name.
    pub id: RootId,
    /// Its environment.
    pub environment_id: EnvironmentId,
    /// The directory.
    pub path: PathUri,
    /// The handle that was captured: the one for everything that the step does with the root.
    pub environment: Arc<Environment>,
}

/// A selected root that a step goes without.
#[derive(Clone, Debug)]
pub struct OmittedRoot {
    /// The root.
    pub root: SelectedCapabilityRoot,
    /// Why.
    pub reason: Omission,
}

/// Why a step goes without a selected root.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Omission {
    /// Its environment is starting.
    #[error("the environment is starting")]
    Starting,
    /// Its environment is ready by now, and was not captured: a later step can use it.
    #[error("the environment was not captured by this step")]
    NotCaptured,
    /// There is no such environment.
    #[error("there is no such environment")]
    Missing,
    /// Its environment could not be opened.
    #[error("the environment did not start")]
    Failed(#[source] Arc<OpenError>),
    /// It is in a place of a kind that is not known here.
    #[error("the root is in a place of an unknown kind")]
    UnknownLocation,
}
