//! Ids and sequence numbers, each as a separate type.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::limits;

/// Defines ids: a text of limited length that one of the ends chose.
macro_rules! text_ids {
    ($($(#[doc = $doc:literal])+ $name:ident = $wire:literal, $limit:ident;)+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
            pub struct $name(Arc<str>);

            impl $name {
                #[doc = concat!("Creates an id of at most [`limits::", stringify!($limit), "`].")]
                pub fn new(name: &str) -> Result<Self, IdLengthError> {
                    check_length(name, $wire, limits::$limit).map(|()| Self(name.into()))
                }

                /// Returns the id as text.
                pub fn as_str(&self) -> &str {
                    &self.0
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(&self.0)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                    Self::new(&name).map_err(de::Error::custom)
                }
            }

            #[cfg(feature = "schema")]
            impl schemars::JsonSchema for $name {
                fn schema_name() -> std::borrow::Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                    crate::schema::text(concat!($($doc,)+), 0..=limits::$limit)
                }
            }
        )+
    };
}

text_ids! {
    /// Process id that the client chose in `process/start`. Not an OS pid. May be empty.
    ProcessId = "processId", MAX_PROCESS_ID_BYTES;
    /// Watch id that the client chose in `fs/watch`.
    WatchId = "watchId", MAX_WATCH_ID_BYTES;
    /// Request id that the client chose in `http/request`.
    HttpRequestId = "requestId", MAX_HTTP_REQUEST_ID_BYTES;
    /// Tunnel id that the client chose in `tunnel/open`, or the server for an accepted connection.
    TunnelId = "tunnelId", MAX_TUNNEL_ID_BYTES;
    /// Listener id that the client chose in `tunnel/listen`.
    ListenId = "listenId", MAX_TUNNEL_ID_BYTES;
}

impl From<&TunnelId> for ListenId {
    fn from(tunnel: &TunnelId) -> Self {
        Self(Arc::clone(&tunnel.0))
    }
}

/// A listener is closed like a tunnel with its id, so both share their ids.
impl From<&ListenId> for TunnelId {
    fn from(listener: &ListenId) -> Self {
        Self(Arc::clone(&listener.0))
    }
}

/// Id that the client chose for one write, which makes retries idempotent. Never empty.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct WriteId(Box<str>);

impl WriteId {
    /// Creates an id of 1 to [`limits::MAX_WRITE_ID_BYTES`] bytes.
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

/// File handle id that the client chose in `fs/open`. Any text decodes: `fs/open` refuses an id
/// that is too long, and other methods treat it as unknown.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct HandleId(Box<str>);

impl HandleId {
    /// Creates an id.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Session id that the server chose. A client that knows it may resume the session.
#[derive(Clone, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionId(Arc<str>);

impl fmt::Debug for SessionId {
    /// Shows enough to distinguish sessions in a log, but not enough to resume one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({}…)", self.redacted())
    }
}

impl SessionId {
    /// Creates an id.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the first characters: enough to distinguish sessions in logs and spans, but not
    /// enough to resume one.
    pub fn redacted(&self) -> &str {
        self.0.get(..8).unwrap_or_default()
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Sequence number of an event of a process. Starts at 1 without gaps; 0 is before the first.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputSeq(pub u64);

impl OutputSeq {
    /// Returns the following sequence number.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Why an id is invalid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// Caller: this id must not be empty.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// Caller: the id is repeated and stored, so its length is limited.
    #[error(transparent)]
    TooLong(#[from] IdLengthError),
}

/// Caller: the id exceeds its limit.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{name} must not exceed {limit} bytes")]
pub struct IdLengthError {
    /// Member that contains the id.
    pub name: &'static str,
    /// Maximum length in bytes.
    pub limit: usize,
}

fn check_length(text: &str, name: &'static str, limit: usize) -> Result<(), IdLengthError> {
    if text.len() > limit {
        Err(IdLengthError { name, limit })
    } else {
        Ok(())
    }
}
