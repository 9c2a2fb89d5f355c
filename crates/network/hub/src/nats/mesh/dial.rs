//! How one node asks another for a circuit.

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

/// Opens a circuit, here or on the node that holds the executor's socket.
pub(super) async fn dial(shared: &Arc<Shared>, dial: Dial) -> Result<Circuit, DialError> {
    match shared.switch.dial(dial.clone()).await {
        Err(DialError::Offline) => {}
        local => return local,
    }
    let found = shared.store.presences().find(&dial.environment).await;
    let (presence, revision) = found
        .map_err(|error| {
            tracing::warn!(%error, environment = %dial.environment, "cannot look for an executor");
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
            tracing::warn!(%error, "no subscription for a circuit");
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
    // Its silence must end the circuit even if its first heartbeat is still on the way.
    shared.nodes.heard(presence.node);
    // The lane to the harness holds what its socket writes next; what waits beyond that waits on
    // the executor's node, where it is counted.
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

/// Returns the window that the node grants, and how often it had lost its data connection.
async fn ask(shared: &Shared, node: &NodeName, request: &Request) -> Result<(u32, u64), DialError> {
    let payload = serde_json::to_vec(request).map_err(|_| DialError::Unreachable)?;
    let subject = shared.subjects.dial(node);
    let answer = shared.data.client.request(subject, payload.into()).await;
    let answer = answer.map_err(|error| {
        tracing::warn!(%error, %node, "a node does not answer");
        match error.kind() {
            // The node is gone for sure: the harness asks the registry again.
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
            tracing::warn!(%error, %node, "a node answers what this one does not know");
            Err(DialError::Unreachable)
        }
    }
}

/// What may wait for one harness on its own node, behind the window of its circuit.
const TO_HARNESS: crate::circuit::Room = crate::circuit::Room {
    frames: 512,
    bytes: 512 << 10,
};

/// Answers requests for circuits until it is dropped.
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
        // On the connection of the subscription, so that the broker knows of that first.
        let sent = shared.data.client.publish(reply_to, payload.into()).await;
        match (sent, bridge) {
            (Ok(()), Some(bridge)) => drop(tokio::spawn(bridge.run())),
            (Ok(()), None) => {}
            (Err(error), _) => tracing::warn!(%error, "a request for a circuit was not answered"),
        }
    }
}

async fn accept(shared: &Shared, message: &Message) -> Result<(Reply, Bridge), Reply> {
    let request: Request = serde_json::from_slice(&message.payload).map_err(|error| {
        tracing::warn!(%error, "a request for a circuit is none");
        Reply::Offline
    })?;
    let losses = shared.data.link().losses;
    // Its silence must end the circuit even if its first heartbeat is still on the way.
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
            tracing::warn!(%error, "no subscription for a circuit");
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
