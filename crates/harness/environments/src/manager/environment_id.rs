//! The id of an environment.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de};

/// Permanently names one logical executor: 1 to 64 ASCII letters, digits, `_` or `-`. Never `none`,
/// which stands for the absence of an environment.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct EnvironmentId(Arc<str>);

impl EnvironmentId {
    /// Parses any id, including `local`.
    pub fn parse(text: &str) -> Result<Self, EnvironmentIdError> {
        if text == NONE {
            return Err(EnvironmentIdError::Reserved(NONE));
        }
        if text.is_empty() || text.len() > MAX_BYTES {
            return Err(EnvironmentIdError::Length(text.len()));
        }
        let is_invalid = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if let Some(invalid) = text.chars().find(is_invalid) {
            return Err(EnvironmentIdError::Character(invalid));
        }
        Ok(Self(text.into()))
    }

    /// Parses an id of a user-defined environment. Rejects `local`.
    pub fn parse_user_defined(text: &str) -> Result<Self, EnvironmentIdError> {
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

    /// Returns the id of the environment on the single configured server.
    pub fn remote() -> Self {
        Self(REMOTE.into())
    }

    /// Returns whether this is the id of the environment on this machine.
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

/// Caller: why a text is not a valid environment id.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentIdError {
    /// The id is empty or too long.
    #[error("environment id has {0} bytes, not 1 to {MAX_BYTES}")]
    Length(usize),
    /// The id contains a character other than letters, digits, `_` and `-`.
    #[error("environment id holds {0:?}: only letters, digits, `_` and `-` are allowed")]
    Character(char),
    /// The id is reserved.
    #[error("environment id `{0}` is reserved")]
    Reserved(&'static str),
}

/// Maximum length, as in the stock client.
const MAX_BYTES: usize = 64;
/// The environment on this machine.
const LOCAL: &str = "local";
/// The environment on the single configured server.
const REMOTE: &str = "remote";
/// The absence of an environment.
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
        for (text, invalid) in [("a b", ' '), ("a/b", '/'), ("é", 'é'), ("a\n", '\n')] {
            let error = EnvironmentId::parse(text).unwrap_err();
            assert_eq!(error, EnvironmentIdError::Character(invalid));
        }
    }

    #[test]
    fn none_and_user_defined_local_are_reserved() {
        let none = EnvironmentId::parse("none").unwrap_err();
        assert_eq!(none, EnvironmentIdError::Reserved("none"));
        let local = EnvironmentId::parse_user_defined("local").unwrap_err();
        assert_eq!(local, EnvironmentIdError::Reserved("local"));
        assert!(EnvironmentId::parse("local").unwrap().is_local());
        assert!(
            !EnvironmentId::parse_user_defined("worker")
                .unwrap()
                .is_local()
        );
    }

    #[test]
    fn id_is_validated_when_deserialized() {
        let id: EnvironmentId = serde_json::from_str("\"wor\\u006ber\"").unwrap();
        assert_eq!(id.as_str(), "worker");
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"worker\"");
        serde_json::from_str::<EnvironmentId>("\"no/slash\"").unwrap_err();
    }
}
