//! Clusters: hub nodes that share a NATS broker form one hub.
//!
//! [`NatsStore`] keeps the hub's state in JetStream, and [`NatsMesh`] bridges circuits between
//! nodes. An executor may be connected to one node and its harness to another. When a node dies,
//! only its own connections have to reconnect.
//! Invariant: the broker only carries encrypted frames, like the websockets.
//! Elsewhere: websockets (`rendezvous`), circuits (`circuit`), permissions (`registry`).

mod bridge;
mod bucket;
mod circuits;
mod config;
mod connection;
mod mesh;
mod nodes;
mod packet;
mod presences;
mod registration_bucket;
mod store;
#[cfg(test)]
mod tests;

pub use self::{
    config::{
        NatsConfig, NatsPrefix, NatsPrefixError, NatsServers, NatsServersError, ReplicaCount,
    },
    connection::NatsError,
    mesh::NatsMesh,
    store::NatsStore,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use uuid::Uuid;

use crate::store::NodeName;

/// Builds names of NATS subjects with the hub's prefix. All parts are validated ids, so names cannot
/// collide.
#[derive(Clone, Debug)]
struct SubjectNames {
    prefix: NatsPrefix,
}

impl SubjectNames {
    /// Creates the names of one hub.
    fn new(prefix: NatsPrefix) -> Self {
        Self { prefix }
    }

    /// Returns the subject of heartbeats.
    fn nodes(&self) -> String {
        format!("{}.nodes", self.prefix.as_str())
    }

    /// Returns the subject of executor events.
    fn executors(&self) -> String {
        format!("{}.executors", self.prefix.as_str())
    }

    /// Returns the subject of dial requests to a node.
    fn dial(&self, node: &NodeName) -> String {
        format!("{}.dial.{node}", self.prefix.as_str())
    }

    /// Returns the subject of a circuit's packets in one direction.
    fn circuit(&self, wire: BridgedCircuitId, direction: Direction) -> String {
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
struct BridgedCircuitId(Uuid);

impl BridgedCircuitId {
    /// Generates an id.
    fn generate() -> Self {
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
enum Direction {
    /// From the harness's node to the executor's.
    Executor,
    /// From the executor's node to the harness's.
    Harness,
}
