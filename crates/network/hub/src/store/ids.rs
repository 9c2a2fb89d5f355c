//! Ids of the hub. Validated where they enter.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use uuid::Uuid;

/// Caller: the text is not an id of 1 to 128 characters `A-Z a-z 0-9 _ -`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected 1 to {MAX_BYTES} characters out of A-Z, a-z, 0-9, `_` and `-`")]
pub struct HubIdError;

/// Longest id. Ids appear in URLs, NATS subjects and log lines.
const MAX_BYTES: usize = 128;

/// Accepts only characters that need no escaping in a URL, a NATS subject or a log line.
fn check(text: &str) -> Result<(), HubIdError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if text.is_empty() || text.len() > MAX_BYTES || !text.bytes().all(allowed) {
        return Err(HubIdError);
    }
    Ok(())
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = HubIdError;

            fn from_str(text: &str) -> Result<Self, HubIdError> {
                check(text)?;
                Ok(Self(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

id! {
    /// Id of an environment, chosen by its owner. Safe in URLs and NATS subjects.
    EnvironmentId
}
id! {
    /// Id of one registration of an executor. Unguessable.
    RegistrationId
}
id! {
    /// Id of one executor websocket, unique across nodes.
    ConnectionId
}
id! {
    /// Name of one hub process among those that share a store.
    NodeName
}

impl RegistrationId {
    /// Generates an id: `reg-` and 122 random bits.
    pub fn generate() -> Self {
        Self(format!("reg-{}", Uuid::new_v4().simple()).into())
    }
}

impl ConnectionId {
    /// Generates an id.
    pub fn generate() -> Self {
        Self(Uuid::new_v4().simple().to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_plain_and_bounded() {
        let longest = "x".repeat(MAX_BYTES);
        for good in ["a", "env-1", "A_b-9", longest.as_str()] {
            assert_eq!(good.parse::<EnvironmentId>().unwrap().as_str(), good);
        }
        let too_long = "x".repeat(MAX_BYTES + 1);
        for bad in [
            "",
            " a",
            "a b",
            "a/b",
            "..",
            "a.b",
            "a*",
            "a>",
            "ä",
            "a\n",
            too_long.as_str(),
        ] {
            assert_eq!(bad.parse::<EnvironmentId>(), Err(HubIdError), "{bad:?}");
            let json = serde_json::to_string(bad).unwrap();
            assert!(
                serde_json::from_str::<EnvironmentId>(&json).is_err(),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn generated_ids_are_valid_and_unique() {
        let (one, two) = (RegistrationId::generate(), RegistrationId::generate());
        assert_ne!(one, two);
        assert_eq!(one.as_str().parse::<RegistrationId>(), Ok(one.clone()));
        assert_ne!(ConnectionId::generate(), ConnectionId::generate());
    }
}
