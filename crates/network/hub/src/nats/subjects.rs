//! Names of NATS subjects. All parts are validated ids, so names cannot collide.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use uuid::Uuid;

use super::config::NatsPrefix;
use crate::store::NodeName;

/// Builds subject names with the hub's prefix.
#[derive(Clone, Debug)]
pub(super) struct SubjectNames {
    prefix: NatsPrefix,
}

impl SubjectNames {
    /// Creates the names of one hub.
    pub(super) fn new(prefix: NatsPrefix) -> Self {
        Self { prefix }
    }

    /// Returns the subject of heartbeats.
    pub(super) fn nodes(&self) -> String {
        format!("{}.nodes", self.prefix.as_str())
    }

    /// Returns the subject of executor events.
    pub(super) fn executors(&self) -> String {
        format!("{}.executors", self.prefix.as_str())
    }

    /// Returns the subject of dial requests to a node.
    pub(super) fn dial(&self, node: &NodeName) -> String {
        format!("{}.dial.{node}", self.prefix.as_str())
    }

    /// Returns the subject of a circuit's packets in one direction.
    pub(super) fn circuit(&self, wire: BridgedCircuitId, direction: Direction) -> String {
        let direction = match direction {
            Direction::Executor => "executor",
            Direction::Harness => "harness",
        };
        format!(
            "{}.circuit.{}.{direction}",
            self.prefix.as_str(),
            wire.0.simple()
        )
    }
}

/// Id of a bridged circuit. Unguessable, never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct BridgedCircuitId(Uuid);

impl BridgedCircuitId {
    /// Generates an id.
    pub(super) fn generate() -> Self {
        Self(Uuid::new_v4())
    }
}

impl Serialize for BridgedCircuitId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0.simple())
    }
}

impl<'de> Deserialize<'de> for BridgedCircuitId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// Direction of a circuit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Direction {
    /// From the harness's node to the executor's.
    Executor,
    /// From the executor's node to the harness's.
    Harness,
}
