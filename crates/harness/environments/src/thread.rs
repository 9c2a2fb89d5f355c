//! The durable state of a thread: its metadata, its selection and its history.
//!
//! Invariant: reading and writing preserves everything, including unknown members. Not here: files.
//! A rollout is text that its owner reads, bounds and writes.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeMap};
use serde_json::{Map, Value, value::RawValue};

use crate::roots::{SelectedRoots, take_member, take_optional_member};

/// The metadata of a thread, stored in the first line of its rollout.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SessionMeta {
    /// The thread.
    pub id: ThreadId,
    /// The thread that it was forked from.
    pub forked_from_id: Option<ThreadId>,
    /// Selected roots. Absent in older metadata, which means that nothing is selected.
    pub selected_capability_roots: SelectedRoots,
    /// All other members, unchanged.
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

    /// Describes a fork of this thread, with the same selection and all other members.
    pub fn fork(&self, id: ThreadId) -> Self {
        Self {
            id,
            forked_from_id: Some(self.id.clone()),
            ..self.clone()
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
            // Skip members that have their own field.
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
        Ok(Self {
            id: take_member(&mut others, ID)?,
            forked_from_id: take_optional_member(&mut others, FORKED_FROM)?,
            selected_capability_roots: take_optional_member(&mut others, SELECTED)?
                .unwrap_or_default(),
            others,
        })
    }
}

const ID: &str = "id";
const FORKED_FROM: &str = "forked_from_id";
const SELECTED: &str = "selected_capability_roots";
/// Members that have their own field.
const OWN: [&str; 3] = [ID, FORKED_FROM, SELECTED];

/// Names a thread: 1 to 256 bytes.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ThreadId(Box<str>);

impl ThreadId {
    /// Validates an id.
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

/// Caller: a thread id is empty or too long.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("thread id has {0} bytes, not 1 to {MAX_THREAD_ID_BYTES}")]
pub struct ThreadIdError(usize);

/// Maximum length of a thread id. Ids are usually UUIDs.
const MAX_THREAD_ID_BYTES: usize = 256;

/// A thread as it is persisted.
#[derive(Clone, Debug)]
pub struct Rollout {
    /// Its metadata.
    pub meta: SessionMeta,
    /// Its history. The contents of the items are opaque.
    pub items: Vec<RolloutItem>,
    /// Other members of the first line, such as the timestamp.
    head: Map<String, Value>,
}

impl Rollout {
    /// Creates a rollout without history.
    pub fn new(meta: SessionMeta) -> Self {
        Self {
            meta,
            items: Vec::new(),
            head: Map::new(),
        }
    }

    /// Parses a rollout. The first line that is not blank must hold the metadata. Later lines that
    /// are not JSON objects are skipped and reported, because a crash can leave half a line behind.
    pub fn read(text: &str) -> Result<RolloutReadOutcome, RolloutError> {
        let mut lines = (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim().is_empty());
        let (number, first) = lines.next().ok_or(RolloutError::Empty)?;
        let invalid_head = |error| RolloutError::Head(InvalidLine { number, error });
        let mut head: Map<String, Value> = serde_json::from_str(first)
            .map_err(|error| invalid_head(LineError::Json(error.to_string())))?;
        if head.remove("type").is_none_or(|kind| kind != SESSION_META) {
            return Err(invalid_head(LineError::NotMeta));
        }
        let payload = head.remove("payload").unwrap_or(Value::Null);
        let meta = serde_json::from_value(payload)
            .map_err(|error| invalid_head(LineError::Meta(error.to_string())))?;
        let mut read = RolloutReadOutcome {
            rollout: Self {
                meta,
                items: Vec::new(),
                head,
            },
            invalid_lines: Vec::new(),
        };
        for (number, line) in lines {
            match RolloutItem::parse(line) {
                Ok(item) => read.rollout.items.push(item),
                Err(error) => read.invalid_lines.push(InvalidLine { number, error }),
            }
        }
        Ok(read)
    }

    /// Writes the rollout, one item per line.
    pub fn write(&self) -> Result<String, serde_json::Error> {
        let mut head = self.head.clone();
        head.insert("type".to_owned(), SESSION_META.into());
        head.insert("payload".to_owned(), serde_json::to_value(&self.meta)?);
        let mut text = serde_json::to_string(&head)?;
        for item in &self.items {
            // Writing to a string cannot fail.
            write!(text, "\n{}", item.as_str()).ok();
        }
        text.push('\n');
        Ok(text)
    }

    /// Forks the thread with the same selection and the given part of its history.
    #[must_use]
    pub fn fork(&self, id: ThreadId, history: ForkHistory) -> Self {
        let skipped = match history {
            ForkHistory::All => 0,
            ForkHistory::Last(count) => self.items.len().saturating_sub(count),
        };
        Self {
            meta: self.meta.fork(id),
            items: self.items.iter().skip(skipped).cloned().collect(),
            head: self.head.clone(),
        }
    }
}

/// The part of the history that a fork starts with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ForkHistory {
    /// Everything.
    All,
    /// The last items, up to this number.
    Last(usize),
}

/// One item of a history: the text of a JSON object on one line, unchanged.
#[derive(Clone, Debug)]
pub struct RolloutItem(Box<RawValue>);

impl RolloutItem {
    /// Parses one line.
    pub fn parse(line: &str) -> Result<Self, LineError> {
        let line = line.trim();
        if line.contains(['\n', '\r']) {
            return Err(LineError::Json("more than one line".to_owned()));
        }
        if !line.starts_with('{') {
            return Err(LineError::Json("expected `{`".to_owned()));
        }
        serde_json::from_str(line)
            .map(Self)
            .map_err(|error| LineError::Json(error.to_string()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }
}

/// A rollout, and its invalid lines.
#[derive(Clone, Debug)]
pub struct RolloutReadOutcome {
    /// The rollout.
    pub rollout: Rollout,
    /// The skipped lines, in order.
    pub invalid_lines: Vec<InvalidLine>,
}

/// A line that could not be parsed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {number}: {error}")]
pub struct InvalidLine {
    /// Line number, starting at 1.
    pub number: usize,
    /// The cause.
    pub error: LineError,
}

/// Why a line is invalid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Host: the line is not a JSON object.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// Host: the line is not metadata.
    #[error("`type` is not `{SESSION_META}`")]
    NotMeta,
    /// Host: the metadata is invalid.
    #[error("metadata: {0}")]
    Meta(String),
}

/// Why a rollout cannot be parsed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// Host: the rollout is empty.
    #[error("the rollout is empty")]
    Empty,
    /// Host: the rollout does not start with metadata.
    #[error("the rollout has no metadata: {0}")]
    Head(InvalidLine),
}

/// The type of the first line.
const SESSION_META: &str = "session_meta";
