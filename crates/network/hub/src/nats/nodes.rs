//! Cluster membership by heartbeats: each node publishes one twice a second, with the number of its
//! data connection losses.
//! Invariant: every node considers a silent node dead within [`DEAD_AFTER`] and a sweep. It is
//! never confused with its successor of the same name, because every process has a unique name.

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

use super::{SubjectNames, circuits::BridgedCircuits, connection::NatsConnection};
use crate::store::NodeName;

/// The live nodes known to this one.
#[derive(Clone, Debug)]
pub(super) struct ClusterNodes {
    own: NodeName,
    /// Connection of this node's circuits; heartbeats report its losses.
    data: NatsConnection,
    roster: Arc<Mutex<NodeRoster>>,
    /// Set once this node has announced its shutdown: it must not send heartbeats any more.
    is_leaving: Arc<AtomicBool>,
}

impl ClusterNodes {
    /// Creates a membership that knows only this node.
    pub(super) fn new(own: NodeName, data: NatsConnection) -> Self {
        let roster = Arc::new(Mutex::new(NodeRoster::new(Instant::now())));
        Self {
            own,
            data,
            roster,
            is_leaving: Arc::default(),
        }
    }

    /// Returns the name of this node.
    pub(super) fn own(&self) -> &NodeName {
        &self.own
    }

    /// Returns whether a node is alive. This one is.
    pub(super) fn is_alive(&self, node: &NodeName) -> bool {
        *node == self.own || self.lock().is_alive(node, Instant::now())
    }

    /// Records a sign of life other than a heartbeat. From now on, silence of the node is noticed.
    pub(super) fn record_alive(&self, node: NodeName) {
        self.lock().handle_heartbeat(node, Instant::now());
    }

    /// Returns how long ago a dead node was found to be gone. `None`: long ago, or never known.
    pub(super) fn silence(&self, node: &NodeName) -> Option<Duration> {
        self.lock().silence(node, Instant::now())
    }

    /// Returns the number of live nodes, including this one once it has received its own heartbeat.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Announces the shutdown of this node, so that others need not wait for its silence.
    pub(super) async fn announce_shutdown(
        &self,
        connection: &NatsConnection,
        subjects: &SubjectNames,
    ) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.publish_heartbeat(connection, subjects, NodeStatus::Stopping)
            .await;
    }

    async fn send_heartbeat(&self, connection: &NatsConnection, subjects: &SubjectNames) {
        if !self.is_leaving.load(Ordering::Relaxed) {
            self.publish_heartbeat(connection, subjects, NodeStatus::Alive)
                .await;
        }
    }

    async fn publish_heartbeat(
        &self,
        connection: &NatsConnection,
        subjects: &SubjectNames,
        status: NodeStatus,
    ) {
        // Without a connection the message would be queued and arrive out of date.
        if !connection.link().is_up {
            return;
        }
        let heartbeat = Heartbeat {
            node: self.own.clone(),
            status,
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

    fn lock(&self) -> MutexGuard<'_, NodeRoster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends and receives heartbeats until dropped. Closes circuits to nodes that died or lost them.
pub(super) async fn run(
    nodes: ClusterNodes,
    connection: NatsConnection,
    subjects: SubjectNames,
    mut heartbeats: Subscriber,
    circuits: Arc<BridgedCircuits>,
) {
    let mut link = connection.watch();
    let mut losses = link.borrow_and_update().losses;
    let mut heartbeat_timer = interval(HEARTBEAT_INTERVAL);
    heartbeat_timer.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut sweep = interval(SWEEP_INTERVAL);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Receive before sweeping: queued heartbeats count.
        tokio::select! {
            biased;
            message = heartbeats.next() => {
                let Some(message) = message else { return };
                handle_message(&nodes, &message.payload, &circuits);
            }
            changed = link.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = *link.borrow_and_update();
                if now.is_up && now.losses != losses {
                    losses = now.losses;
                    nodes.lock().handle_reconnect(Instant::now());
                    nodes.send_heartbeat(&connection, &subjects).await;
                }
            }
            _ = heartbeat_timer.tick() => nodes.send_heartbeat(&connection, &subjects).await,
            _ = sweep.tick() => {
                let dead = nodes.lock().sweep(Instant::now());
                for node in dead.iter().filter(|node| **node != nodes.own) {
                    let ended = circuits.close_to_node(node);
                    tracing::warn!(%node, circuits = ended, "node fell silent");
                }
            }
        }
    }
}

