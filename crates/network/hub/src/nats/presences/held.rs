//! The presences this node wrote and has to look after. Pure.

use std::collections::{HashMap, HashSet};

use crate::{
    nats::bucket::Revision,
    store::{ConnectionId, EnvironmentId, Presence},
};

/// The presences of this node.
#[derive(Debug, Default)]
pub(super) struct Held {
    entries: HashMap<EnvironmentId, Entry>,
}

#[derive(Debug)]
struct Entry {
    presence: Presence,
    state: State,
}

/// How far a presence has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum State {
    /// It is being written. Others may be written meanwhile; the latest of those is kept.
    Writing {
        /// The latest one that another node announced.
        other: Revision,
    },
    /// It is written.
    Written(Revision),
    /// Its socket is gone and the record is not yet.
    Leaving,
}

/// A socket of this node that has lost its environment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::nats) enum Lost {
    /// To another socket.
    ToConnection {
        /// The environment.
        environment: EnvironmentId,
        /// The socket that lost it.
        ours: ConnectionId,
        /// The socket that has it.
        theirs: ConnectionId,
    },
    /// To another registration, or to none.
    ToRegistration {
        /// The environment.
        environment: EnvironmentId,
        /// The socket that lost it.
        ours: ConnectionId,
    },
}

impl Held {
    /// A socket of this node is to be written down.
    pub(super) fn begin(&mut self, presence: Presence) {
        let state = State::Writing {
            other: Revision::default(),
        };
        self.entries
            .insert(presence.environment.clone(), Entry { presence, state });
    }

    /// It was written down as `revision`. False: another one came later, or it was given up.
    pub(super) fn written(&mut self, presence: &Presence, revision: Revision) -> bool {
        let Some(entry) = self.entry(presence) else {
            return false;
        };
        match entry.state {
            State::Writing { other } if other > revision => {
                self.entries.remove(&presence.environment);
                false
            }
            State::Writing { .. } | State::Written(_) => {
                entry.state = State::Written(revision);
                true
            }
            State::Leaving => false,
        }
    }

    /// Its socket is gone; the record may be there still.
    pub(super) fn leave(&mut self, presence: &Presence) {
        if let Some(entry) = self.entry(presence) {
            entry.state = State::Leaving;
        }
    }

    /// Its record is gone, or is another's. Returns whether it was still looked after.
    pub(super) fn forget(&mut self, presence: &Presence) -> bool {
        self.entry(presence).is_some() && self.entries.remove(&presence.environment).is_some()
    }

    /// Another node wrote down a socket of its own. Returns ours, if that replaced it.
    pub(super) fn handle_other(
        &mut self,
        theirs: &Presence,
        revision: Revision,
    ) -> Option<Presence> {
        let entry = self.entries.get_mut(&theirs.environment)?;
        match &mut entry.state {
            State::Writing { other } => {
                *other = revision.max(*other);
                None
            }
            State::Written(ours) if *ours < revision => self
                .entries
                .remove(&theirs.environment)
                .map(|lost| lost.presence),
            State::Written(_) | State::Leaving => None,
        }
    }

    /// Only these sockets are there: the others that were written down have ended unnoticed.
    pub(super) fn retain(&mut self, connections: &HashSet<ConnectionId>) {
        for entry in self.entries.values_mut() {
            if matches!(entry.state, State::Written(_))
                && !connections.contains(&entry.presence.connection)
            {
                entry.state = State::Leaving;
            }
        }
    }

    /// Whether this very socket is ours and has not been given up.
    pub(super) fn holds(&self, presence: &Presence) -> bool {
        self.entries
            .get(&presence.environment)
            .is_some_and(|entry| entry.presence == *presence && entry.state != State::Leaving)
    }

    /// All of them, to be looked after.
    pub(super) fn all(&self) -> Vec<(Presence, State)> {
        self.entries
            .values()
            .map(|entry| (entry.presence.clone(), entry.state))
            .collect()
    }

    fn entry(&mut self, presence: &Presence) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&presence.environment)?;
        (entry.presence == *presence).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(node: &str, connection: &str) -> Presence {
        Presence {
            environment: "env".parse().expect("an id"),
            registration: "reg".parse().expect("an id"),
            node: node.parse().expect("an id"),
            connection: connection.parse().expect("an id"),
        }
    }

    fn revision(number: u64) -> Revision {
        serde_json::from_value(number.into()).expect("a number")
    }

    #[test]
    fn the_later_presence_wins_in_whichever_order_the_news_come() {
        let (ours, theirs) = (presence("a", "1"), presence("b", "2"));
        for (own, other, lost) in [(5, 6, true), (6, 5, false)] {
            let mut held = Held::default();
            held.begin(ours.clone());
            assert!(held.written(&ours, revision(own)));
            let replaced = held.handle_other(&theirs, revision(other));
            assert_eq!(replaced, lost.then(|| ours.clone()));
            assert_eq!(held.holds(&ours), !lost);

            let mut held = Held::default();
            held.begin(ours.clone());
            assert_eq!(
                held.handle_other(&theirs, revision(other)),
                None,
                "not known yet"
            );
            assert_eq!(held.written(&ours, revision(own)), !lost);
            assert_eq!(held.holds(&ours), !lost);
        }
    }

    #[test]
    fn a_socket_that_left_is_not_held_but_looked_after() {
        let (old, new) = (presence("a", "1"), presence("a", "2"));
        let mut held = Held::default();
        held.begin(old.clone());
        assert!(held.written(&old, revision(1)));
        held.leave(&old);
        assert!(!held.holds(&old));
        assert!(
            !held.written(&old, revision(2)),
            "a late write does not bring it back"
        );
        assert_eq!(held.all(), [(old.clone(), State::Leaving)]);
        held.begin(new.clone());
        assert!(!held.forget(&old));
        assert!(
            held.holds(&new),
            "the old socket's end does not touch the new one"
        );
    }

    #[test]
    fn a_socket_that_ended_unnoticed_leaves() {
        let here = presence("a", "1");
        let mut held = Held::default();
        held.begin(here.clone());
        held.retain(&HashSet::new());
        assert!(held.holds(&here), "it is still being written down");
        assert!(held.written(&here, revision(1)));
        held.retain(&HashSet::from([here.connection.clone()]));
        assert!(held.holds(&here));
        held.retain(&HashSet::new());
        assert_eq!(held.all(), [(here, State::Leaving)]);
    }
}
