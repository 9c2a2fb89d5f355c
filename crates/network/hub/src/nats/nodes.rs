//! Cluster membership by heartbeats: each node publishes one twice a second, with the number of its
//! data connection losses.
//! Invariant: every node considers a silent node dead within [`DEAD`] and a sweep. It is never
//! confused with its successor of the same name, because every process has a unique name.

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

/// The live nodes known to this one.
#[derive(Clone, Debug)]
pub(in crate::nats) struct Nodes {
    own: NodeName,
    /// Connection of this node's circuits; heartbeats report its losses.
    data: Connection,
    roster: Arc<Mutex<Roster>>,
    /// Set once this node has announced its shutdown: it must not send heartbeats any more.
    is_leaving: Arc<AtomicBool>,
}

impl Nodes {
    /// Creates a membership that knows only this node.
    pub(in crate::nats) fn new(own: NodeName, data: Connection) -> Self {
        let roster = Arc::new(Mutex::new(Roster::new(Instant::now())));
        Self {
            own,
            data,
            roster,
            is_leaving: Arc::default(),
        }
    }

    /// Returns the name of this node.
    pub(in crate::nats) fn own(&self) -> &NodeName {
        &self.own
    }

    /// Returns whether a node is alive. This one is.
    pub(in crate::nats) fn is_alive(&self, node: &NodeName) -> bool {
        *node == self.own || self.lock().is_alive(node, Instant::now())
    }

    /// Records a sign of life other than a heartbeat. From now on, silence of the node is noticed.
    pub(in crate::nats) fn heard(&self, node: NodeName) {
        self.lock().handle_heartbeat(node, Instant::now());
    }

    /// Returns how long ago a dead node was found to be gone. `None`: long ago, or never known.
    pub(in crate::nats) fn silence(&self, node: &NodeName) -> Option<Duration> {
        self.lock().silence(node, Instant::now())
    }

