//! How one node asks another for a circuit.

use serde::{Deserialize, Serialize};

use super::subjects::WireId;
use crate::{
    exchange::{Dial, DialError},
    store::NodeName,
};

/// Asks the node of an executor for a circuit to it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Request {
    /// The circuit: names the subjects of its packets.
    pub(super) wire: WireId,
    /// The node of the harness, which asks.
    pub(super) node: NodeName,
    /// Where the harness wants to go.
    pub(super) dial: Dial,
    /// What the executor's node may send before it is given more.
    pub(super) window: u32,
    /// How often the node of the harness had lost its data connection.
    #[serde(default)]
    pub(super) losses: u64,
}

/// What the executor's node says.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// The circuit stands.
    Connected {
        /// What the harness's node may send before it is given more.
        window: u32,
        /// How often this node had lost its data connection.
        #[serde(default)]
        losses: u64,
    },
    /// There is no such executor here.
    Offline,
    /// The executor has enough harnesses, or the node enough circuits.
    Busy,
}

impl From<DialError> for Reply {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Busy => Self::Busy,
            DialError::Offline | DialError::Unreachable => Self::Offline,
        }
    }
}
