//! The processes of one session, those that run and those that have finished.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use exec_env::process::ProcessError;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    limits,
};

use super::stopped;
use crate::events::{Owner, ProcessEvents};

#[derive(Debug, Default)]
pub(super) struct Processes {
    table: BTreeMap<ProcessId, Arc<ProcessEvents>>,
    pub(super) past: Past,
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

    /// Forgets a process that did not start.
    pub(super) fn forget(&mut self, process: &Arc<ProcessEvents>) {
        if self.knows(process) {
            self.table.remove(process.id());
        }
    }

    /// Forgets a process that the server may still know.
    pub(super) fn retire(&mut self, process: &Arc<ProcessEvents>) {
        if self.knows(process) {
            self.table.remove(process.id());
            self.past.handle_forgotten(process.id());
        }
    }

    /// Returns all of them.
    pub(super) fn all(&self) -> Vec<Arc<ProcessEvents>> {
        self.table.values().cloned().collect()
    }

    /// Takes out those that belong to the server.
    pub(super) fn take_attached(&mut self) -> Self {
        let attached =
            |_: &ProcessId, process: &mut Arc<ProcessEvents>| process.owner() == Owner::Server;
        Self {
            table: self.table.extract_if(.., attached).collect(),
            past: Past::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Fails and forgets all of them.
    pub(super) fn fail(&mut self, error: &ProcessError) {
        for process in std::mem::take(&mut self.table).into_values() {
            process.orphan(error);
        }
    }
}

impl Drop for Processes {
    /// The task that took their events was stopped: whoever waits for one is told.
    fn drop(&mut self) {
        self.fail(&ProcessError::Disconnected(stopped()));
    }
}

/// Processes that are remembered: as many as a server keeps.
const MOST: usize = limits::FINISHED_PROCESSES;

#[derive(Debug, Default)]
pub(super) struct Past {
    ids: BTreeSet<ProcessId>,
    /// The same, oldest first.
    order: VecDeque<ProcessId>,
    /// Last acknowledgements that may not have arrived, oldest first.
    unsure: VecDeque<Farewell>,
}

/// The last acknowledgement of a process.
#[derive(Debug)]
pub(super) struct Farewell {
    pub(super) id: ProcessId,
    pub(super) seq: OutputSeq,
    /// How many calls were made on the connection before it.
    pub(super) asked: u64,
}

impl Past {
    /// A process is forgotten here.
    pub(super) fn handle_forgotten(&mut self, id: &ProcessId) {
        if self.ids.insert(id.clone()) {
            self.order.push_back(id.clone());
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Tells whether the server may know a process of before by this id.
    pub(super) fn knows(&self, id: &ProcessId) -> bool {
        self.ids.contains(id)
    }

    /// The last acknowledgement of a process is on its way. Of the connection's calls those up to
    /// `answered` are answered, or others behind them.
    pub(super) fn handle_farewell(&mut self, farewell: Farewell, answered: u64) {
        self.handle_answered(answered);
        if self.unsure.len() == MOST {
            self.unsure.pop_front();
        }
        self.unsure.push_back(farewell);
    }

    /// What was sent before a call has arrived if that was answered.
    pub(super) fn handle_answered(&mut self, answered: u64) {
        let arrived = |farewell: &mut Farewell| farewell.asked < answered;
        while self.unsure.pop_front_if(arrived).is_some() {}
    }

    /// Takes what may not have arrived.
    pub(super) fn take_unsure(&mut self) -> VecDeque<Farewell> {
        std::mem::take(&mut self.unsure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> ProcessId {
        ProcessId::new(&format!("p{number}")).unwrap()
    }

    fn farewell(number: usize, asked: u64) -> Farewell {
        Farewell {
            id: id(number),
            seq: OutputSeq(1),
            asked,
        }
    }

    #[test]
    fn an_answer_proves_what_was_sent_before_its_call() {
        let mut past = Past::default();
        past.handle_farewell(farewell(0, 3), 0);
        past.handle_farewell(farewell(1, 4), 0);
        past.handle_answered(3);
        assert_eq!(past.unsure.len(), 2);
        past.handle_answered(4);
        let left: Vec<_> = past.take_unsure().into_iter().map(|left| left.id).collect();
        assert_eq!(left, [id(1)]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut past = Past::default();
        for number in 0..=MOST {
            past.handle_forgotten(&id(number));
            past.handle_forgotten(&id(number));
            past.handle_farewell(farewell(number, 0), 0);
        }
        assert!(!past.knows(&id(0)) && past.knows(&id(1)) && past.knows(&id(MOST)));
        assert_eq!((past.ids.len(), past.order.len()), (MOST, MOST));
        assert_eq!(past.unsure.len(), MOST);
    }
}
