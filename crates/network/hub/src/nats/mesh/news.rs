//! What happens to executors elsewhere, and what that means here.

use std::{sync::Arc, time::Duration};

use async_nats::Subscriber;
use futures_util::StreamExt as _;
use tokio::time::{MissedTickBehavior, interval};

use super::join::Shared;
use crate::{
    nats::presences::{Lost, News},
    store::{EnvironmentId, StoreError},
};

/// Hears what other nodes tell, until it is dropped.
pub(super) async fn hear(shared: Arc<Shared>, mut executors: Subscriber) {
    while let Some(message) = executors.next().await {
        let news = match serde_json::from_slice(&message.payload) {
            Ok(news) => news,
            Err(error) => {
                tracing::warn!(%error, "news of an executor are none");
                continue;
            }
        };
        match news {
            News::Attached { presence, revision } => {
                // Harnesses of this node must leave the socket that was replaced, wherever it is.
                shared.circuits.end_before(&presence, revision);
                if presence.node != *shared.nodes.own()
                    && let Some(lost) = shared.store.presences().handle_other(&presence, revision)
                {
                    give_up(&shared, lost);
                }
            }
            News::Registered { environment } => close_superseded(&shared, &environment).await,
        }
    }
}

/// Renews this node's records from time to time, and after each loss of the broker at once.
pub(super) async fn tidy(shared: Arc<Shared>) {
    let mut link = shared.control.watch();
    let mut losses = link.borrow_and_update().losses;
    let mut renew = interval(RENEW);
    renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
    renew.tick().await;
    loop {
        tokio::select! {
            changed = link.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = *link.borrow_and_update();
                if !now.is_up || now.losses == losses {
                    continue;
                }
                losses = now.losses;
            }
            () = shared.store.presences().untidy() => {}
            _ = renew.tick() => {}
        }
        while shared.control.link().is_up {
            match sweep(&shared).await {
                Ok(()) => break,
                Err(error) => {
                    // JetStream is not there yet although the broker is, or is overloaded.
                    tracing::warn!(%error, "presences could not be renewed");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

async fn sweep(shared: &Shared) -> Result<(), StoreError> {
    shared.store.restore().await?;
    // Sockets are in the switch before their presence is written.
    let connections = shared
        .switch
        .attached()
        .into_iter()
        .map(|(_, _, connection)| connection);
    for lost in shared
        .store
        .presences()
        .tidy(&connections.collect())
        .await?
    {
        give_up(shared, lost);
    }
    Ok(())
}

fn give_up(shared: &Shared, lost: Lost) {
    tracing::info!(?lost, "an executor is connected elsewhere");
    match lost {
        Lost::ToConnection {
            environment,
            ours,
            theirs,
        } => {
            // The executor may have come back to this node meanwhile.
            if shared
                .switch
                .attached()
                .iter()
                .any(|(_, _, found)| *found == ours)
            {
                shared.switch.replace(&environment, &theirs);
            }
        }
        Lost::ToRegistration { environment, ours } => shared.switch.evict(&environment, &ours),
    }
}

/// Closes this node's socket of an environment if its registration is not current any more.
pub(super) async fn close_superseded(shared: &Shared, environment: &EnvironmentId) {
    let (switch, store) = (&shared.switch, &*shared.store);
    if let Err(error) = switch.close_superseded(environment, store).await {
        tracing::warn!(%environment, %error, "sockets of superseded executors linger");
        store.presences().look_again();
    }
}

/// Well before the broker forgets a presence.
const RENEW: Duration = Duration::from_secs(120);

/// Between two attempts while the broker is up and its store is not.
const RETRY: Duration = Duration::from_millis(500);
