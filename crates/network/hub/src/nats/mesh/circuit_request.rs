//! Requests for circuits between nodes: sending and answering them.

use std::sync::Arc;

use async_nats::{Message, RequestErrorKind, Subscriber};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use super::MeshShared;
use crate::{
    circuit::Circuit,
    circuit_dialer::{CircuitDialer as _, DialError, DialRequest},
    limits,
    nats::{
        bridge::{BridgeParams, CircuitBridge},
        bucket::RecordRevision,
        circuits::CircuitTarget,
        subjects::{BridgedCircuitId, Direction},
    },
    store::{NodeName, Presence},
};

/// Request for a circuit to an executor.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct CircuitRequest {
    /// Id of the circuit, which names the subjects of its packets.
    pub(super) wire: BridgedCircuitId,
    /// The requesting node of the harness.
    pub(super) node: NodeName,
    /// The dial request of the harness.
    pub(super) dial: DialRequest,
    /// Window granted to the executor's node.
    pub(super) window: u32,
    /// Number of data connection losses of the harness's node.
    #[serde(default)]
    pub(super) losses: u64,
}

/// Reply of the executor's node.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CircuitReply {
    /// The circuit is open.
    Connected {
        /// Window granted to the harness's node.
        window: u32,
        /// Number of data connection losses of this node.
        #[serde(default)]
        losses: u64,
    },
    /// The executor is not connected here.
    Offline,
    /// The executor has too many harnesses, or the node too many circuits.
    Busy,
}

impl From<DialError> for CircuitReply {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Busy => Self::Busy,
            DialError::Offline | DialError::Unreachable => Self::Offline,
        }
    }
}

/// Opens a circuit, locally or on the node that has the executor's websocket.
pub(super) async fn dial(
    shared: &Arc<MeshShared>,
    dial: DialRequest,
) -> Result<Circuit, DialError> {
    match shared.executor_table.dial(dial.clone()).await {
        Err(DialError::Offline) => {}
        local => return local,
    }
    let found = shared.store.presences().find(&dial.environment).await;
    let (presence, revision) = found
        .map_err(|error| {
            tracing::warn!(%error, environment = %dial.environment, "failed to look up the executor");
            DialError::Unreachable
        })?
        .ok_or(DialError::Offline)?;
    if presence.registration != dial.registration || presence.node == *shared.nodes.own() {
        return Err(DialError::Offline);
    }
    dial_node(shared, dial, presence, revision).await
}

async fn dial_node(
    shared: &Arc<MeshShared>,
    dial: DialRequest,
    presence: Presence,
    revision: RecordRevision,
) -> Result<Circuit, DialError> {
    let link = shared.data.link();
    if !link.is_up {
        return Err(DialError::Unreachable);
    }
    let wire = BridgedCircuitId::generate();
    let target = CircuitTarget {
        environment: presence.environment,
        revision,
    };
    let registration = shared
        .circuits
        .add(wire, presence.node.clone(), Some(target));
    let registration = registration.ok_or(DialError::Busy)?;
    let subject = shared.subjects.circuit(wire, Direction::Harness);
    let packets = shared
        .data
        .client
        .subscribe(subject)
        .await
        .map_err(|error| {
            tracing::warn!(%error, "failed to subscribe to a circuit");
            DialError::Unreachable
        })?;
    let request = CircuitRequest {
        wire,
        node: shared.nodes.own().clone(),
        dial,
        window: registration.window,
        losses: link.losses,
    };
    let (window, losses) = request_circuit(shared, &presence.node, &request).await?;
    registration.opened(losses);
    // Its silence must be noticed even if its first heartbeat is still in flight.
    shared.nodes.record_alive(presence.node);
    // The local queue to the harness only covers what its websocket writes next; further frames
    // wait on the executor's node, where they are counted.
    let (harness, bridged) = Circuit::pair(limits::TO_EXECUTOR, LOCAL_QUEUE);
    let opening = BridgeParams {
        wire,
        direction: Direction::Executor,
        window,
        losses: link.losses,
    };
    let bridge = CircuitBridge::new(
        bridged,
        &shared.data,
        &shared.subjects,
        packets,
        registration,
        &opening,
    );
    tokio::spawn(bridge.run());
    Ok(harness)
}

