//! The place of a process between being asked for and running.

use std::sync::Arc;

use exec_wire::id::ProcessId;
use tokio::sync::Notify;

use super::{
    super::{
        kept::Keeping,
        life::Life,
        process::{Entry, Process},
    },
    Session,
};

/// A place for a process that is starting. Given back if it does not start, to the one that had it.
#[derive(Debug)]
pub(crate) struct Starting {
    pub(super) session: Arc<Session>,
    pub(super) id: ProcessId,
    pub(super) cancel: Arc<Notify>,
    pub(super) started: bool,
}

impl Starting {
    pub(crate) fn id(&self) -> &ProcessId {
        &self.id
    }

    /// Resolves when the process is terminated before it runs.
    pub(crate) async fn cancelled(&self) {
        self.cancel.notified().await;
    }

    /// Fills the place. Returns `false` if the session ended meanwhile.
    pub(crate) fn finish(mut self, process: &Arc<Process>, life: Life) -> bool {
        self.started = true;
        // Declared before the lock is taken, so that it is dropped behind it.
        let replaced;
        let mut state = self.session.lock();
        if !state.table.contains_key(&self.id) {
            return false;
        }
        replaced = state.replaced.get(&self.id).cloned();
        if let Some(process) = &replaced {
            state.forget(process);
        }
        let entry = Entry::Started(Arc::clone(process));
        state.table.insert(self.id.clone(), entry);
        if state.keeping == Keeping::Unacknowledged {
            process.keep();
        }
        drop(state);
        self.session.meters.processes_started.increment();
        Session::forget_later(process, life, Arc::clone(&self.session.meters));
        true
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if self.started {
            return;
        }
        let mut state = self.session.lock();
        let ours = |entry: &Entry| match entry {
            Entry::Starting(cancel) => Arc::ptr_eq(cancel, &self.cancel),
            Entry::Started(_) => false,
        };
        if !state.table.get(&self.id).is_some_and(ours) {
            return;
        }
        match state.replaced.remove(&self.id) {
            None => drop(state.table.remove(&self.id)),
            Some(process) => {
                let entry = Entry::Started(process);
                state.table.insert(self.id.clone(), entry);
            }
        }
    }
}
