//! Connects harness websockets to executor websockets on any node.

use std::{fmt, str::FromStr};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    circuit::Circuit,
    store::{EnvironmentId, RegistrationId, Store},
};

/// Opens circuits to executors.
///
/// The [`ExecutorTable`](crate::executor_table::ExecutorTable) does so for this process; in a
/// cluster, [`NatsMesh`](crate::nats::NatsMesh) wraps it and also reaches other nodes.
pub trait CircuitDialer: fmt::Debug + Send + Sync {
    /// Opens a circuit to the executor of a registration and returns the harness's end. Dropping
    /// the future leaves no circuit behind.
    fn dial(&self, dial: DialRequest) -> BoxFuture<'_, Result<Circuit, DialError>>;

    /// Closes executor websockets of an environment, on any node, with a registration other than
    /// the current one in `store`. Their harnesses reconnect.
    ///
    /// A late call is harmless: it does not touch newer registrations.
    fn supersede<'a>(
        &'a self,
        environment: EnvironmentId,
        store: &'a dyn Store,
    ) -> BoxFuture<'a, ()>;
}

/// A request to connect a harness. Its URL has been verified.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DialRequest {
    /// The environment.
    pub environment: EnvironmentId,
    /// The registration in the harness's URL.
    pub registration: RegistrationId,
    /// Identifies the harness.
    pub harness: HarnessTag,
}

/// Why no circuit was opened.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// Peer: no executor of that registration is connected. The harness asks the registry again.
    #[error("executor is not connected")]
    Offline,
    /// Peer: the executor has its maximum number of harnesses.
    #[error("too many harnesses are connected to this executor")]
    Busy,
    /// Host: the executor's node is unreachable at the moment.
    #[error("node of the executor is unreachable")]
    Unreachable,
}

/// Distinguishes the websockets of one harness key from those of another.
///
/// Derived from the key and a secret of the hub, so it reveals nothing about the key. Only the same
/// harness may resume a stream on another websocket.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct HarnessTag([u8; Self::LEN]);

impl HarnessTag {
    /// Bytes in a tag, enough to make collisions improbable.
    pub const LEN: usize = 16;

    /// Creates a tag from bytes that depend on the harness key.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for HarnessTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HarnessTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HarnessTag({self})")
    }
}

/// Caller: the text is not a tag of 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected {} hexadecimal digits", HarnessTag::LEN * 2)]
pub struct HarnessTagError;

impl FromStr for HarnessTag {
    type Err = HarnessTagError;

    fn from_str(text: &str) -> Result<Self, HarnessTagError> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(HarnessTagError),
        };
        let text: &[u8; Self::LEN * 2] = text.as_bytes().try_into().map_err(|_| HarnessTagError)?;
        let mut bytes = [0; Self::LEN];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for HarnessTag {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HarnessTag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_round_trips_as_text() {
        let tag = HarnessTag::from_bytes(*b"\x00\x01\xfe\xff0123456789ab");
        assert_eq!(tag.to_string().parse(), Ok(tag));
        let json = serde_json::to_string(&tag).unwrap();
        assert_eq!(serde_json::from_str::<HarnessTag>(&json).unwrap(), tag);
    }

    #[test]
    fn invalid_tags_are_rejected() {
        let short = "0".repeat(31);
        let upper = "A".repeat(32);
        let wide = "é".repeat(16);
        for bad in ["", &short, &upper, &wide] {
            assert_eq!(bad.parse::<HarnessTag>(), Err(HarnessTagError), "{bad:?}");
        }
    }
}