/// Sends the request and returns the granted window and the peer's number of data connection
/// losses.
async fn request_circuit(
    shared: &MeshShared,
    node: &NodeName,
    request: &CircuitRequest,
) -> Result<(u32, u64), DialError> {
    let payload = serde_json::to_vec(request).map_err(|_| DialError::Unreachable)?;
    let subject = shared.subjects.dial(node);
    let answer = shared.data.client.request(subject, payload.into()).await;
    let answer = answer.map_err(|error| {
        tracing::warn!(%error, %node, "node did not answer a dial request");
        match error.kind() {
            // The node is certainly gone: the harness asks the registry again.
            RequestErrorKind::NoResponders => DialError::Offline,
            RequestErrorKind::TimedOut
            | RequestErrorKind::InvalidSubject
            | RequestErrorKind::MaxPayloadExceeded
            | RequestErrorKind::Other => DialError::Unreachable,
        }
    })?;
    match serde_json::from_slice(&answer.payload) {
        Ok(CircuitReply::Connected { window, losses }) => Ok((window, losses)),
        Ok(CircuitReply::Offline) => Err(DialError::Offline),
        Ok(CircuitReply::Busy) => Err(DialError::Busy),
        Err(error) => {
            tracing::warn!(%error, %node, "ignoring malformed dial reply");
            Err(DialError::Unreachable)
        }
    }
}

/// Frame queue to one harness on its own node, in addition to the circuit's window.
const LOCAL_QUEUE: crate::circuit::QueueLimits = crate::circuit::QueueLimits {
    frames: 512,
    bytes: 512 << 10,
};

/// Answers requests for circuits until dropped.
pub(super) async fn answer_requests(shared: Arc<MeshShared>, mut requests: Subscriber) {
    while let Some(message) = requests.next().await {
        let Some(reply_to) = message.reply.clone() else {
            continue;
        };
        let (reply, bridge) = match accept(&shared, &message).await {
            Ok((reply, bridge)) => (reply, Some(bridge)),
            Err(reply) => (reply, None),
        };
        let Ok(payload) = serde_json::to_vec(&reply) else {
            continue;
        };
        // Published on the connection of the subscription, so that the broker processes that first.
        let sent = shared.data.client.publish(reply_to, payload.into()).await;
        match (sent, bridge) {
            (Ok(()), Some(bridge)) => drop(tokio::spawn(bridge.run())),
            (Ok(()), None) => {}
            (Err(error), _) => tracing::warn!(%error, "failed to answer a dial request"),
        }
    }
}

async fn accept(
    shared: &MeshShared,
    message: &Message,
) -> Result<(CircuitReply, CircuitBridge), CircuitReply> {
    let request: CircuitRequest = serde_json::from_slice(&message.payload).map_err(|error| {
        tracing::warn!(%error, "ignoring malformed dial request");
        CircuitReply::Offline
    })?;
    let losses = shared.data.link().losses;
    // Its silence must be noticed even if its first heartbeat is still in flight.
    shared.nodes.record_alive(request.node.clone());
    let registration = shared
        .circuits
        .add(request.wire, request.node, None)
        .ok_or(CircuitReply::Busy)?;
    registration.opened(request.losses);
    let circuit: Circuit = shared.executor_table.dial(request.dial).await?;
    let subject = shared.subjects.circuit(request.wire, Direction::Executor);
    let packets = shared
        .data
        .client
        .subscribe(subject)
        .await
        .map_err(|error| {
            tracing::warn!(%error, "failed to subscribe to a circuit");
            CircuitReply::Offline
        })?;
    let opening = BridgeParams {
        wire: request.wire,
        direction: Direction::Harness,
        window: request.window,
        losses,
    };
    let reply = CircuitReply::Connected {
        window: registration.window,
        losses,
    };
    let bridge = CircuitBridge::new(
        circuit,
        &shared.data,
        &shared.subjects,
        packets,
        registration,
        &opening,
    );
    Ok((reply, bridge))
}
