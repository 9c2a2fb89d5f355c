//! Bridged circuits of this node, closed when their peer node is gone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::{BridgedCircuitId, bucket::RecordRevision};
use crate::{
    circuit::CloseReason,
    store::{EnvironmentId, NodeName, Presence},
};

/// The circuits to other nodes.
#[derive(Debug, Default)]
pub(super) struct BridgedCircuits {
    table: Mutex<CircuitTable>,
}

#[derive(Debug, Default)]
struct CircuitTable {
    entries: HashMap<BridgedCircuitId, CircuitEntry>,
    /// Sum of all granted windows.
    granted: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct CircuitEntry {
    peer: NodeName,
    /// Number of data connection losses of the peer when it opened its end. `None`: it has not
    /// replied yet.
    losses: Option<u64>,
    /// At the harness's end: the target executor.
    target: Option<CircuitTarget>,
    stop: oneshot::Sender<CloseReason>,
}

/// Target of a circuit: the executor websocket as it was found.
#[derive(Clone, Debug)]
pub(super) struct CircuitTarget {
    /// The environment.
    pub(super) environment: EnvironmentId,
    /// Revision of its presence record.
    pub(super) revision: RecordRevision,
}

impl BridgedCircuits {
    /// Adds a circuit to `peer`. Returns `None` if the node has its maximum number.
    pub(super) fn add(
        self: &Arc<Self>,
        wire: BridgedCircuitId,
        peer: NodeName,
        target: Option<CircuitTarget>,
    ) -> Option<CircuitRegistration> {
        let (stop, stopped) = oneshot::channel();
        let mut table = self.lock();
        if table.is_closed || table.entries.len() >= MAX_CIRCUITS {
            return None;
        }
        let window = next_window(table.granted);
        table.granted += u64::from(window);
        let entry = CircuitEntry {
            peer,
            losses: None,
            target,
            stop,
        };
        table.entries.insert(wire, entry);
        Some(CircuitRegistration {
            circuits: Arc::clone(self),
            wire,
            window,
            stopped,
        })
    }

    /// Closes the circuits to a dead node. Returns their number.
    pub(super) fn close_to_node(&self, node: &NodeName) -> usize {
        self.end(CloseReason::Unreachable, |entry| entry.peer == *node)
    }

    /// Closes the circuits that a node lost: those opened before its last data connection loss.
    /// Returns their number.
    pub(super) fn close_lost_by(&self, node: &NodeName, losses: u64) -> usize {
        // A heartbeat may be older than a circuit: those opened after more losses stay.
        self.end(CloseReason::Unreachable, |entry| {
            entry.peer == *node && entry.losses.is_some_and(|before| before < losses)
        })
    }

    /// Closes the circuits to executor websockets that `presence` replaced. Returns their number.
    pub(super) fn close_replaced(&self, presence: &Presence, revision: RecordRevision) -> usize {
        self.end(CloseReason::Replaced, |entry| {
            entry.target.as_ref().is_some_and(|target| {
                target.environment == presence.environment && target.revision < revision
            })
        })
    }

    /// Closes all circuits and accepts no more.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.end(CloseReason::Stopping, |_| true);
    }

    /// Returns the number of circuits.
    pub(super) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn end(&self, close_reason: CloseReason, condition: impl Fn(&CircuitEntry) -> bool) -> usize {
        let mut table = self.lock();
        let mut count = 0;
        for (_, entry) in table.entries.extract_if(|_, entry| condition(entry)) {
            // The receiver is gone if the task has already ended.
            let _closed = entry.stop.send(close_reason);
            count += 1;
        }
        count
    }

