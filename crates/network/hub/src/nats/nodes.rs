//! Which nodes there are: each tells the others twice a second that it lives, and how often it lost
//! its circuits.
//! Invariant: a node that fell silent is dead for everybody within [`roster::DEAD`] and a sweep; it
//! is never taken for its successor of the same name, because every process has a name of its own.

use std::{
    collections::BTreeMap,
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
use uuid::Uuid;

use super::{circuits::Circuits, connection::Connection, subjects::Subjects};
use crate::store::NodeName;

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

/// The nodes heard of.
#[derive(Debug)]
struct Roster {
    /// Since when this node listens without interruption.
    listening: Instant,
    swept: Instant,
    heard: BTreeMap<NodeName, Instant>,
    /// Those who fell silent or stopped lately, and when.
    gone: BTreeMap<NodeName, Instant>,
}

impl Roster {
    /// Starts to listen.
    fn new(now: Instant) -> Self {
        Self {
            listening: now,
            swept: now,
            heard: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    /// A node told that it lives.
    fn handle_heartbeat(&mut self, node: NodeName, now: Instant) {
        if self.heard.len() < MAX_NODES || self.heard.contains_key(&node) {
            self.gone.remove(&node);
            self.heard.insert(node, now);
        }
    }

    /// A node told that it stops. Returns whether it was known.
    fn handle_farewell(&mut self, node: &NodeName, now: Instant) -> bool {
        let known = self.heard.remove(node).is_some();
        if known {
            self.leave(node.clone(), now);
        }
        known
    }

    /// The connection to the others was lost and is back: nobody could be heard meanwhile.
    fn handle_reconnect(&mut self, now: Instant) {
        self.listening = now;
        self.swept = now;
        self.heard.values_mut().for_each(|heard| *heard = now);
    }

    /// Forgets the nodes that fell silent, and returns them.
    fn sweep(&mut self, now: Instant) -> Vec<NodeName> {
        let pause = now.saturating_duration_since(self.swept);
        self.swept = now;
        if pause > STALL {
            // This process stood still, and the others' heartbeats with it: they are in the queue.
            for heard in self.heard.values_mut() {
                *heard += pause;
            }
        }
        let is_silent = |heard: &Instant| now.saturating_duration_since(*heard) >= DEAD;
        let dead = self.heard.iter().filter(|(_, heard)| is_silent(heard));
        let dead: Vec<_> = dead.map(|(node, _)| node.clone()).collect();
        self.heard.retain(|_, heard| !is_silent(heard));
        self.gone
            .retain(|_, gone| now.saturating_duration_since(*gone) < MEMORY);
        for node in &dead {
            self.leave(node.clone(), now);
        }
        dead
    }

    /// How long ago a node was found to be gone; not at all if the next sweep is to find it. `None`:
    /// long ago, or it was never heard of.
    fn silence(&self, node: &NodeName, now: Instant) -> Option<Duration> {
        if self.heard.contains_key(node) {
            return Some(Duration::ZERO);
        }
        let gone = self.gone.get(node)?;
        Some(now.saturating_duration_since(*gone))
    }

    fn leave(&mut self, node: NodeName, now: Instant) {
        if self.gone.len() < MAX_NODES {
            self.gone.insert(node, now);
        }
    }

    /// Whether a node lives. One that was not heard of yet has the benefit of the doubt for as long
    /// as it could not have been.
    fn is_alive(&self, node: &NodeName, now: Instant) -> bool {
        match self.heard.get(node) {
            Some(heard) => now.saturating_duration_since(*heard) < DEAD + SWEEP,
            None => now.saturating_duration_since(self.listening) < DEAD,
        }
    }

    /// How many nodes live.
    fn len(&self) -> usize {
        self.heard.len()
    }
}

/// Names one process: the node's name, and bits that no other process of that name has.
pub(in crate::nats) fn process_name(node: &NodeName) -> NodeName {
    let unique = Uuid::new_v4().simple().to_string();
    let name: String = node.as_str().chars().take(MAX_NAME).collect();
    let process = format!("{name}-{}", unique.get(..16).unwrap_or(&unique));
    // Both parts are made of the characters of a name, and short enough together.
    process.parse().unwrap_or_else(|_| node.clone())
}

/// A node that was not heard for this long is dead. Four heartbeats: one lost to a busy machine
/// does not cost its connections.
const DEAD: Duration = Duration::from_secs(2);

/// How often a node tells that it lives.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// How often silent nodes are looked for.
const SWEEP: Duration = Duration::from_millis(250);

/// Between two sweeps this long this process did not run.
const STALL: Duration = Duration::from_secs(1);

/// How long a node that is gone is remembered: longer than anybody waits for its executors.
const MEMORY: Duration = Duration::from_secs(60);

/// More nodes than any hub has; a foreign program on the subject cannot fill the memory.
const MAX_NODES: usize = 1024;

/// Of a node's name, this much goes into the name of its process.
const MAX_NAME: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        name.parse().expect("a name")
    }

    /// Sweeps as the task does, up to and including `end`.
    fn sweep_until(roster: &mut Roster, mut now: Instant, end: Instant) -> Vec<NodeName> {
        let mut dead = Vec::new();
        while now < end {
            now += SWEEP;
            dead.extend(roster.sweep(now));
        }
        dead
    }

    #[test]
    fn a_silent_node_is_dead_after_two_seconds() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        roster.handle_heartbeat(node("b"), t0);
        let t1 = t0 + DEAD - SWEEP;
        assert_eq!(sweep_until(&mut roster, t0, t1), []);
        roster.handle_heartbeat(node("b"), t1);
        let t2 = t1 + SWEEP;
        assert_eq!(sweep_until(&mut roster, t1, t2), [node("a")]);
        assert!(!roster.is_alive(&node("a"), t2));
        assert!(roster.is_alive(&node("b"), t2));
    }

    #[test]
    fn a_node_is_not_blamed_for_our_own_pause() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        let t1 = t0 + Duration::from_secs(60);
        assert_eq!(roster.sweep(t1), []);
        assert_eq!(sweep_until(&mut roster, t1, t1 + DEAD), [node("a")]);
    }

    #[test]
    fn an_unknown_node_is_believed_only_at_first() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        assert!(roster.is_alive(&node("a"), t0));
        assert!(!roster.is_alive(&node("a"), t0 + DEAD));
        roster.handle_reconnect(t0 + DEAD * 2);
        assert!(roster.is_alive(&node("a"), t0 + DEAD * 2));
    }

    #[test]
    fn silence_while_disconnected_is_nobodys_fault() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        let t1 = t0 + DEAD * 10;
        roster.handle_reconnect(t1);
        assert_eq!(roster.sweep(t1 + SWEEP), []);
        assert_eq!(sweep_until(&mut roster, t1 + SWEEP, t1 + DEAD), [node("a")]);
    }

    #[test]
    fn a_node_that_says_farewell_is_gone_at_once() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        assert!(roster.handle_farewell(&node("a"), t0));
        assert!(!roster.handle_farewell(&node("a"), t0));
        assert!(!roster.is_alive(&node("a"), t0 + DEAD));
    }

    #[test]
    fn it_is_known_for_a_while_since_when_a_node_is_gone() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        for name in ["a", "b"] {
            roster.handle_heartbeat(node(name), t0);
            assert_eq!(roster.silence(&node(name), t0), Some(Duration::ZERO));
        }
        roster.handle_farewell(&node("b"), t0);
        let t1 = t0 + DEAD;
        assert_eq!(sweep_until(&mut roster, t0, t1), [node("a")]);
        assert_eq!(roster.silence(&node("a"), t1 + DEAD), Some(DEAD));
        assert_eq!(roster.silence(&node("b"), t1), Some(DEAD));
        roster.handle_heartbeat(node("b"), t1);
        assert_eq!(roster.silence(&node("b"), t1), Some(Duration::ZERO));
        sweep_until(&mut roster, t1, t1 + MEMORY);
        assert_eq!(roster.silence(&node("a"), t1 + MEMORY), None);
    }

    #[test]
    fn processes_of_one_name_differ() {
        let long = node(&"x".repeat(128));
        let (one, two) = (process_name(&long), process_name(&long));
        assert_ne!(one, two);
        assert!(one.as_str().len() <= 128);
    }
}
