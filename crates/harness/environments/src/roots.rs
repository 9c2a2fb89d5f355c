//! Selected capability roots: the durable selection of a thread, and its resolution in a step.
//!
//! The selection stores root id, environment id and path. Each step resolves it with the handles
//! that the step has captured. Invariant: a root resolves through the handle that was ready in the
//! step's snapshot, never through another handle of the same environment. Not here: reading
//! capability files ([`capabilities`](crate::capabilities)).

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
    EnvironmentId, EnvironmentManager, EnvironmentOpenError, EnvironmentSnapshot, EnvironmentState,
};

/// Resolves each selected root to the handle that the step has captured. Reads no files and does
/// not block.
///
/// Asks `manager` to start selected environments that are neither ready nor starting in the
/// snapshot: lazy ones that were not started, and failed ones that are due for a retry. Only a
/// later step can find them ready; this one ignores them even if they are ready by now.
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

/// The selection resolved for one step. Both lists keep its order.
#[derive(Clone, Debug, Default)]
pub struct StepRoots {
    /// Roots that the step can use.
    pub resolved: Vec<ResolvedRoot>,
    /// Roots that the step cannot use and the reasons, for diagnostics. The thread's selection
    /// keeps them.
    pub omitted: Vec<OmittedRoot>,
}

/// A selected root in a ready environment.
#[derive(Clone, Debug)]
pub struct ResolvedRoot {
    /// Its id.
    pub id: RootId,
    /// Its environment.
    pub environment_id: EnvironmentId,
    /// The directory.
    pub path: PathUri,
    /// The captured handle. Everything the step does with the root uses it.
    pub environment: Arc<Environment>,
}

/// A selected root that a step cannot use.
#[derive(Clone, Debug)]
pub struct OmittedRoot {
    /// The root.
    pub root: SelectedCapabilityRoot,
    /// The reason.
    pub reason: OmissionReason,
}

/// Why a step cannot use a selected root.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OmissionReason {
    /// Its environment is starting.
    #[error("the environment is starting")]
    Starting,
    /// Its environment is ready now but was not captured. A later step can use it.
    #[error("the environment was not captured by this step")]
    NotCaptured,
    /// Its environment does not exist.
    #[error("the environment does not exist")]
    Missing,
    /// Its environment could not be opened.
    #[error("the environment did not start")]
    Failed(#[source] Arc<EnvironmentOpenError>),
    /// Its location has an unknown type.
    #[error("the location of the root has an unknown type")]
    UnknownLocation,
}

/// The roots that a thread has selected, ordered and without duplicates. At most
/// [`MAX_SELECTED_ROOTS`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct SelectedRoots(Vec<SelectedCapabilityRoot>);

impl SelectedRoots {
    /// Creates a selection and drops duplicates.
    pub fn new(
        roots: impl IntoIterator<Item = SelectedCapabilityRoot>,
    ) -> Result<Self, TooManyRoots> {
        let mut unique = Vec::new();
        for root in roots {
            if unique.contains(&root) {
                continue;
            }
            if unique.len() == MAX_SELECTED_ROOTS {
                return Err(TooManyRoots);
            }
            unique.push(root);
        }
        Ok(Self(unique))
    }

    /// Returns the roots in order.
    pub fn iter(&self) -> std::slice::Iter<'_, SelectedCapabilityRoot> {
        self.0.iter()
    }

    /// Returns the number of roots.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether nothing is selected.
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

/// Caller: too many roots are selected.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("too many capability roots selected: limit is {MAX_SELECTED_ROOTS}")]
pub struct TooManyRoots;

/// Maximum number of roots of one thread: the limit of one discovery.
pub const MAX_SELECTED_ROOTS: usize = limits::MAX_DISCOVERY_ROOTS;

/// A directory of capabilities that a thread has selected. Holds durable data only.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SelectedCapabilityRoot {
    /// Its id, such as `plugin@1`.
    pub id: RootId,
    /// Its location.
    pub location: RootLocation,
    /// All other members, unchanged.
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

/// The location of a selected root.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RootLocation {
    /// In an environment.
    Environment {
        /// The environment.
        environment_id: EnvironmentId,
        /// The directory.
        path: PathUri,
        /// All other members, unchanged.
        others: Map<String, Value>,
    },
    /// A location of an unknown type. Kept unchanged, and never resolves.
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
                return Err(de::Error::custom(
                    "`type` of a root's location must be a string",
                ));
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

/// Removes and deserializes a required member.
pub(crate) fn take_member<T: DeserializeOwned, E: de::Error>(
    members: &mut Map<String, Value>,
    name: &'static str,
) -> Result<T, E> {
    let value = members.remove(name).ok_or(E::missing_field(name))?;
    serde_json::from_value(value).map_err(|error| E::custom(format_args!("`{name}`: {error}")))
}

/// Removes and deserializes a member that may be absent or null.
pub(crate) fn take_optional_member<T: DeserializeOwned, E: de::Error>(
    members: &mut Map<String, Value>,
    name: &'static str,
) -> Result<Option<T>, E> {
    members.entry(name).or_insert(Value::Null);
    take_member(members, name)
}

/// Adds a serialized member.
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
/// The member that holds the type of a location.
const KIND: &str = "type";
/// The type of a location in an environment.
const ENVIRONMENT: &str = "environment";
const ENVIRONMENT_ID: &str = "environmentId";
const PATH: &str = "path";

/// Names a root within its environment: 1 to 256 bytes, chosen by the selecting client.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct RootId(Arc<str>);

impl RootId {
    /// Validates an id.
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

/// Caller: a root id is empty or too long.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("root id has {0} bytes, not 1 to {MAX_ROOT_ID_BYTES}")]
pub struct RootIdError(usize);

/// Maximum length of a root id. It is part of a cache key and of every discovery request.
const MAX_ROOT_ID_BYTES: usize = 256;
