//! The name of a principal.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Who somebody is, as the operator named them: `alice`, `ci@example.org`.
///
/// Printable ASCII without blanks, at most [`PrincipalName::MAX_BYTES`]: it goes into files, logs
/// and stores.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PrincipalName(Arc<str>);

impl PrincipalName {
    /// The longest name.
    pub const MAX_BYTES: usize = 128;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PrincipalName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > Self::MAX_BYTES || !printable {
            return Err(NameError);
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrincipalName({})", self.0)
    }
}

impl Serialize for PrincipalName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PrincipalName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Caller: the text is no name of a principal.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "expected 1 to {} printable ASCII characters without blanks",
    PrincipalName::MAX_BYTES
)]
pub struct NameError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printable_and_bounded() {
        let longest = "n".repeat(PrincipalName::MAX_BYTES);
        for good in ["alice", "ci@example.org", "a/b:c", longest.as_str()] {
            assert_eq!(good.parse::<PrincipalName>().unwrap().as_str(), good);
        }
        let too_long = "n".repeat(PrincipalName::MAX_BYTES + 1);
        for bad in ["", " ", "a b", "a\n", "\u{1b}[0m", "é", too_long.as_str()] {
            assert_eq!(bad.parse::<PrincipalName>(), Err(NameError), "{bad:?}");
        }
    }
}
