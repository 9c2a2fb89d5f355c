//! The processes of one connection, and which of them hold up its reading.

use std::{collections::BTreeMap, sync::Arc};

use exec_wire::id::ProcessId;

use crate::events::{End, ProcessEvents};

/// How far the followers of all processes may lag behind, altogether, before reading stops. The
/// wire has one window for a connection, not one for each process: one that is not followed holds
/// up the others.
const LAG_BYTES: u64 = 1 << 20;
/// How far they may lag behind while somebody waits for an answer, which is behind whatever the
/// link holds.
const AWAITED_LAG_BYTES: u64 = 16 << 20;
/// How far they may lag behind at all. Between the two it is read slowly: the answer is behind what
/// the link holds when it is given, and more than that comes only as fast as it is read.
const MAX_LAG_BYTES: u64 = 256 << 20;

/// Whether there is room for what would be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Room {
    Enough,
    /// Somebody waits for an answer behind it.
    Little,
    None,
}

impl Room {
    fn with(lag: u64, awaited: bool) -> Self {
        if lag < LAG_BYTES || (awaited && lag < AWAITED_LAG_BYTES) {
            Self::Enough
        } else if awaited && lag < MAX_LAG_BYTES {
            Self::Little
        } else {
            Self::None
        }
    }
}

/// Processes whose events are taken. One that was let go of stays until its close.
#[derive(Debug, Default)]
pub(super) struct Processes {
    table: BTreeMap<ProcessId, Arc<ProcessEvents>>,
    /// Those whose followers lag behind.
    lagging: Vec<Arc<ProcessEvents>>,
}

impl Processes {
    /// Takes a process in, unless its id is taken.
    pub(super) fn register(&mut self, process: &Arc<ProcessEvents>) -> bool {
        let free = !self.table.contains_key(process.id());
        if free {
            self.table.insert(process.id().clone(), Arc::clone(process));
        }
        free
    }

    pub(super) fn find(&self, id: &ProcessId) -> Option<Arc<ProcessEvents>> {
        self.table.get(id).cloned()
    }

    /// Tells whether it is this process that its id names.
    pub(super) fn knows(&self, process: &Arc<ProcessEvents>) -> bool {
        self.table
            .get(process.id())
            .is_some_and(|known| Arc::ptr_eq(known, process))
    }

    pub(super) fn forget(&mut self, process: &Arc<ProcessEvents>) {
        if self.knows(process) {
            self.table.remove(process.id());
        }
    }

    /// Looks whether a process that has news is followed fast enough, and whether it is over.
    pub(super) fn note(&mut self, process: &Arc<ProcessEvents>) {
        if process.lag() > 0 && !self.lagging.iter().any(|known| Arc::ptr_eq(known, process)) {
            self.lagging.push(Arc::clone(process));
        }
        if process.is_released() && process.is_over() {
            self.forget(process);
        }
    }

    /// Tells whether there is room for what would be read.
    pub(super) fn room(&mut self, awaited: bool) -> Room {
        self.lagging.retain(|process| process.lag() > 0);
        Room::with(
            self.lagging.iter().map(|process| process.lag()).sum(),
            awaited,
        )
    }

    /// The connection is gone.
    pub(super) fn disconnect(&mut self) {
        for process in std::mem::take(&mut self.table).into_values() {
            process.end(End::Disconnected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_although_followers_lag() {
        assert_eq!(Room::with(0, false), Room::Enough);
        assert_eq!(Room::with(LAG_BYTES, false), Room::None);
        assert_eq!(Room::with(LAG_BYTES, true), Room::Enough);
        assert_eq!(Room::with(AWAITED_LAG_BYTES, true), Room::Little);
        assert_eq!(Room::with(MAX_LAG_BYTES, true), Room::None);
    }
}
