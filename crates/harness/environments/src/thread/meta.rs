//! The metadata of a thread.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeMap};
use serde_json::{Map, Value};

use crate::roots::SelectedRoots;

/// The metadata of a thread: what stands at the head of its rollout.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SessionMeta {
    /// The thread.
    pub id: ThreadId,
    /// The thread that it was forked from.
    pub forked_from_id: Option<ThreadId>,
    /// What it has selected. Older metadata does not have it: nothing is selected then.
    pub selected_capability_roots: SelectedRoots,
    /// Every other member, as it was read.
    pub others: Map<String, Value>,
}

impl SessionMeta {
    /// Describes a thread that has selected `roots`.
    pub fn new(id: ThreadId, roots: SelectedRoots) -> Self {
        Self {
            id,
            forked_from_id: None,
            selected_capability_roots: roots,
            others: Map::new(),
        }
    }

    /// Describes a fork of this thread. It has selected the same roots, and everything else that is
    /// said of this thread is said of it, too.
    pub fn fork(&self, id: ThreadId) -> Self {
        Self {
            id,
            forked_from_id: Some(self.id.clone()),
            selected_capability_roots: self.selected_capability_roots.clone(),
            others: self.others.clone(),
        }
    }
}

impl Serialize for SessionMeta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(ID, &self.id)?;
        if let Some(parent) = &self.forked_from_id {
            map.serialize_entry(FORKED_FROM, parent)?;
        }
        for (name, value) in &self.others {
            // A member that has a field of its own is not written twice.
            if !OWN.contains(&name.as_str()) {
                map.serialize_entry(name, value)?;
            }
        }
        map.serialize_entry(SELECTED, &self.selected_capability_roots)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for SessionMeta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut others = Map::deserialize(deserializer)?;
        let id = others.remove(ID).ok_or(de::Error::missing_field(ID))?;
        Ok(Self {
            id: member(ID, id)?,
            forked_from_id: optional(&mut others, FORKED_FROM)?,
            selected_capability_roots: optional(&mut others, SELECTED)?.unwrap_or_default(),
            others,
        })
    }
}

/// Takes a member that may be absent or null.
fn optional<T, E>(members: &mut Map<String, Value>, name: &str) -> Result<Option<T>, E>
where
    T: for<'de> Deserialize<'de>,
    E: de::Error,
{
    match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => member(name, value).map(Some),
    }
}

fn member<T, E>(name: &str, value: Value) -> Result<T, E>
where
    T: for<'de> Deserialize<'de>,
    E: de::Error,
{
    serde_json::from_value(value).map_err(|error| E::custom(format_args!("`{name}`: {error}")))
}

const ID: &str = "id";
const FORKED_FROM: &str = "forked_from_id";
const SELECTED: &str = "selected_capability_roots";
/// The members that have a field of their own.
const OWN: [&str; 3] = [ID, FORKED_FROM, SELECTED];

/// Names a thread: 1 to 256 bytes.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ThreadId(Box<str>);

impl ThreadId {
    /// Takes a name.
    pub fn new(text: &str) -> Result<Self, ThreadIdError> {
        if text.is_empty() || text.len() > MAX_THREAD_ID_BYTES {
            return Err(ThreadIdError(text.len()));
        }
        Ok(Self(text.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ThreadId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&text).map_err(de::Error::custom)
    }
}

/// Caller: a thread's name is empty or too long.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("thread id has {0} bytes, not 1 to {MAX_THREAD_ID_BYTES}")]
pub struct ThreadIdError(usize);

/// The longest thread id: names are UUIDs, and some room beside.
const MAX_THREAD_ID_BYTES: usize = 256;
