//! Tells the others that this node lives, and hears them.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::Subscriber;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use super::roster::{HEARTBEAT, Roster, SWEEP};
use crate::{
    nats::{circuits::Circuits, connection::Connection, subjects::Subjects},
    store::NodeName,
};

/// Which nodes live, as this one knows.
#[derive(Clone, Debug)]
pub(in crate::nats) struct Nodes {
    own: NodeName,
    /// Carries the circuits of this node: each of its losses is told to the others.
    data: Connection,
    roster: Arc<Mutex<Roster>>,
    /// Set once this node said farewell: it must not be heard again.
    is_leaving: Arc<AtomicBool>,
}

impl Nodes {
    /// Knows only itself.
    pub(in crate::nats) fn new(own: NodeName, data: Connection) -> Self {
        let roster = Arc::new(Mutex::new(Roster::new(Instant::now())));
        Self {
            own,
            data,
            roster,
            is_leaving: Arc::default(),
        }
    }

    /// This node.
    pub(in crate::nats) fn own(&self) -> &NodeName {
        &self.own
    }

    /// Whether a node lives. This one does.
    pub(in crate::nats) fn is_alive(&self, node: &NodeName) -> bool {
        *node == self.own || self.lock().is_alive(node, Instant::now())
    }

    /// A node showed in another way than by its heartbeat that it lives. From now on its silence
    /// is noticed.
    pub(in crate::nats) fn heard(&self, node: NodeName) {
        self.lock().handle_heartbeat(node, Instant::now());
    }

    /// How long ago a node that does not live was found to be gone. `None`: long ago, or it was
    /// never heard of.
    pub(in crate::nats) fn silence(&self, node: &NodeName) -> Option<Duration> {
        self.lock().silence(node, Instant::now())
    }

    /// How many nodes live, this one included once it heard itself.
    pub(in crate::nats) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Tells the others that this node stops, so that they need not wait for its silence.
    pub(in crate::nats) async fn say_farewell(&self, connection: &Connection, subjects: &Subjects) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.say(connection, subjects, News::Stopping).await;
    }

    async fn beat(&self, connection: &Connection, subjects: &Subjects) {
        if !self.is_leaving.load(Ordering::Relaxed) {
            self.say(connection, subjects, News::Alive).await;
        }
    }

    async fn say(&self, connection: &Connection, subjects: &Subjects, news: News) {
        // Without a connection the message would wait for one, and then tell what is long past.
        if !connection.link().is_up {
            return;
        }
        let heartbeat = Heartbeat {
            node: self.own.clone(),
            news,
            losses: self.data.link().losses,
        };
        let Ok(heartbeat) = serde_json::to_vec(&heartbeat) else {
            return;
        };
        if let Err(error) = connection
            .client
            .publish(subjects.nodes(), heartbeat.into())
            .await
        {
            tracing::debug!(%error, "heartbeat was not sent");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Beats and listens until it is dropped. Circuits to a node that dies, or that lost them, are ended
/// here.
pub(in crate::nats) async fn run(
    nodes: Nodes,
    connection: Connection,
    subjects: Subjects,
    mut heartbeats: Subscriber,
    circuits: Arc<Circuits>,
) {
    let mut link = connection.watch();
    let mut losses = link.borrow_and_update().losses;
    let mut beat = interval(HEARTBEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Heard before swept: what waits in the queue counts.
        tokio::select! {
            biased;
            message = heartbeats.next() => {
                let Some(message) = message else { return };
                hear(&nodes, &message.payload, &circuits);
            }
            changed = link.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = *link.borrow_and_update();
                if now.is_up && now.losses != losses {
                    losses = now.losses;
                    nodes.lock().handle_reconnect(Instant::now());
                    nodes.beat(&connection, &subjects).await;
                }
            }
            _ = beat.tick() => nodes.beat(&connection, &subjects).await,
            _ = sweep.tick() => {
                let dead = nodes.lock().sweep(Instant::now());
                for node in dead.iter().filter(|node| **node != nodes.own) {
                    let ended = circuits.end_of_node(node);
                    tracing::warn!(%node, circuits = ended, "node fell silent");
                }
            }
        }
    }
}

fn hear(nodes: &Nodes, payload: &[u8], circuits: &Circuits) {
    let Ok(heartbeat) = serde_json::from_slice(payload) else {
        tracing::debug!("a message among the heartbeats is none");
        return;
    };
    let Heartbeat { node, news, losses } = heartbeat;
    match news {
        News::Alive => {
            if node != nodes.own {
                let ended = circuits.end_of_losses(&node, losses);
                if ended > 0 {
                    tracing::warn!(%node, circuits = ended, "node lost its data connection");
                }
            }
            nodes.lock().handle_heartbeat(node, Instant::now());
        }
        News::Stopping => {
            nodes.lock().handle_farewell(&node, Instant::now());
            if node != nodes.own {
                let ended = circuits.end_of_node(&node);
                tracing::info!(%node, circuits = ended, "node stops");
            }
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Heartbeat {
    node: NodeName,
    news: News,
    /// How often the node lost its data connection. In every heartbeat, so that a lost one does no
    /// harm: what was opened before the last loss is over, and the node itself could not say so.
    #[serde(default)]
    losses: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum News {
    Alive,
    Stopping,
}