    /// Returns the number of live nodes, including this one once it has received its own heartbeat.
    pub(in crate::nats) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Announces the shutdown of this node, so that others need not wait for its silence.
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
        // Without a connection the message would be queued and arrive out of date.
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
            tracing::debug!(%error, "failed to send a heartbeat");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends and receives heartbeats until dropped. Closes circuits to nodes that died or lost them.
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
        // Receive before sweeping: queued heartbeats count.
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
        tracing::debug!("ignoring malformed heartbeat");
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
                tracing::info!(%node, circuits = ended, "node is shutting down");
            }
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Heartbeat {
    node: NodeName,
    news: News,
    /// Number of data connection losses. Sent in every heartbeat, so that a lost one does no harm:
    /// circuits opened before the last loss are broken, and the node could not report it earlier.
    #[serde(default)]
    losses: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum News {
    Alive,
    Stopping,
}

/// The known nodes. Pure.
#[derive(Debug)]
struct Roster {
    /// Start of uninterrupted listening.
    listening: Instant,
    swept: Instant,
    heard: BTreeMap<NodeName, Instant>,
    /// Nodes that recently fell silent or shut down, and when.
    gone: BTreeMap<NodeName, Instant>,
}

impl Roster {
    /// Creates an empty roster.
    fn new(now: Instant) -> Self {
        Self {
            listening: now,
            swept: now,
            heard: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    /// Records a heartbeat.
    fn handle_heartbeat(&mut self, node: NodeName, now: Instant) {
        if self.heard.len() < MAX_NODES || self.heard.contains_key(&node) {
            self.gone.remove(&node);
            self.heard.insert(node, now);
        }
    }

    /// Records a shutdown. Returns whether the node was known.
    fn handle_farewell(&mut self, node: &NodeName, now: Instant) -> bool {
        let known = self.heard.remove(node).is_some();
        if known {
            self.leave(node.clone(), now);
        }
        known
    }

    /// Records a reconnect: heartbeats were missed meanwhile.
    fn handle_reconnect(&mut self, now: Instant) {
        self.listening = now;
        self.swept = now;
        self.heard.values_mut().for_each(|heard| *heard = now);
    }

    /// Removes and returns the silent nodes.
    fn sweep(&mut self, now: Instant) -> Vec<NodeName> {
        let pause = now.saturating_duration_since(self.swept);
        self.swept = now;
        if pause > STALL {
            // This process was suspended, and heartbeats are still queued.
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

    /// Returns how long ago a node was found to be gone; zero if it is still listed. `None`: long
    /// ago, or never known.
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

    /// Returns whether a node is alive. An unknown node counts as alive while it could not have
    /// been heard yet.
    fn is_alive(&self, node: &NodeName, now: Instant) -> bool {
        match self.heard.get(node) {
            Some(heard) => now.saturating_duration_since(*heard) < DEAD + SWEEP,
            None => now.saturating_duration_since(self.listening) < DEAD,
        }
    }

    /// Returns the number of live nodes.
    fn len(&self) -> usize {
        self.heard.len()
    }
}

/// Creates a unique process name from the node's name and random bits.
pub(in crate::nats) fn process_name(node: &NodeName) -> NodeName {
    let unique = Uuid::new_v4().simple().to_string();
    let name: String = node.as_str().chars().take(MAX_NAME).collect();
    let process = format!("{name}-{}", unique.get(..16).unwrap_or(&unique));
    // Both parts consist of name characters, and together they are short enough.
    process.parse().unwrap_or_else(|_| node.clone())
}

/// A node without heartbeat for this long is dead: four heartbeats, so that one delayed by a busy
/// machine does not cost its connections.
const DEAD: Duration = Duration::from_secs(2);

/// Heartbeat interval.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Interval of the search for silent nodes.
const SWEEP: Duration = Duration::from_millis(250);

/// A longer gap between two sweeps means that this process was suspended.
const STALL: Duration = Duration::from_secs(1);

/// How long dead nodes are remembered: longer than any wait for their executors.
const MEMORY: Duration = Duration::from_secs(60);

/// More nodes than any hub has: bounds the memory against foreign messages on the subject.
const MAX_NODES: usize = 1024;

/// Characters of a node's name that are used in its process name.
const MAX_NAME: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        name.parse().expect("a name")
    }

    /// Sweeps at the task's interval, up to and including `end`.
    fn sweep_until(roster: &mut Roster, mut now: Instant, end: Instant) -> Vec<NodeName> {
        let mut dead = Vec::new();
        while now < end {
            now += SWEEP;
            dead.extend(roster.sweep(now));
        }
        dead
    }

    #[test]
    fn silent_node_is_dead_after_two_seconds() {
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
    fn suspension_of_this_process_does_not_kill_other_nodes() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        let t1 = t0 + Duration::from_secs(60);
        assert_eq!(roster.sweep(t1), []);
        assert_eq!(sweep_until(&mut roster, t1, t1 + DEAD), [node("a")]);
    }

    #[test]
    fn unknown_node_counts_as_alive_only_at_first() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        assert!(roster.is_alive(&node("a"), t0));
        assert!(!roster.is_alive(&node("a"), t0 + DEAD));
        roster.handle_reconnect(t0 + DEAD * 2);
        assert!(roster.is_alive(&node("a"), t0 + DEAD * 2));
    }

    #[test]
    fn silence_while_disconnected_does_not_count() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        let t1 = t0 + DEAD * 10;
        roster.handle_reconnect(t1);
        assert_eq!(roster.sweep(t1 + SWEEP), []);
        assert_eq!(sweep_until(&mut roster, t1 + SWEEP, t1 + DEAD), [node("a")]);
    }

    #[test]
    fn announced_shutdown_takes_effect_at_once() {
        let t0 = Instant::now();
        let mut roster = Roster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        assert!(roster.handle_farewell(&node("a"), t0));
        assert!(!roster.handle_farewell(&node("a"), t0));
        assert!(!roster.is_alive(&node("a"), t0 + DEAD));
    }

    #[test]
    fn time_of_death_is_remembered_for_a_while() {
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
    fn process_names_are_unique() {
        let long = node(&"x".repeat(128));
        let (one, two) = (process_name(&long), process_name(&long));
        assert_ne!(one, two);
        assert!(one.as_str().len() <= 128);
    }
}
