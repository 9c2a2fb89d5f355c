//! The name of an environment.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de};

/// Names one logical executor, for good: 1 to 64 ASCII letters, digits, `_` or `-`. Never `none`,
/// which stands for having no environment.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct EnvironmentId(Arc<str>);

impl EnvironmentId {
    /// Takes any id, also the one of the local environment.
    pub fn parse(text: &str) -> Result<Self, EnvironmentIdError> {
        if text == NONE {
            return Err(EnvironmentIdError::Reserved(NONE));
        }
        if text.is_empty() || text.len() > MAX_BYTES {
            return Err(EnvironmentIdError::Length(text.len()));
        }
        let is_odd = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if let Some(odd) = text.chars().find(is_odd) {
            return Err(EnvironmentIdError::Character(odd));
        }
        Ok(Self(text.into()))
    }

    /// Takes an id that a person chose for an environment of theirs: `local` is not one.
    pub fn chosen(text: &str) -> Result<Self, EnvironmentIdError> {
        let id = Self::parse(text)?;
        if id.is_local() {
            return Err(EnvironmentIdError::Reserved(LOCAL));
        }
        Ok(id)
    }

    /// Returns the id of the environment on this machine.
    pub fn local() -> Self {
        Self(LOCAL.into())
    }

    /// Returns the id of the environment on the one server that a setting names.
    pub fn remote() -> Self {
        Self(REMOTE.into())
    }

    /// Tells whether it is the id of the environment on this machine.
    pub fn is_local(&self) -> bool {
        &*self.0 == LOCAL
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EnvironmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EnvironmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EnvironmentId({:?})", &*self.0)
    }
}

impl FromStr for EnvironmentId {
    type Err = EnvironmentIdError;

    fn from_str(text: &str) -> Result<Self, EnvironmentIdError> {
        Self::parse(text)
    }
}

impl<'de> Deserialize<'de> for EnvironmentId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// Caller: why a text is not the id of an environment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentIdError {
    /// It is empty or too long.
    #[error("environment id has {0} bytes, not 1 to {MAX_BYTES}")]
    Length(usize),
    /// It holds something else than letters, digits, `_` and `-`.
    #[error("environment id holds {0:?}: only letters, digits, `_` and `-` are allowed")]
    Character(char),
    /// The word means something else.
    #[error("environment id `{0}` is reserved")]
    Reserved(&'static str),
}

/// The longest id: as the stock client.
const MAX_BYTES: usize = 64;
/// The environment on this machine.
const LOCAL: &str = "local";
/// The environment on the only server.
const REMOTE: &str = "remote";
/// No environment.
const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_one_to_sixty_four_plain_characters() {
        for good in ["a", "local", "dev_box-2", &"x".repeat(64)] {
            assert_eq!(EnvironmentId::parse(good).unwrap().as_str(), good);
        }
        for length in [0, 65] {
            let error = EnvironmentId::parse(&"x".repeat(length)).unwrap_err();
            assert_eq!(error, EnvironmentIdError::Length(length));
        }
        for (text, odd) in [("a b", ' '), ("a/b", '/'), ("é", 'é'), ("a\n", '\n')] {
            let error = EnvironmentId::parse(text).unwrap_err();
            assert_eq!(error, EnvironmentIdError::Character(odd));
        }
    }

    #[test]
    fn none_and_user_defined_local_are_reserved() {
        let none = EnvironmentId::parse("none").unwrap_err();
        assert_eq!(none, EnvironmentIdError::Reserved("none"));
        let local = EnvironmentId::chosen("local").unwrap_err();
        assert_eq!(local, EnvironmentIdError::Reserved("local"));
        assert!(EnvironmentId::parse("local").unwrap().is_local());
        assert!(!EnvironmentId::chosen("worker").unwrap().is_local());
    }

    #[test]
    fn id_is_validated_when_deserialized() {
        let id: EnvironmentId = serde_json::from_str("\"wor\\u006ber\"").unwrap();
        assert_eq!(id.as_str(), "worker");
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"worker\"");
        serde_json::from_str::<EnvironmentId>("\"no/slash\"").unwrap_err();
    }
}
