//! The name of an environment, as a registry knows it.

use std::{fmt, sync::Arc};

/// Longest name. It stands in URLs, which servers bound at about 8 KiB.
const MAX_BYTES: usize = 256;

/// The name of an environment. It becomes part of a URL as it is: a slash in it makes more segments.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EnvironmentId(Arc<str>);

impl EnvironmentId {
    /// Takes a name, without the blanks around it.
    ///
    /// # Errors
    /// When nothing is left, or when it would lead to another place than the environment's.
    pub fn new(id: &str) -> Result<Self, EnvironmentIdError> {
        let id = id.trim();
        if id.is_empty() {
            return Err(EnvironmentIdError::Empty);
        }
        if id.len() > MAX_BYTES {
            return Err(EnvironmentIdError::TooLong);
        }
        // A query or a fragment would cut the path off, and a backslash counts as a slash.
        let strange = |c: char| c.is_control() || matches!(c, '?' | '#' | '\\');
        if let Some(found) = id.chars().find(|c| strange(*c)) {
            return Err(EnvironmentIdError::Character(found));
        }
        if id.split('/').any(is_dots) {
            return Err(EnvironmentIdError::Dots);
        }
        Ok(Self(id.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Tells whether a segment leads upwards or nowhere, also as URLs spell dots.
fn is_dots(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    matches!(plain.as_str(), "." | "..")
}

impl fmt::Display for EnvironmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Caller: the text cannot name an environment.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentIdError {
    /// There is nothing in it.
    #[error("environment id is empty")]
    Empty,
    /// It is too long for a URL.
    #[error("environment id is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// It holds a character that does not belong into the path of a URL.
    #[error("environment id holds {0:?}")]
    Character(char),
    /// One of its segments would lead upwards.
    #[error("environment id has a segment `.` or `..`")]
    Dots,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_trimmed_and_otherwise_kept() {
        for id in ["env-1", "a/b", "a b", "..a", "ä"] {
            let padded = format!(" {id}\n");
            assert_eq!(EnvironmentId::new(&padded).unwrap().as_str(), id);
        }
    }

    #[test]
    fn what_would_lead_elsewhere_is_refused() {
        assert_eq!(EnvironmentId::new(" \t"), Err(EnvironmentIdError::Empty));
        for (id, found) in [("a?b", '?'), ("a#b", '#'), ("a\nb", '\n'), ("a\\b", '\\')] {
            let refused = Err(EnvironmentIdError::Character(found));
            assert_eq!(EnvironmentId::new(id), refused);
        }
        for id in ["..", "a/../b", "a/%2E%2e", "."] {
            assert_eq!(
                EnvironmentId::new(id),
                Err(EnvironmentIdError::Dots),
                "{id}"
            );
        }
        assert!(EnvironmentId::new(&"x".repeat(MAX_BYTES)).is_ok());
        let long = "x".repeat(MAX_BYTES + 1);
        assert_eq!(EnvironmentId::new(&long), Err(EnvironmentIdError::TooLong));
    }
}
