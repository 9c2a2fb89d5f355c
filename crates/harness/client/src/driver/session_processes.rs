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

use super::driver_stopped;
use crate::events::{ProcessEvents, ProcessOwner};

#[derive(Debug, Default)]
pub(super) struct SessionProcesses {
    table: BTreeMap<ProcessId, Arc<ProcessEvents>>,
    pub(super) finished: FinishedProcesses,
}

impl SessionProcesses {
    /// Registers a process, unless its id is in use.
    pub(super) fn register(&mut self, process: &Arc<ProcessEvents>) -> bool {
        let is_free = !self.table.contains_key(process.id());
        if is_free {
            self.table.insert(process.id().clone(), Arc::clone(process));
        }
        is_free
    }

    pub(super) fn find(&self, id: &ProcessId) -> Option<Arc<ProcessEvents>> {
        self.table.get(id).cloned()
    }

    /// Returns whether this very process is registered.
    pub(super) fn contains(&self, process: &Arc<ProcessEvents>) -> bool {
        self.table
            .get(process.id())
            .is_some_and(|entry| Arc::ptr_eq(entry, process))
    }

    /// Removes a process that did not start.
    pub(super) fn remove(&mut self, process: &Arc<ProcessEvents>) {
        if self.contains(process) {
            self.table.remove(process.id());
        }
    }

    /// Removes a process that the server may still know.
    pub(super) fn finish(&mut self, process: &Arc<ProcessEvents>) {
        if self.contains(process) {
            self.table.remove(process.id());
            self.finished.record(process.id());
        }
    }

    /// Returns all processes.
    pub(super) fn all(&self) -> Vec<Arc<ProcessEvents>> {
        self.table.values().cloned().collect()
    }

    /// Takes out the server-owned processes.
    pub(super) fn take_server_owned(&mut self) -> Self {
        let attached = |_: &ProcessId, process: &mut Arc<ProcessEvents>| {
            process.owner() == ProcessOwner::Server
        };
        Self {
            table: self.table.extract_if(.., attached).collect(),
            finished: FinishedProcesses::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Fails and removes all processes.
    pub(super) fn fail(&mut self, error: &ProcessError) {
        for process in std::mem::take(&mut self.table).into_values() {
            process.orphan(error);
        }
    }
}

impl Drop for SessionProcesses {
    /// Fails the remaining processes, so that their waiters do not hang when the driver is stopped.
    fn drop(&mut self) {
        self.fail(&ProcessError::Disconnected(driver_stopped()));
    }
}

/// Maximum number of remembered processes: as many as a server retains.
const MAX_REMEMBERED: usize = limits::FINISHED_PROCESSES;

#[derive(Debug, Default)]
pub(super) struct FinishedProcesses {
    ids: BTreeSet<ProcessId>,
    /// The ids in insertion order.
    order: VecDeque<ProcessId>,
    /// Final acks that may have been lost, oldest first.
    unconfirmed: VecDeque<FinalAck>,
}

/// The final ack of a process.
#[derive(Debug)]
pub(super) struct FinalAck {
    pub(super) id: ProcessId,
    pub(super) seq: OutputSeq,
    /// Number of calls sent on the connection before the ack.
    pub(super) calls_sent: u64,
}

impl FinishedProcesses {
    /// Remembers a removed process.
    pub(super) fn record(&mut self, id: &ProcessId) {
        if self.ids.insert(id.clone()) {
            self.order.push_back(id.clone());
        }
        if self.order.len() > MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Returns whether the server may still know a previous process with this id.
    pub(super) fn contains(&self, id: &ProcessId) -> bool {
        self.ids.contains(id)
    }

    /// Remembers a final ack. The calls up to `answered` have been answered, so earlier acks have
    /// arrived.
    pub(super) fn record_final_ack(&mut self, final_ack: FinalAck, answered: u64) {
        self.confirm_responses(answered);
        if self.unconfirmed.len() == MAX_REMEMBERED {
            self.unconfirmed.pop_front();
        }
        self.unconfirmed.push_back(final_ack);
    }

    /// Forgets the acks that were sent before an answered call, because they have arrived.
    pub(super) fn confirm_responses(&mut self, answered: u64) {
        let arrived = |final_ack: &mut FinalAck| final_ack.calls_sent < answered;
        while self.unconfirmed.pop_front_if(arrived).is_some() {}
    }

    /// Takes the acks that may have been lost.
    pub(super) fn take_unconfirmed(&mut self) -> VecDeque<FinalAck> {
        std::mem::take(&mut self.unconfirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> ProcessId {
        ProcessId::new(&format!("p{number}")).unwrap()
    }

    fn final_ack(number: usize, calls_sent: u64) -> FinalAck {
        FinalAck {
            id: id(number),
            seq: OutputSeq(1),
            calls_sent,
        }
    }

    #[test]
    fn response_confirms_acks_sent_before_its_call() {
        let mut finished = FinishedProcesses::default();
        finished.record_final_ack(final_ack(0, 3), 0);
        finished.record_final_ack(final_ack(1, 4), 0);
        finished.confirm_responses(3);
        assert_eq!(finished.unconfirmed.len(), 2);
        finished.confirm_responses(4);
        let unconfirmed: Vec<_> = finished
            .take_unconfirmed()
            .into_iter()
            .map(|final_ack| final_ack.id)
            .collect();
        assert_eq!(unconfirmed, [id(1)]);
    }

    #[test]
    fn finished_processes_are_bounded() {
        let mut finished = FinishedProcesses::default();
        for number in 0..=MAX_REMEMBERED {
            finished.record(&id(number));
            finished.record(&id(number));
            finished.record_final_ack(final_ack(number, 0), 0);
        }
        assert!(
            !finished.contains(&id(0))
                && finished.contains(&id(1))
                && finished.contains(&id(MAX_REMEMBERED))
        );
        assert_eq!(
            (finished.ids.len(), finished.order.len()),
            (MAX_REMEMBERED, MAX_REMEMBERED)
        );
        assert_eq!(finished.unconfirmed.len(), MAX_REMEMBERED);
    }
}
