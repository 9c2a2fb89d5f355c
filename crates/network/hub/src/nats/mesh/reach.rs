//! Circuits from harness sockets of this node to executors anywhere.

use std::sync::Arc;

use async_nats::RequestErrorKind;

use super::join::Shared;
use crate::{
    circuit::Circuit,
    exchange::{Dial, DialError, Exchange as _},
    limits,
    nats::{
        bridge::{Bridge, Opening},
        bucket::Revision,
        circuits::Target,
        dial::{Reply, Request},
        subjects::{Towards, WireId},
    },
    store::{NodeName, Presence},
};

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
