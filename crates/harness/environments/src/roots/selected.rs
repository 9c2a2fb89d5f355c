//! One selected root, as it is persisted.

use std::{borrow::Cow, fmt, sync::Arc};

use exec_wire::path_uri::PathUri;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, de::DeserializeOwned, ser};
use serde_json::{Map, Value};

use crate::manager::EnvironmentId;

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
        put(&mut members, ID, &self.id)?;
        put(&mut members, LOCATION, &self.location)?;
        members.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SelectedCapabilityRoot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut others = Map::deserialize(deserializer)?;
        Ok(Self {
            id: take(&mut others, ID)?,
            location: take(&mut others, LOCATION)?,
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
                put(&mut members, KIND, ENVIRONMENT)?;
                put(&mut members, ENVIRONMENT_ID, environment_id)?;
                put(&mut members, PATH, path)?;
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
            environment_id: take(&mut members, ENVIRONMENT_ID)?,
            path: take(&mut members, PATH)?,
            others: members,
        })
    }
}

/// Takes a member that must be there.
fn take<T: DeserializeOwned, E: de::Error>(
    members: &mut Map<String, Value>,
    name: &'static str,
) -> Result<T, E> {
    let value = members.remove(name).ok_or(E::missing_field(name))?;
    serde_json::from_value(value).map_err(|error| E::custom(format_args!("`{name}`: {error}")))
}

/// Adds a member that has a field of its own.
fn put<T: Serialize + ?Sized, E: ser::Error>(
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
