//! The type itself: its text, its textual forms, and its two halves.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::parse::PathUriError;

/// What every canonical text starts with; a host or the path follows.
pub(super) const SCHEME: &str = "file://";

/// A canonical `file:` URI that names an absolute path, of this host or of another.
///
/// Cloning is cheap. Equality follows the convention: Windows paths compare decoded and without
/// regard to ASCII case, all others byte for byte.
#[derive(Clone, Debug)]
pub struct PathUri(Arc<str>);

impl PathUri {
    /// Wraps text the caller knows to be canonical.
    pub(super) fn from_canonical(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the canonical text, as it appears on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the host, empty if there is none, and the encoded path.
    pub(super) fn host_and_path(&self) -> (&str, &str) {
        let rest = self.0.strip_prefix(SCHEME).unwrap_or_default();
        rest.split_at(rest.find('/').unwrap_or(rest.len()))
    }
}

impl fmt::Display for PathUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PathUri {
    type Err = PathUriError;

    fn from_str(text: &str) -> Result<Self, PathUriError> {
        Self::parse(text)
    }
}

impl Serialize for PathUri {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PathUri {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Parses borrowed text in place, so that a path costs one allocation.
struct TextVisitor;

impl de::Visitor<'_> for TextVisitor {
    type Value = PathUri;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a `file:` URI")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PathUri, E> {
        PathUri::parse(text).map_err(E::custom)
    }
}
