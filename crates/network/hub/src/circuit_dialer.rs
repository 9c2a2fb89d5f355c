//! How a harness socket reaches an executor socket, wherever that is.

use std::{fmt, str::FromStr};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    circuit::Circuit,
    store::{EnvironmentId, RegistrationId, Store},
};

/// Connects harness sockets with executor sockets.
///
/// The [`Switch`](crate::executor_table::Switch) knows the sockets of this process; with more nodes than
/// one, an exchange around it knows the others.
pub trait Exchange: fmt::Debug + Send + Sync {
    /// Opens a circuit to the executor socket of a registration, and returns the harness's end.
    /// Dropping the future leaves no circuit behind.
    fn dial(&self, dial: Dial) -> BoxFuture<'_, Result<Circuit, DialError>>;

    /// Closes the executor sockets of an environment, on whichever node, whose registration is not
    /// the one that `store` has now. Their harnesses are told to come back.
    ///
    /// It may come late: a registration that was made since is not touched.
    fn supersede<'a>(
        &'a self,
        environment: EnvironmentId,
        store: &'a dyn Store,
    ) -> BoxFuture<'a, ()>;
}

/// Where a harness wants to go. Its URL was checked before.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Dial {
    /// The environment.
    pub environment: EnvironmentId,
    /// The registration that the harness was told of.
    pub registration: RegistrationId,
    /// Which harness this is.
    pub harness: HarnessTag,
}

/// Why there is no circuit.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// Peer: no executor socket of that registration is connected. The harness asks the registry
    /// again.
    #[error("executor is not connected")]
    Offline,
    /// Peer: as many harnesses as allowed are connected to this executor.
    #[error("too many harnesses are connected to this executor")]
    Busy,
    /// Host: the node of the executor cannot be reached now.
    #[error("node of the executor cannot be reached")]
    Unreachable,
}

/// Tells sockets of one harness key from those of another.
///
/// Made from the key and a secret of the hub, so that it says nothing about the key. Only the same
/// harness may continue a stream on a new socket.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct HarnessTag([u8; Self::LEN]);

impl HarnessTag {
    /// Bytes in a tag: two keys never share one by chance.
    pub const LEN: usize = 16;

    /// Makes a tag of bytes that depend on the harness key.
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

/// Caller: the text is not a tag: 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected {} hexadecimal digits", HarnessTag::LEN * 2)]
pub struct TagError;

impl FromStr for HarnessTag {
    type Err = TagError;

    fn from_str(text: &str) -> Result<Self, TagError> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(TagError),
        };
        let text: &[u8; Self::LEN * 2] = text.as_bytes().try_into().map_err(|_| TagError)?;
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
    fn a_tag_survives_its_text() {
        let tag = HarnessTag::from_bytes(*b"\x00\x01\xfe\xff0123456789ab");
        assert_eq!(tag.to_string().parse(), Ok(tag));
        let json = serde_json::to_string(&tag).unwrap();
        assert_eq!(serde_json::from_str::<HarnessTag>(&json).unwrap(), tag);
    }

    #[test]
    fn other_texts_are_no_tags() {
        let short = "0".repeat(31);
        let upper = "A".repeat(32);
        let wide = "é".repeat(16);
        for bad in ["", &short, &upper, &wide] {
            assert_eq!(bad.parse::<HarnessTag>(), Err(TagError), "{bad:?}");
        }
    }
}
