//! Who was heard of when. Pure: the caller owns the clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use uuid::Uuid;

use crate::store::NodeName;

/// The nodes heard of.
#[derive(Debug)]
pub(super) struct Roster {
    /// Since when this node listens without interruption.
    listening: Instant,
    swept: Instant,
    heard: BTreeMap<NodeName, Instant>,
    /// Those who fell silent or stopped lately, and when.
    gone: BTreeMap<NodeName, Instant>,
}

impl Roster {
    /// Starts to listen.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            listening: now,
            swept: now,
            heard: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    /// A node told that it lives.
    pub(super) fn handle_heartbeat(&mut self, node: NodeName, now: Instant) {
        if self.heard.len() < MAX_NODES || self.heard.contains_key(&node) {
            self.gone.remove(&node);
            self.heard.insert(node, now);
        }
    }

    /// A node told that it stops. Returns whether it was known.
    pub(super) fn handle_farewell(&mut self, node: &NodeName, now: Instant) -> bool {
        let known = self.heard.remove(node).is_some();
        if known {
            self.leave(node.clone(), now);
        }
        known
    }

    /// The connection to the others was lost and is back: nobody could be heard meanwhile.
    pub(super) fn handle_reconnect(&mut self, now: Instant) {
        self.listening = now;
        self.swept = now;
        self.heard.values_mut().for_each(|heard| *heard = now);
    }

    /// Forgets the nodes that fell silent, and returns them.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<NodeName> {
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
    pub(super) fn silence(&self, node: &NodeName, now: Instant) -> Option<Duration> {
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
    pub(super) fn is_alive(&self, node: &NodeName, now: Instant) -> bool {
        match self.heard.get(node) {
            Some(heard) => now.saturating_duration_since(*heard) < DEAD + SWEEP,
            None => now.saturating_duration_since(self.listening) < DEAD,
        }
    }

    /// How many nodes live.
    pub(super) fn len(&self) -> usize {
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
pub(super) const DEAD: Duration = Duration::from_secs(2);

/// How often a node tells that it lives.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(500);

/// How often silent nodes are looked for.
pub(super) const SWEEP: Duration = Duration::from_millis(250);

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
