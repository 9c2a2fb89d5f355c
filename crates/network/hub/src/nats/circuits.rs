//! The circuits of this node that lead to other nodes, and who must hear when one of those is gone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::{
    bucket::Revision,
    subjects::WireId,
    window::{WINDOW_LEAST, next_window},
};
use crate::{
    circuit::Ending,
    store::{EnvironmentId, NodeName, Presence},
};

/// The circuits that lead to other nodes.
#[derive(Debug, Default)]
pub(super) struct Circuits {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<WireId, Entry>,
    /// All windows together.
    granted: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct Entry {
    peer: NodeName,
    /// How often the peer had lost its data connection when it opened its end. `None`: it has not
    /// answered yet.
    losses: Option<u64>,
    /// For the harness's end: which executor it leads to.
    target: Option<Target>,
    stop: oneshot::Sender<Ending>,
}

/// Where a circuit leads: the executor socket as it was found.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The environment.
    pub(super) environment: EnvironmentId,
    /// The state of its presence.
    pub(super) revision: Revision,
}

impl Circuits {
    /// Makes room for a circuit to `peer`. `None`: there are as many as this node takes.
    pub(super) fn add(
        self: &Arc<Self>,
        wire: WireId,
        peer: NodeName,
        target: Option<Target>,
    ) -> Option<Place> {
        let (stop, stopped) = oneshot::channel();
        let mut table = self.lock();
        if table.is_closed || table.entries.len() >= MAX_CIRCUITS {
            return None;
        }
        let window = next_window(table.granted);
        table.granted += u64::from(window);
        let entry = Entry {
            peer,
            losses: None,
            target,
            stop,
        };
        table.entries.insert(wire, entry);
        Some(Place {
            circuits: Arc::clone(self),
            wire,
            window,
            stopped,
        })
    }

    /// Ends the circuits to a node that is gone. Returns how many.
    pub(super) fn end_of_node(&self, node: &NodeName) -> usize {
        self.end(Ending::Unreachable, |entry| entry.peer == *node)
    }

    /// Ends the circuits to a node that lost them: its end of each was opened before the last of so
    /// many losses. Returns how many.
    pub(super) fn end_of_losses(&self, node: &NodeName, losses: u64) -> usize {
        // A heartbeat may be older than a circuit: what was opened after more losses stays.
        self.end(Ending::Unreachable, |entry| {
            entry.peer == *node && entry.losses.is_some_and(|before| before < losses)
        })
    }

    /// Ends the circuits to executor sockets that `presence` replaced. Returns how many.
    pub(super) fn end_before(&self, presence: &Presence, revision: Revision) -> usize {
        self.end(Ending::Replaced, |entry| {
            entry.target.as_ref().is_some_and(|target| {
                target.environment == presence.environment && target.revision < revision
            })
        })
    }

    /// Ends all of them, and takes no more.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.end(Ending::Stopping, |_| true);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn end(&self, ending: Ending, condition: impl Fn(&Entry) -> bool) -> usize {
        let mut table = self.lock();
        let wires = table.entries.iter().filter(|(_, entry)| condition(entry));
        let wires: Vec<_> = wires.map(|(wire, _)| *wire).collect();
        for wire in &wires {
            if let Some(entry) = table.entries.remove(wire) {
                // Its task has ended by itself if nobody listens.
                let _unheard = entry.stop.send(ending);
            }
        }
        wires.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A circuit's place among the others. Dropping it leaves the place.
#[derive(Debug)]
pub(super) struct Place {
    circuits: Arc<Circuits>,
    wire: WireId,
    /// What the other end may send before it is given more.
    pub(super) window: u32,
    /// Resolves when the circuit must end.
    pub(super) stopped: oneshot::Receiver<Ending>,
}

impl Place {
    /// The peer opened its end when it had lost its data connection so often.
    pub(super) fn opened(&self, losses: u64) {
        if let Some(entry) = self.circuits.lock().entries.get_mut(&self.wire) {
            entry.losses = Some(losses);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.circuits.lock();
        table.granted = table.granted.saturating_sub(u64::from(self.window));
        table.entries.remove(&self.wire);
    }
}

/// As many circuits as one node has to all others: even with the least window each, what is on its
/// way to this node stays within half a gigabyte.
const MAX_CIRCUITS: usize = 512 * 1024 * 1024 / WINDOW_LEAST as usize;

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        name.parse().expect("a name")
    }

    fn revision(number: u64) -> Revision {
        serde_json::from_value(number.into()).expect("a number")
    }

    #[test]
    fn a_dead_node_ends_its_own_circuits_only() {
        let circuits = Arc::new(Circuits::default());
        let add = |name| {
            circuits
                .add(WireId::generate(), node(name), None)
                .expect("room")
        };
        let (mut a, mut b) = (add("a"), add("b"));
        assert_eq!(circuits.end_of_node(&node("a")), 1);
        assert_eq!(a.stopped.try_recv(), Ok(Ending::Unreachable));
        assert!(b.stopped.try_recv().is_err());
        drop((a, b));
        assert_eq!(circuits.len(), 0);
        assert_eq!(circuits.lock().granted, 0);
    }

    #[test]
    fn a_loss_ends_what_its_node_opened_before_it() {
        let circuits = Arc::new(Circuits::default());
        let add = |name, losses: Option<u64>| {
            let place = circuits.add(WireId::generate(), node(name), None);
            let place = place.expect("room");
            if let Some(losses) = losses {
                place.opened(losses);
            }
            place
        };
        let mut before = add("a", Some(2));
        let others = [add("a", Some(3)), add("a", None), add("b", Some(2))];
        assert_eq!(circuits.end_of_losses(&node("a"), 2), 0, "told before");
        assert_eq!(circuits.end_of_losses(&node("a"), 3), 1);
        assert_eq!(before.stopped.try_recv(), Ok(Ending::Unreachable));
        for mut other in others {
            assert!(other.stopped.try_recv().is_err());
        }
    }

    #[test]
    fn only_circuits_to_older_sockets_are_replaced() {
        let circuits = Arc::new(Circuits::default());
        let environment: EnvironmentId = "env".parse().expect("an id");
        let add = |number| {
            let target = Target {
                environment: environment.clone(),
                revision: revision(number),
            };
            circuits
                .add(WireId::generate(), node("a"), Some(target))
                .expect("room")
        };
        let (mut old, mut new) = (add(3), add(7));
        let presence = Presence {
            environment: environment.clone(),
            registration: "reg".parse().expect("an id"),
            node: node("b"),
            connection: "c".parse().expect("an id"),
        };
        assert_eq!(circuits.end_before(&presence, revision(5)), 1);
        assert_eq!(old.stopped.try_recv(), Ok(Ending::Replaced));
        assert!(new.stopped.try_recv().is_err());
    }

    #[test]
    fn a_node_that_stops_takes_no_more() {
        let circuits = Arc::new(Circuits::default());
        let mut place = circuits
            .add(WireId::generate(), node("a"), None)
            .expect("room");
        circuits.close();
        assert_eq!(place.stopped.try_recv(), Ok(Ending::Stopping));
        assert!(circuits.add(WireId::generate(), node("a"), None).is_none());
    }
}