fn handle_message(nodes: &ClusterNodes, payload: &[u8], circuits: &BridgedCircuits) {
    let Ok(heartbeat) = serde_json::from_slice(payload) else {
        tracing::debug!("ignoring malformed heartbeat");
        return;
    };
    let Heartbeat {
        node,
        status,
        losses,
    } = heartbeat;
    match status {
        NodeStatus::Alive => {
            if node != nodes.own {
                let ended = circuits.close_lost_by(&node, losses);
                if ended > 0 {
                    tracing::warn!(%node, circuits = ended, "node lost its data connection");
                }
            }
            nodes.lock().handle_heartbeat(node, Instant::now());
        }
        NodeStatus::Stopping => {
            nodes.lock().handle_shutdown(&node, Instant::now());
            if node != nodes.own {
                let ended = circuits.close_to_node(&node);
                tracing::info!(%node, circuits = ended, "node is shutting down");
            }
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Heartbeat {
    node: NodeName,
    #[serde(rename = "news")]
    status: NodeStatus,
    /// Number of data connection losses. Sent in every heartbeat, so that a lost one does no harm:
    /// circuits opened before the last loss are broken, and the node could not report it earlier.
    #[serde(default)]
    losses: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum NodeStatus {
    Alive,
    Stopping,
}

/// The known nodes. Pure.
#[derive(Debug)]
struct NodeRoster {
    /// Start of uninterrupted listening.
    listening_since: Instant,
    swept_at: Instant,
    last_heartbeats: BTreeMap<NodeName, Instant>,
    /// Nodes that recently fell silent or shut down, and when.
    lost_nodes: BTreeMap<NodeName, Instant>,
}

impl NodeRoster {
    /// Creates an empty roster.
    fn new(now: Instant) -> Self {
        Self {
            listening_since: now,
            swept_at: now,
            last_heartbeats: BTreeMap::new(),
            lost_nodes: BTreeMap::new(),
        }
    }

    /// Records a heartbeat.
    fn handle_heartbeat(&mut self, node: NodeName, now: Instant) {
        if self.last_heartbeats.len() < MAX_NODES || self.last_heartbeats.contains_key(&node) {
            self.lost_nodes.remove(&node);
            self.last_heartbeats.insert(node, now);
        }
    }

    /// Records a shutdown. Returns whether the node was known.
    fn handle_shutdown(&mut self, node: &NodeName, now: Instant) -> bool {
        let known = self.last_heartbeats.remove(node).is_some();
        if known {
            self.record_loss(node.clone(), now);
        }
        known
    }

    /// Records a reconnect: heartbeats were missed meanwhile.
    fn handle_reconnect(&mut self, now: Instant) {
        self.listening_since = now;
        self.swept_at = now;
        for last_heartbeat in self.last_heartbeats.values_mut() {
            *last_heartbeat = now;
        }
    }

    /// Removes and returns the silent nodes.
    fn sweep(&mut self, now: Instant) -> Vec<NodeName> {
        let pause = now.saturating_duration_since(self.swept_at);
        self.swept_at = now;
        if pause > SUSPENDED_AFTER {
            // This process was suspended, and heartbeats are still queued.
            for last_heartbeat in self.last_heartbeats.values_mut() {
                *last_heartbeat += pause;
            }
        }
        let is_silent =
            |last_heartbeat: &Instant| now.saturating_duration_since(*last_heartbeat) >= DEAD_AFTER;
        let silent = self
            .last_heartbeats
            .extract_if(.., |_, last_heartbeat| is_silent(last_heartbeat));
        let dead: Vec<_> = silent.map(|(node, _)| node).collect();
        self.lost_nodes
            .retain(|_, lost_at| now.saturating_duration_since(*lost_at) < DEAD_NODE_RETENTION);
        for node in &dead {
            self.record_loss(node.clone(), now);
        }
        dead
    }

    /// Returns how long ago a node was found to be gone; zero if it is still listed. `None`: long
    /// ago, or never known.
    fn silence(&self, node: &NodeName, now: Instant) -> Option<Duration> {
        if self.last_heartbeats.contains_key(node) {
            return Some(Duration::ZERO);
        }
        let lost_at = self.lost_nodes.get(node)?;
        Some(now.saturating_duration_since(*lost_at))
    }

    fn record_loss(&mut self, node: NodeName, now: Instant) {
        if self.lost_nodes.len() < MAX_NODES {
            self.lost_nodes.insert(node, now);
        }
    }

    /// Returns whether a node is alive. An unknown node counts as alive while it could not have
    /// been heard yet.
    fn is_alive(&self, node: &NodeName, now: Instant) -> bool {
        match self.last_heartbeats.get(node) {
            Some(last_heartbeat) => {
                now.saturating_duration_since(*last_heartbeat) < DEAD_AFTER + SWEEP_INTERVAL
            }
            None => now.saturating_duration_since(self.listening_since) < DEAD_AFTER,
        }
    }

    /// Returns the number of live nodes.
    fn len(&self) -> usize {
        self.last_heartbeats.len()
    }
}

/// Creates a unique process name from the node's name and random bits.
pub(super) fn process_name(node: &NodeName) -> NodeName {
    let unique = Uuid::new_v4().simple().to_string();
    let name: String = node.as_str().chars().take(MAX_NAME).collect();
    let process = format!("{name}-{}", unique.get(..16).unwrap_or(&unique));
    // Both parts consist of name characters, and together they are short enough.
    process.parse().unwrap_or_else(|_| node.clone())
}

/// A node without heartbeat for this long is dead: four heartbeats, so that one delayed by a busy
/// machine does not cost its connections.
const DEAD_AFTER: Duration = Duration::from_secs(2);

/// Heartbeat interval.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// Interval of the search for silent nodes.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// A longer gap between two sweeps means that this process was suspended.
const SUSPENDED_AFTER: Duration = Duration::from_secs(1);

/// How long dead nodes are remembered: longer than any wait for their executors.
const DEAD_NODE_RETENTION: Duration = Duration::from_secs(60);

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
    fn sweep_until(roster: &mut NodeRoster, mut now: Instant, end: Instant) -> Vec<NodeName> {
        let mut dead = Vec::new();
        while now < end {
            now += SWEEP_INTERVAL;
            dead.extend(roster.sweep(now));
        }
        dead
    }

    #[test]
    fn silent_node_is_dead_after_two_seconds() {
        let t0 = Instant::now();
        let mut roster = NodeRoster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        roster.handle_heartbeat(node("b"), t0);
        let t1 = t0 + DEAD_AFTER - SWEEP_INTERVAL;
        assert_eq!(sweep_until(&mut roster, t0, t1), []);
        roster.handle_heartbeat(node("b"), t1);
        let t2 = t1 + SWEEP_INTERVAL;
        assert_eq!(sweep_until(&mut roster, t1, t2), [node("a")]);
        assert!(!roster.is_alive(&node("a"), t2));
        assert!(roster.is_alive(&node("b"), t2));
    }

    #[test]
    fn suspension_of_this_process_does_not_kill_other_nodes() {
        let t0 = Instant::now();
        let mut roster = NodeRoster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        let t1 = t0 + Duration::from_secs(60);
        assert_eq!(roster.sweep(t1), []);
        assert_eq!(sweep_until(&mut roster, t1, t1 + DEAD_AFTER), [node("a")]);
    }

    #[test]
    fn unknown_node_counts_as_alive_only_at_first() {
        let t0 = Instant::now();
        let mut roster = NodeRoster::new(t0);
        assert!(roster.is_alive(&node("a"), t0));
        assert!(!roster.is_alive(&node("a"), t0 + DEAD_AFTER));
        roster.handle_reconnect(t0 + DEAD_AFTER * 2);
        assert!(roster.is_alive(&node("a"), t0 + DEAD_AFTER * 2));
    }

    #[test]
    fn silence_while_disconnected_does_not_count() {
        let t0 = Instant::now();
        let mut roster = NodeRoster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        let t1 = t0 + DEAD_AFTER * 10;
        roster.handle_reconnect(t1);
        assert_eq!(roster.sweep(t1 + SWEEP_INTERVAL), []);
        assert_eq!(
            sweep_until(&mut roster, t1 + SWEEP_INTERVAL, t1 + DEAD_AFTER),
            [node("a")]
        );
    }

    #[test]
    fn announced_shutdown_takes_effect_at_once() {
        let t0 = Instant::now();
        let mut roster = NodeRoster::new(t0);
        roster.handle_heartbeat(node("a"), t0);
        assert!(roster.handle_shutdown(&node("a"), t0));
        assert!(!roster.handle_shutdown(&node("a"), t0));
        assert!(!roster.is_alive(&node("a"), t0 + DEAD_AFTER));
    }

    #[test]
    fn time_of_death_is_remembered_for_a_while() {
        let t0 = Instant::now();
        let mut roster = NodeRoster::new(t0);
        for name in ["a", "b"] {
            roster.handle_heartbeat(node(name), t0);
            assert_eq!(roster.silence(&node(name), t0), Some(Duration::ZERO));
        }
        roster.handle_shutdown(&node("b"), t0);
        let t1 = t0 + DEAD_AFTER;
        assert_eq!(sweep_until(&mut roster, t0, t1), [node("a")]);
        assert_eq!(
            roster.silence(&node("a"), t1 + DEAD_AFTER),
            Some(DEAD_AFTER)
        );
        assert_eq!(roster.silence(&node("b"), t1), Some(DEAD_AFTER));
        roster.handle_heartbeat(node("b"), t1);
        assert_eq!(roster.silence(&node("b"), t1), Some(Duration::ZERO));
        sweep_until(&mut roster, t1, t1 + DEAD_NODE_RETENTION);
        assert_eq!(roster.silence(&node("a"), t1 + DEAD_NODE_RETENTION), None);
    }

    #[test]
    fn process_names_are_unique() {
        let long = node(&"x".repeat(128));
        let (one, two) = (process_name(&long), process_name(&long));
        assert_ne!(one, two);
        assert!(one.as_str().len() <= 128);
    }
}
