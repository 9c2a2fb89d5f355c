//! Circuits from other nodes to executor sockets of this one.

use std::sync::Arc;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt as _;

use super::join::Shared;
use crate::{
    circuit::Circuit,
    exchange::Exchange as _,
    nats::{
        bridge::{Bridge, Opening},
        dial::{Reply, Request},
        subjects::Towards,
    },
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
