//! The stored record of an environment: its owner, and the rules of supersession.
//! Pure: the store provides the previous record, the presence and the time.
//! Ids are validated where they enter.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use data_encoding::HEXLOWER;
use exec_relay::identity::NoisePublicKey;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{ClaimError, NewRegistration, Presence, RegisterError, Timestamp};
use crate::principal::PrincipalName;

/// The current registration of an environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The environment.
    pub environment: EnvironmentId,
    /// The id.
    pub id: RegistrationId,
    /// The executor's public keys.
    pub executor_key: NoisePublicKey,
    /// The principal that owns the environment and made this registration.
    pub owner: PrincipalName,
    /// Time of registration.
    pub created_at: Timestamp,
}

impl Registration {
    fn still_supersedes(
        &self,
        loss: &SupersededExecutor,
        presence: &PresenceRecord,
        now: Timestamp,
    ) -> bool {
        let connected = presence.connected.as_ref();
        if connected.is_some_and(|presence| presence.registration == self.id) {
            return true;
        }
        // The successor connected after the loss and may have disconnected a moment ago.
        now.since(loss.at.max(presence.left_at)) < EnvironmentRecord::SETTLE
    }
}

/// Presence of an environment's executor, now and before.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PresenceRecord {
    /// The connected executor, if any.
    pub connected: Option<Presence>,
    /// When the last one disconnected, at the latest: a store that started since then does not know
    /// exactly.
    pub left_at: Timestamp,
}

/// An environment: its owner, its current registration, and recently superseded executors.
///
/// The first principal to register it by any method owns it until it is removed. Each executor
/// process has its own key, and the newest process wins. A superseded process that registers again
/// is refused while its successor is connected and for [`EnvironmentRecord::SETTLE`] after that:
/// otherwise two executors with the same id would evict each other forever, and a reconnecting one
/// would lose its place.
/// Refused executors act as standby: when the successor disconnects, the first to register takes
/// over.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentRecord {
    /// The owner.
    pub owner: PrincipalName,
    /// The current registration. `None`: only direct executors have registered so far.
    pub current: Option<Registration>,
    /// Superseded executors, latest last. At most [`EnvironmentRecord::MAX_SUPERSEDED`].
    pub superseded: Vec<SupersededExecutor>,
}

impl EnvironmentRecord {
    /// How long a superseded executor is refused while its successor is not connected: the time for
    /// the successor to connect or reconnect.
    pub const SETTLE: Duration = Duration::from_secs(30);

    /// Superseded executors remembered. More executors than this with one id may alternate.
    pub const MAX_SUPERSEDED: usize = 8;

    /// Decides about ownership: returns the record to store, or `None` if the principal already
    /// owns it.
    ///
    /// # Errors
    /// Returns [`ClaimError::Foreign`]; the record is unchanged.
    pub fn claim(
        previous: Option<&Self>,
        principal: &PrincipalName,
    ) -> Result<Option<Self>, ClaimError> {
        match previous {
            Some(record) if record.owner == *principal => Ok(None),
            Some(_) => Err(ClaimError::Foreign),
            None => Ok(Some(Self {
                owner: principal.clone(),
                current: None,
                superseded: Vec::new(),
            })),
        }
    }

    /// Decides about a registration: returns the record to store instead of `previous`, and its
    /// current registration.
    ///
    /// `presence` is the presence of the environment's executors.
    ///
    /// # Errors
    /// Returns [`ClaimError::Foreign`] or [`RegisterError::Conflict`]; the record is unchanged.
    pub fn register(
        previous: Option<&Self>,
        presence: &PresenceRecord,
        new: NewRegistration,
    ) -> Result<(Self, Registration), RegisterError> {
        let mut record = match (Self::claim(previous, &new.principal)?, previous) {
            (None, Some(previous)) => previous.clone(),
            (Some(fresh), _) => fresh,
            (None, None) => return Err(ClaimError::Foreign.into()),
        };
        let current = Registration {
            environment: new.environment,
            id: new.id,
            executor_key: new.executor_key,
            owner: new.principal,
            created_at: new.at,
        };
        if let Some(before) = &record.current
            && before.executor_key != current.executor_key
        {
            let newcomer = KeyFingerprint::of(&current.executor_key);
            let superseded = &mut record.superseded;
            if let Some(loss) = superseded.iter().find(|loss| loss.key == newcomer)
                && before.still_supersedes(loss, presence, new.at)
            {
                return Err(RegisterError::Conflict);
            }
            superseded.retain(|loss| loss.key != newcomer);
            superseded.push(SupersededExecutor {
                key: KeyFingerprint::of(&before.executor_key),
                at: new.at,
            });
            if superseded.len() > Self::MAX_SUPERSEDED {
                superseded.remove(0);
            }
        }
        record.current = Some(current.clone());
        Ok((record, current))
    }
}

/// A superseded executor.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SupersededExecutor {
    /// Fingerprint of its key.
    pub key: KeyFingerprint,
    /// Time of the loss.
    pub at: Timestamp,
}

/// Fingerprint of a key: the first 128 bits of its SHA-256 in hexadecimal.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct KeyFingerprint(String);

impl KeyFingerprint {
    /// Computes the fingerprint of a key.
    pub fn of(key: &NoisePublicKey) -> Self {
        // The JSON of a key is canonical: three strings of fixed length.
        let json = serde_json::to_vec(key).unwrap_or_default();
        let digest = Sha256::digest(json);
        Self(HEXLOWER.encode(&digest[..16]))
    }
}

/// Caller: the text is not an id of 1 to 128 characters `A-Z a-z 0-9 _ -`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected 1 to {MAX_ID_BYTES} characters out of A-Z, a-z, 0-9, `_` and `-`")]
pub struct HubIdError;

/// Longest id. Ids appear in URLs, NATS subjects and log lines.
const MAX_ID_BYTES: usize = 128;

/// Returns whether a text has 1 to `max_bytes` characters, and only such that need no escaping in a
/// URL, a NATS subject or a log line.
pub(crate) fn is_plain_id(text: &str, max_bytes: usize) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=max_bytes).contains(&text.len()) && text.bytes().all(allowed)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(transparent)]
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
                let id = is_plain_id(text, MAX_ID_BYTES).then(|| Self(text.into()));
                id.ok_or(HubIdError)
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
        let longest = "x".repeat(MAX_ID_BYTES);
        for good in ["a", "env-1", "A_b-9", longest.as_str()] {
            assert_eq!(good.parse::<EnvironmentId>().unwrap().as_str(), good);
        }
        let too_long = "x".repeat(MAX_ID_BYTES + 1);
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
