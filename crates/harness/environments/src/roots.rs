//! Selected capability roots: what a thread wants to use, and what of it a step can use.
//!
//! The selection is durable: root id, environment id, path. Each step pairs it with the handles that
//! the step has captured. Invariant: a root resolves through the handle that was ready in the step's
//! snapshot, never through another one of the same environment.
//! Not here: reading any capability file ([`capabilities`](crate::capabilities)).

#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt, sync::Arc};

use exec_env::environment::Environment;
use exec_wire::{limits, path_uri::PathUri};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned},
    ser,
};
use serde_json::{Map, Value};

use crate::manager::{
    EnvironmentId, EnvironmentManager, EnvironmentSnapshot, EnvironmentState, OpenError,
};

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
) -> Result<ResolvedRoot, OmissionReason> {
    let RootLocation::Environment {
        environment_id,
        path,
        ..
    } = &root.location
    else {
        return Err(OmissionReason::UnknownLocation);
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
        return Err(OmissionReason::Starting);
    }
    let state = manager.start_if_due(environment_id);
    if let Some(error) = snapshot.failure(environment_id) {
        return Err(OmissionReason::Failed(Arc::clone(error)));
    }
    Err(match state {
        None => OmissionReason::Missing,
        Some(EnvironmentState::NotStarted | EnvironmentState::Starting) => OmissionReason::Starting,
        Some(EnvironmentState::Ready(_)) => OmissionReason::NotCaptured,
        Some(EnvironmentState::Failed(error)) => OmissionReason::Failed(error),
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
    pub reason: OmissionReason,
}

/// Why a step goes without a selected root.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OmissionReason {
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

/// The roots that a thread has selected, in its order, each once. At most [`MAX_SELECTED_ROOTS`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct SelectedRoots(Vec<SelectedCapabilityRoot>);

impl SelectedRoots {
    /// Takes a selection. What is selected twice counts once.
    pub fn new(
        roots: impl IntoIterator<Item = SelectedCapabilityRoot>,
    ) -> Result<Self, TooManyRoots> {
        let mut kept = Vec::new();
        for root in roots {
            if kept.contains(&root) {
                continue;
            }
            if kept.len() == MAX_SELECTED_ROOTS {
                return Err(TooManyRoots);
            }
            kept.push(root);
        }
        Ok(Self(kept))
    }

    /// Returns the roots in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, SelectedCapabilityRoot> {
        self.0.iter()
    }

    /// Tells how many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether nothing is selected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a SelectedRoots {
    type Item = &'a SelectedCapabilityRoot;
    type IntoIter = std::slice::Iter<'a, SelectedCapabilityRoot>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'de> Deserialize<'de> for SelectedRoots {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let roots = Vec::deserialize(deserializer)?;
        Self::new(roots).map_err(de::Error::custom)
    }
}

/// Caller: more roots are selected than a thread may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("more than {MAX_SELECTED_ROOTS} capability roots are selected")]
pub struct TooManyRoots;

/// Roots of one thread: what one discovery may ask for.
pub const MAX_SELECTED_ROOTS: usize = limits::MAX_DISCOVERY_ROOTS;

/// A directory of capabilities that a thread has selected. Only what is stable is in it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SelectedCapabilityRoot {
    /// Its name, such as `plugin@1`.
    pub id: RootId,
    /// Where it is.
    pub location: RootLocation,
    /// Every other member, as it was read.
    pub others: Map<String, Value>,
}

impl SelectedCapabilityRoot {
    /// Selects a directory of an environment.
    pub fn new(id: RootId, environment_id: EnvironmentId, path: PathUri) -> Self {
        let location = RootLocation::Environment {
            environment_id,
            path,
            others: Map::new(),
        };
        Self {
            id,
            location,
            others: Map::new(),
        }
    }
}

impl Serialize for SelectedCapabilityRoot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = self.others.clone();
        put_member(&mut members, ID, &self.id)?;
        put_member(&mut members, LOCATION, &self.location)?;
        members.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SelectedCapabilityRoot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut others = Map::deserialize(deserializer)?;
        Ok(Self {
            id: take_member(&mut others, ID)?,
            location: take_member(&mut others, LOCATION)?,
            others,
        })
    }
}

/// Where a selected root is.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RootLocation {
    /// In an environment.
    Environment {
        /// The environment.
        environment_id: EnvironmentId,
        /// The directory.
        path: PathUri,
        /// Every other member, as it was read.
        others: Map<String, Value>,
    },
    /// In a place of a kind that is not known here. It is kept as it was read and never resolves.
    Unknown(Map<String, Value>),
}

impl Serialize for RootLocation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Environment {
                environment_id,
                path,
                others,
            } => {
                let mut members = others.clone();
                put_member(&mut members, KIND, ENVIRONMENT)?;
                put_member(&mut members, ENVIRONMENT_ID, environment_id)?;
                put_member(&mut members, PATH, path)?;
                members.serialize(serializer)
            }
            Self::Unknown(members) => members.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RootLocation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut members = Map::deserialize(deserializer)?;
        match members.get(KIND) {
            Some(Value::String(kind)) if kind == ENVIRONMENT => {}
            Some(Value::String(_)) => return Ok(Self::Unknown(members)),
            Some(_) | None => {
                return Err(de::Error::custom("`type` of a root's location is no text"));
            }
        }
        members.remove(KIND);
        Ok(Self::Environment {
            environment_id: take_member(&mut members, ENVIRONMENT_ID)?,
            path: take_member(&mut members, PATH)?,
            others: members,
        })
    }
}

/// Takes a member that must be there.
fn take_member<T: DeserializeOwned, E: de::Error>(
    members: &mut Map<String, Value>,
    name: &'static str,
) -> Result<T, E> {
    let value = members.remove(name).ok_or(E::missing_field(name))?;
    serde_json::from_value(value).map_err(|error| E::custom(format_args!("`{name}`: {error}")))
}

/// Adds a member that has a field of its own.
fn put_member<T: Serialize + ?Sized, E: ser::Error>(
    members: &mut Map<String, Value>,
    name: &str,
    value: &T,
) -> Result<(), E> {
    let value = serde_json::to_value(value).map_err(E::custom)?;
    members.insert(name.to_owned(), value);
    Ok(())
}

const ID: &str = "id";
const LOCATION: &str = "location";
/// The member that tells the kind of a location.
const KIND: &str = "type";
/// The kind of a location in an environment.
const ENVIRONMENT: &str = "environment";
const ENVIRONMENT_ID: &str = "environmentId";
const PATH: &str = "path";

/// Names a root within its environment, as whoever selected it did: 1 to 256 bytes.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct RootId(Arc<str>);

impl RootId {
    /// Takes a name.
    pub fn new(text: &str) -> Result<Self, RootIdError> {
        if text.is_empty() || text.len() > MAX_ROOT_ID_BYTES {
            return Err(RootIdError(text.len()));
        }
        Ok(Self(text.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RootId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&text).map_err(de::Error::custom)
    }
}

/// Caller: a root's name is empty or too long.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("root id has {0} bytes, not 1 to {MAX_ROOT_ID_BYTES}")]
pub struct RootIdError(usize);

/// The longest root id: it is part of a key of the cache, and goes out with every discovery.
const MAX_ROOT_ID_BYTES: usize = 256;
