//! The processes of one session whose events are taken. One that was let go of stays until its close,
//! one that has failed until the server has ended it.

use std::{collections::BTreeMap, sync::Arc};

use exec_env::process::ProcessError;
use exec_wire::id::ProcessId;

use super::{past::Past, task::stopped};
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
