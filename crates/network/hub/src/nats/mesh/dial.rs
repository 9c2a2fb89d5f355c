//! Requests for circuits between nodes: sending and answering them.

use std::sync::Arc;

use async_nats::{Message, RequestErrorKind, Subscriber};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use super::Shared;
use crate::{
    circuit::Circuit,
    circuit_dialer::{Dial, DialError, Exchange as _},
    limits,
    nats::{
        bridge::{Bridge, Opening},
        bucket::Revision,
        circuits::Target,
        subjects::{Towards, WireId},
    },
    store::{NodeName, Presence},
};

/// Request for a circuit to an executor.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Request {
    /// Id of the circuit, which names the subjects of its packets.
    pub(super) wire: WireId,
    /// The requesting node of the harness.
    pub(super) node: NodeName,
    /// The dial request of the harness.
    pub(super) dial: Dial,
    /// Window granted to the executor's node.
    pub(super) window: u32,
    /// Number of data connection losses of the harness's node.
    #[serde(default)]
    pub(super) losses: u64,
}

/// Reply of the executor's node.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
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

impl From<DialError> for Reply {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Busy => Self::Busy,
            DialError::Offline | DialError::Unreachable => Self::Offline,
        }
    }
}

/// Opens a circuit, locally or on the node that has the executor's websocket.
pub(super) async fn dial(shared: &Arc<Shared>, dial: Dial) -> Result<Circuit, DialError> {
    match shared.switch.dial(dial.clone()).await {
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
    shared: &Arc<Shared>,
    dial: Dial,
    presence: Presence,
    revision: Revision,
) -> Result<Circuit, DialError> {
    let link = shared.data.link();
    if !link.is_up {
        return Err(DialError::Unreachable);
    }
    let wire = WireId::generate();
    let target = Target {
        environment: presence.environment,
        revision,
    };
    let place = shared
        .circuits
        .add(wire, presence.node.clone(), Some(target));
    let place = place.ok_or(DialError::Busy)?;
    let subject = shared.subjects.circuit(wire, Towards::Harness);
    let packets = shared
        .data
        .client
        .subscribe(subject)
        .await
        .map_err(|error| {
            tracing::warn!(%error, "failed to subscribe to a circuit");
            DialError::Unreachable
        })?;
    let request = Request {
        wire,
        node: shared.nodes.own().clone(),
        dial,
        window: place.window,
        losses: link.losses,
    };
    let (window, losses) = ask(shared, &presence.node, &request).await?;
    place.opened(losses);
    // Its silence must be noticed even if its first heartbeat is still in flight.
    shared.nodes.heard(presence.node);
    // The local queue to the harness only covers what its websocket writes next; further frames
    // wait on the executor's node, where they are counted.
    let (harness, bridged) = Circuit::pair(limits::TO_EXECUTOR, TO_HARNESS);
    let opening = Opening {
        wire,
        towards: Towards::Executor,
        window,
        losses: link.losses,
    };
    let bridge = Bridge::new(
        bridged,
        &shared.data,
        &shared.subjects,
        packets,
        place,
        &opening,
    );
    tokio::spawn(bridge.run());
    Ok(harness)
}

/// Sends the request and returns the granted window and the peer's number of data connection
/// losses.
async fn ask(shared: &Shared, node: &NodeName, request: &Request) -> Result<(u32, u64), DialError> {
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
        Ok(Reply::Connected { window, losses }) => Ok((window, losses)),
        Ok(Reply::Offline) => Err(DialError::Offline),
        Ok(Reply::Busy) => Err(DialError::Busy),
        Err(error) => {
            tracing::warn!(%error, %node, "ignoring malformed dial reply");
            Err(DialError::Unreachable)
        }
    }
}

/// Frame queue to one harness on its own node, in addition to the circuit's window.
const TO_HARNESS: crate::circuit::Room = crate::circuit::Room {
    frames: 512,
    bytes: 512 << 10,
};

/// Answers requests for circuits until dropped.
pub(super) async fn run(shared: Arc<Shared>, mut requests: Subscriber) {
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

async fn accept(shared: &Shared, message: &Message) -> Result<(Reply, Bridge), Reply> {
    let request: Request = serde_json::from_slice(&message.payload).map_err(|error| {
        tracing::warn!(%error, "ignoring malformed dial request");
        Reply::Offline
    })?;
    let losses = shared.data.link().losses;
    // Its silence must be noticed even if its first heartbeat is still in flight.
    shared.nodes.heard(request.node.clone());
    let place = shared
        .circuits
        .add(request.wire, request.node, None)
        .ok_or(Reply::Busy)?;
    place.opened(request.losses);
    let circuit: Circuit = shared.switch.dial(request.dial).await?;
    let subject = shared.subjects.circuit(request.wire, Towards::Executor);
    let packets = shared
        .data
        .client
        .subscribe(subject)
        .await
        .map_err(|error| {
            tracing::warn!(%error, "failed to subscribe to a circuit");
            Reply::Offline
        })?;
    let opening = Opening {
        wire: request.wire,
        towards: Towards::Harness,
        window: request.window,
        losses,
    };
    let reply = Reply::Connected {
        window: place.window,
        losses,
    };
    let bridge = Bridge::new(
        circuit,
        &shared.data,
        &shared.subjects,
        packets,
        place,
        &opening,
    );
    Ok((reply, bridge))
}
