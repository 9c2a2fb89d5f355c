//! Names and numbers that peers exchange: ids, sequence numbers. Each is a type of its own.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::limits;

/// A process, as the client named it in `process/start`. Not an OS pid.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ProcessId(Arc<str>);

impl ProcessId {
    /// Takes a name of at most [`limits::MAX_PROCESS_ID_BYTES`]; the empty name is one too.
    pub fn new(name: &str) -> Result<Self, IdTooLong> {
        check_length(name, "processId", limits::MAX_PROCESS_ID_BYTES).map(|()| Self(name.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessId({:?})", &*self.0)
    }
}

impl<'de> Deserialize<'de> for ProcessId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&name).map_err(de::Error::custom)
    }
}

/// The client's name for one write, which makes repeating it harmless. Never empty.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct WriteId(Box<str>);

impl WriteId {
    /// Takes a name of 1 to [`limits::MAX_WRITE_ID_BYTES`] bytes.
    pub fn new(name: &str) -> Result<Self, IdError> {
        if name.is_empty() {
            return Err(IdError::Empty("writeId"));
        }
        check_length(name, "writeId", limits::MAX_WRITE_ID_BYTES)?;
        Ok(Self(name.into()))
    }
}

impl<'de> Deserialize<'de> for WriteId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&name).map_err(de::Error::custom)
    }
}

/// An open file, as the client named it in `fs/open`. Any text decodes: a name that is too long is
/// refused where it would be taken into use, and unknown everywhere else.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct HandleId(Box<str>);

impl HandleId {
    /// Takes a name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A watch, as the client named it in `fs/watch`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct WatchId(Arc<str>);

impl WatchId {
    /// Takes a name of at most [`limits::MAX_WATCH_ID_BYTES`].
    pub fn new(name: &str) -> Result<Self, IdTooLong> {
        check_length(name, "watchId", limits::MAX_WATCH_ID_BYTES).map(|()| Self(name.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for WatchId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&name).map_err(de::Error::custom)
    }
}

/// An HTTP request, as the client named it in `http/request`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct HttpRequestId(Arc<str>);

impl HttpRequestId {
    /// Takes a name of at most [`limits::MAX_HTTP_REQUEST_ID_BYTES`].
    pub fn new(name: &str) -> Result<Self, IdTooLong> {
        check_length(name, "requestId", limits::MAX_HTTP_REQUEST_ID_BYTES)
            .map(|()| Self(name.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HttpRequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for HttpRequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&name).map_err(de::Error::custom)
    }
}

/// A session, as the server named it. Knowing it is what entitles a client to resume it.
#[derive(Clone, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct SessionId(Arc<str>);

impl fmt::Debug for SessionId {
    /// Shows enough to tell sessions apart in a log, and not enough to resume one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({}…)", self.shown())
    }
}

impl SessionId {
    /// Wraps the text of a session id.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the beginning of the text: enough to tell sessions apart in a log or a span, and not enough
    /// to resume one.
    pub fn shown(&self) -> &str {
        self.0.get(..8).unwrap_or_default()
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of one event of a process. Counted from 1, without holes; 0 is before the first.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct OutputSeq(pub u64);

impl OutputSeq {
    /// Returns the number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Why a text is not an id.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// Caller: this id must name something.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// Caller: the id is repeated and remembered, so its length is check_length.
    #[error(transparent)]
    TooLong(#[from] IdTooLong),
}

/// Caller: the id exceeds its limit.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{name} must not exceed {limit} bytes")]
pub struct IdTooLong {
    /// The member that holds the id.
    pub name: &'static str,
    /// The most bytes it may have.
    pub limit: usize,
}

fn check_length(text: &str, name: &'static str, limit: usize) -> Result<(), IdTooLong> {
    if text.len() > limit {
        Err(IdTooLong { name, limit })
    } else {
        Ok(())
    }
}