    fn lock(&self) -> MutexGuard<'_, CircuitTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registration of a circuit in the table. Dropping it removes the circuit.
#[derive(Debug)]
pub(super) struct CircuitRegistration {
    circuits: Arc<BridgedCircuits>,
    wire: BridgedCircuitId,
    /// Window granted to the other end.
    pub(super) window: u32,
    /// Resolves when the circuit must close.
    pub(super) stopped: oneshot::Receiver<CloseReason>,
}

impl CircuitRegistration {
    /// Records the peer's number of data connection losses when it opened its end.
    pub(super) fn opened(&self, losses: u64) {
        if let Some(entry) = self.circuits.lock().entries.get_mut(&self.wire) {
            entry.losses = Some(losses);
        }
    }
}

impl Drop for CircuitRegistration {
    fn drop(&mut self) {
        let mut table = self.circuits.lock();
        table.granted = table.granted.saturating_sub(u64::from(self.window));
        table.entries.remove(&self.wire);
    }
}

/// Maximum number of circuits to other nodes: even with the smallest windows, data in flight to
/// this node stays within half a gigabyte.
const MAX_CIRCUITS: usize = 512 * 1024 * 1024 / MIN_WINDOW as usize;

/// Largest window of a circuit.
const MAX_WINDOW: u32 = 1024 * 1024;

/// Smallest window of a circuit, on a busy node.
const MIN_WINDOW: u32 = 64 * 1024;

/// Target for the sum of all windows of a node: the broker drops a client that is 64 MiB behind.
const WINDOW_TOTAL: u64 = 48 * 1024 * 1024;

/// Returns the window of a new circuit: an eighth of the remaining budget, so that the first
/// circuits are fast and the thousandth still gets one.
fn next_window(granted: u64) -> u32 {
    let share = WINDOW_TOTAL.saturating_sub(granted) / 8;
    u32::try_from(share)
        .unwrap_or(u32::MAX)
        .clamp(MIN_WINDOW, MAX_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        name.parse().expect("a name")
    }

    fn revision(number: u64) -> RecordRevision {
        serde_json::from_value(number.into()).expect("a number")
    }

    #[test]
    fn dead_node_closes_only_its_own_circuits() {
        let circuits = Arc::new(BridgedCircuits::default());
        let add = |name| {
            circuits
                .add(BridgedCircuitId::generate(), node(name), None)
                .expect("below the limit")
        };
        let (mut a, mut b) = (add("a"), add("b"));
        assert_eq!(circuits.close_to_node(&node("a")), 1);
        assert_eq!(a.stopped.try_recv(), Ok(CloseReason::Unreachable));
        assert!(b.stopped.try_recv().is_err());
        drop((a, b));
        assert_eq!(circuits.len(), 0);
        assert_eq!(circuits.lock().granted, 0);
    }

    #[test]
    fn connection_loss_closes_circuits_opened_before_it() {
        let circuits = Arc::new(BridgedCircuits::default());
        let add = |name, losses: Option<u64>| {
            let registration = circuits.add(BridgedCircuitId::generate(), node(name), None);
            let registration = registration.expect("below the limit");
            if let Some(losses) = losses {
                registration.opened(losses);
            }
            registration
        };
        let mut before = add("a", Some(2));
        let others = [add("a", Some(3)), add("a", None), add("b", Some(2))];
        assert_eq!(circuits.close_lost_by(&node("a"), 2), 0, "already reported");
        assert_eq!(circuits.close_lost_by(&node("a"), 3), 1);
        assert_eq!(before.stopped.try_recv(), Ok(CloseReason::Unreachable));
        for mut other in others {
            assert!(other.stopped.try_recv().is_err());
        }
    }

    #[test]
    fn only_circuits_to_older_sockets_are_replaced() {
        let circuits = Arc::new(BridgedCircuits::default());
        let environment: EnvironmentId = "env".parse().expect("an id");
        let add = |number| {
            let target = CircuitTarget {
                environment: environment.clone(),
                revision: revision(number),
            };
            circuits
                .add(BridgedCircuitId::generate(), node("a"), Some(target))
                .expect("below the limit")
        };
        let (mut old, mut new) = (add(3), add(7));
        let presence = Presence {
            environment: environment.clone(),
            registration: "reg".parse().expect("an id"),
            node: node("b"),
            connection: "c".parse().expect("an id"),
        };
        assert_eq!(circuits.close_replaced(&presence, revision(5)), 1);
        assert_eq!(old.stopped.try_recv(), Ok(CloseReason::Replaced));
        assert!(new.stopped.try_recv().is_err());
    }

    #[test]
    fn stopping_node_accepts_no_more_circuits() {
        let circuits = Arc::new(BridgedCircuits::default());
        let mut registration = circuits
            .add(BridgedCircuitId::generate(), node("a"), None)
            .expect("below the limit");
        circuits.close();
        assert_eq!(registration.stopped.try_recv(), Ok(CloseReason::Stopping));
        assert!(
            circuits
                .add(BridgedCircuitId::generate(), node("a"), None)
                .is_none()
        );
    }

    #[test]
    fn windows_shrink_as_circuits_are_added() {
        assert_eq!(next_window(0), MAX_WINDOW);
        assert!(next_window(WINDOW_TOTAL - 8 * 200_000) == 200_000);
        assert_eq!(next_window(u64::MAX), MIN_WINDOW);
    }
}
