//! Names of streams.

use std::{borrow::Borrow, fmt, sync::Arc};

use crate::limits;

/// The name of a stream, chosen by its harness. Not blank, bounded, cheap to clone. Untrusted: it may
/// hold control characters, so show it with `{:?}` only.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct StreamId(Arc<str>);

impl StreamId {
    /// Takes a name.
    pub fn new(text: &str) -> Result<Self, StreamIdError> {
        check(text)?;
        Ok(Self(text.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Borrow<str> for StreamId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Why a text does not name a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamIdError {
    /// Peer: white space names nothing.
    #[error("stream id is blank")]
    Blank,
    /// Peer: the name is longer than [`limits::STREAM_ID_BYTES`].
    #[error("stream id of {0} bytes is too long")]
    TooLong(usize),
}

/// Checks a name that is not kept.
pub(crate) fn check(text: &str) -> Result<(), StreamIdError> {
    if text.len() > limits::STREAM_ID_BYTES {
        Err(StreamIdError::TooLong(text.len()))
    } else if text.trim().is_empty() {
        Err(StreamIdError::Blank)
    } else {
        Ok(())
    }
}
