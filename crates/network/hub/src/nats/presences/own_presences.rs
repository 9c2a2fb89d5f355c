//! The presence records written by this node. Pure.

use std::collections::{HashMap, HashSet};

use crate::{
    nats::bucket::RecordRevision,
    store::{ConnectionId, EnvironmentId, Presence},
};

/// The presence records of this node.
#[derive(Debug, Default)]
pub(super) struct OwnPresences {
    entries: HashMap<EnvironmentId, OwnPresence>,
}

#[derive(Debug)]
struct OwnPresence {
    presence: Presence,
    state: PresenceState,
}

/// State of a presence record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PresenceState {
    /// Being written. Keeps the latest revision announced by others meanwhile.
    Writing {
        /// Latest revision announced by another node.
        other: RecordRevision,
    },
    /// Written.
    Written(RecordRevision),
    /// The websocket has ended, but the record still exists.
    Leaving,
}

impl OwnPresences {
    /// Starts writing a record.
    pub(super) fn begin_write(&mut self, presence: Presence) {
        let state = PresenceState::Writing {
            other: RecordRevision::default(),
        };
        self.entries.insert(
            presence.environment.clone(),
            OwnPresence { presence, state },
        );
    }

    /// Records the write. Returns false if another one came later, or it was given up.
    pub(super) fn finish_write(&mut self, presence: &Presence, revision: RecordRevision) -> bool {
        let Some(entry) = self.entry(presence) else {
            return false;
        };
        match entry.state {
            PresenceState::Writing { other } if other > revision => {
                self.entries.remove(&presence.environment);
                false
            }
            PresenceState::Writing { .. } | PresenceState::Written(_) => {
                entry.state = PresenceState::Written(revision);
                true
            }
            PresenceState::Leaving => false,
        }
    }

    /// Marks the websocket as closed; the record may still exist.
    pub(super) fn mark_closed(&mut self, presence: &Presence) {
        if let Some(entry) = self.entry(presence) {
            entry.state = PresenceState::Leaving;
        }
    }

    /// Removes the entry, because its record is gone or replaced. Returns whether it was tracked.
    pub(super) fn forget(&mut self, presence: &Presence) -> bool {
        self.entry(presence).is_some() && self.entries.remove(&presence.environment).is_some()
    }

    /// Handles a record of another node. Returns ours, if it was replaced.
    pub(super) fn handle_other(
        &mut self,
        theirs: &Presence,
        revision: RecordRevision,
    ) -> Option<Presence> {
        let entry = self.entries.get_mut(&theirs.environment)?;
        match &mut entry.state {
            PresenceState::Writing { other } => {
                *other = revision.max(*other);
                None
            }
            PresenceState::Written(ours) if *ours < revision => self
                .entries
                .remove(&theirs.environment)
                .map(|lost| lost.presence),
            PresenceState::Written(_) | PresenceState::Leaving => None,
        }
    }

    /// Marks written records as closed unless their websocket is in `connections`.
    pub(super) fn retain(&mut self, connections: &HashSet<ConnectionId>) {
        for entry in self.entries.values_mut() {
            if matches!(entry.state, PresenceState::Written(_))
                && !connections.contains(&entry.presence.connection)
            {
                entry.state = PresenceState::Leaving;
            }
        }
    }

    /// Returns whether this websocket is tracked and not closed.
    pub(super) fn is_connected(&self, presence: &Presence) -> bool {
        self.entries
            .get(&presence.environment)
            .is_some_and(|entry| {
                entry.presence == *presence && entry.state != PresenceState::Leaving
            })
    }

    /// Returns all entries.
    pub(super) fn all(&self) -> Vec<(Presence, PresenceState)> {
        self.entries
            .values()
            .map(|entry| (entry.presence.clone(), entry.state))
            .collect()
    }

    fn entry(&mut self, presence: &Presence) -> Option<&mut OwnPresence> {
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

    fn revision(number: u64) -> RecordRevision {
        serde_json::from_value(number.into()).expect("a number")
    }

    #[test]
    fn later_presence_wins_regardless_of_event_order() {
        let (ours, theirs) = (presence("a", "1"), presence("b", "2"));
        for (own, other, lost) in [(5, 6, true), (6, 5, false)] {
            let mut presences = OwnPresences::default();
            presences.begin_write(ours.clone());
            assert!(presences.finish_write(&ours, revision(own)));
            let replaced = presences.handle_other(&theirs, revision(other));
            assert_eq!(replaced, lost.then(|| ours.clone()));
            assert_eq!(presences.is_connected(&ours), !lost);

            let mut presences = OwnPresences::default();
            presences.begin_write(ours.clone());
            assert_eq!(
                presences.handle_other(&theirs, revision(other)),
                None,
                "not written yet"
            );
            assert_eq!(presences.finish_write(&ours, revision(own)), !lost);
            assert_eq!(presences.is_connected(&ours), !lost);
        }
    }

    #[test]
    fn closed_websocket_is_not_current_but_still_tracked() {
        let (old, new) = (presence("a", "1"), presence("a", "2"));
        let mut presences = OwnPresences::default();
        presences.begin_write(old.clone());
        assert!(presences.finish_write(&old, revision(1)));
        presences.mark_closed(&old);
        assert!(!presences.is_connected(&old));
        assert!(
            !presences.finish_write(&old, revision(2)),
            "a late write does not revive it"
        );
        assert_eq!(presences.all(), [(old.clone(), PresenceState::Leaving)]);
        presences.begin_write(new.clone());
        assert!(!presences.forget(&old));
        assert!(
            presences.is_connected(&new),
            "the end of the old websocket does not affect the new one"
        );
    }

    #[test]
    fn unnoticed_end_of_a_websocket_is_detected() {
        let ours = presence("a", "1");
        let mut presences = OwnPresences::default();
        presences.begin_write(ours.clone());
        presences.retain(&HashSet::new());
        assert!(presences.is_connected(&ours), "still being written");
        assert!(presences.finish_write(&ours, revision(1)));
        presences.retain(&HashSet::from([ours.connection.clone()]));
        assert!(presences.is_connected(&ours));
        presences.retain(&HashSet::new());
        assert_eq!(presences.all(), [(ours, PresenceState::Leaving)]);
    }
}
