//! Environments by their ids: who starts them, when, and which handle is current.
//!
//! An id names the same executor for good; the handle under it is of this process and can be replaced.
//! Invariant: what is ready and the handle that is ready are read together, under one lock, and a
//! start that was overtaken by a replacement changes nothing.
//! Not here: how an environment is opened (whoever brings an [`EnvironmentSource`]), nor whether a
//! connection is up at this moment, which is its client's business.

mod environment_id;
mod snapshot;
mod source;
mod table;
#[cfg(test)]
mod tests;

pub use self::{
    environment_id::{EnvironmentId, EnvironmentIdError},
    snapshot::{EnvironmentSnapshot, EnvironmentState},
    source::{EnvironmentSource, OpenError, Start},
    table::{MAX_ENVIRONMENTS, RETRY_AFTER},
};

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use exec_env::environment::Environment;
use futures_util::FutureExt;
use tokio::{runtime::Handle, sync::watch, time::Instant};

use self::table::{
    EnvironmentEntry, EnvironmentLookup, EnvironmentTable, PendingStart, Requester, StartOutcome,
};

/// Environments by their ids. Clones share them; when the last clone is dropped, starts that are
/// under way end. One without environments is what *none* means: nothing can be executed.
#[derive(Clone, Debug)]
pub struct EnvironmentManager {
    shared: Arc<ManagerShared>,
}

impl EnvironmentManager {
    /// Builds a manager without environments. Starts run on `runtime`.
    pub fn new(runtime: Handle) -> Self {
        let table = Mutex::default();
        Self {
            shared: Arc::new(ManagerShared { table, runtime }),
        }
    }

    /// Adds an environment under an id that is free.
    pub fn insert(
        &self,
        id: EnvironmentId,
        source: Arc<dyn EnvironmentSource>,
        start: Start,
    ) -> Result<(), InsertError> {
        let previous = self
            .shared
            .insert_entry(&id, source, EnvironmentTable::check_free)?;
        abort_starts(previous);
        self.start_if_eager(&id, start);
        Ok(())
    }

    /// Adds an environment, or puts a fresh source in the place of the one under this id. The id
    /// goes on to name the same executor: whoever captured the former handle keeps it, whoever waits
    /// for the former start waits for this one, and what the former start comes to is dropped.
    pub fn replace(
        &self,
        id: EnvironmentId,
        source: Arc<dyn EnvironmentSource>,
        start: Start,
    ) -> Result<(), InsertError> {
        let previous = self
            .shared
            .insert_entry(&id, source, EnvironmentTable::check_capacity)?;
        abort_starts(previous);
        self.start_if_eager(&id, start);
        Ok(())
    }

    /// Takes an environment away; returns whether there was one. Whoever captured its handle keeps
    /// it; whoever waits for it learns that it is missing.
    pub fn remove(&self, id: &EnvironmentId) -> bool {
        let previous = self.shared.table().remove(id);
        let existed = previous.is_some();
        abort_starts(previous);
        existed
    }

    /// Makes an environment the default, or none.
    pub fn set_default(&self, id: Option<EnvironmentId>) -> Result<(), EnvironmentError> {
        let is_set = self.shared.table().set_default(id.clone());
        match id {
            Some(id) if !is_set => Err(EnvironmentError::Missing(id)),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes every environment away and ends the starts that are under way. Nothing can be added
    /// afterwards.
    pub fn shut_down(&self) {
        let entries = self.shared.table().shut_down();
        abort_starts(entries.into_values());
    }

    /// Waits until an environment is ready, and starts it if need be: one that nobody asked for
    /// before, and one that failed. Calls that overlap join the same start. Dropping the future does
    /// not end the start.
    pub async fn environment(
        &self,
        id: &EnvironmentId,
    ) -> Result<Arc<Environment>, EnvironmentError> {
        loop {
            let mut outcome = match self.shared.find(id, Requester::Caller) {
                EnvironmentLookup::Ready(handle) => return Ok(handle),
                EnvironmentLookup::Starting(outcome)
                | EnvironmentLookup::NeedsStart(_, outcome) => outcome,
                EnvironmentLookup::Missing => return Err(EnvironmentError::Missing(id.clone())),
                EnvironmentLookup::ShutDown => return Err(EnvironmentError::ShutDown),
                EnvironmentLookup::Failed(error) => {
                    return Err(EnvironmentError::failed(id, error));
                }
            };
            // A start that was taken away tells nothing: what is in its place is looked up.
            if let Some(outcome) = wait_for_outcome(&mut outcome).await {
                return outcome.map_err(|error| EnvironmentError::failed(id, error));
            }
        }
    }

    /// Asks an environment to start, and does not wait for it. Nothing happens if it is ready or
    /// starting; one that failed is tried again.
    pub fn request_start(&self, id: &EnvironmentId) -> Result<(), EnvironmentError> {
        match self.shared.find(id, Requester::Caller) {
            EnvironmentLookup::Missing => Err(EnvironmentError::Missing(id.clone())),
            EnvironmentLookup::ShutDown => Err(EnvironmentError::ShutDown),
            EnvironmentLookup::Ready(_)
            | EnvironmentLookup::Starting(_)
            | EnvironmentLookup::NeedsStart(..)
            | EnvironmentLookup::Failed(_) => Ok(()),
        }
    }

    /// Asks an environment to start because a step would use it: one that nobody asked for before,
    /// and one whose failure is longer ago than [`RETRY_AFTER`](RETRY_AFTER). Tells how far
    /// it is then, or `None` if there is none.
    pub fn start_if_due(&self, id: &EnvironmentId) -> Option<EnvironmentState> {
        let now = Instant::now();
        match self.shared.find(id, Requester::Step { now }) {
            EnvironmentLookup::Missing | EnvironmentLookup::ShutDown => None,
            EnvironmentLookup::Ready(handle) => Some(EnvironmentState::Ready(handle)),
            EnvironmentLookup::Starting(_) | EnvironmentLookup::NeedsStart(..) => {
                Some(EnvironmentState::Starting)
            }
            EnvironmentLookup::Failed(error) => Some(EnvironmentState::Failed(error)),
        }
    }

    /// Returns the default, if there is one.
    pub fn default(&self) -> Option<EnvironmentId> {
        self.shared.table().default()
    }

    /// Returns the ids of all environments, in their order.
    pub fn ids(&self) -> Vec<EnvironmentId> {
        self.shared.table().ids()
    }

    /// Tells how far an environment is, or `None` if there is none. Starts nothing.
    pub fn state(&self, id: &EnvironmentId) -> Option<EnvironmentState> {
        self.shared.table().state(id)
    }

    /// Captures all environments as they are at this moment. Starts nothing.
    pub fn snapshot(&self) -> EnvironmentSnapshot {
        self.shared.table().snapshot_all()
    }

    /// Captures these environments as they are at this moment. Starts nothing.
    pub fn snapshot_of(&self, ids: &[EnvironmentId]) -> EnvironmentSnapshot {
        self.shared.table().snapshot(ids)
    }

    /// Begins what is to be started eagerly.
    fn start_if_eager(&self, id: &EnvironmentId, start: Start) {
        match start {
            // A failure is told to whoever asks for the environment.
            Start::Eager => drop(self.shared.find(id, Requester::Caller)),
            Start::Lazy => {}
        }
    }
}

/// What the clones of a manager share, and what starts look for when they are done.
#[derive(Debug)]
struct ManagerShared {
    table: Mutex<EnvironmentTable>,
    runtime: Handle,
}

impl ManagerShared {
    /// Returns the table. Nothing that could call the manager runs while it is held.
    fn table(&self) -> MutexGuard<'_, EnvironmentTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a source under an id, if `check` admits it. Returns what was there.
    fn insert_entry(
        &self,
        id: &EnvironmentId,
        source: Arc<dyn EnvironmentSource>,
        check: impl FnOnce(&EnvironmentTable, &EnvironmentId) -> Result<(), InsertError>,
    ) -> Result<Option<EnvironmentEntry>, InsertError> {
        // Declared before the lock is taken, so that it is dropped behind it.
        let entry = EnvironmentEntry::new(source);
        let mut table = self.table();
        check(&table, id)?;
        Ok(table.insert_entry(id.clone(), entry))
    }

    /// Finds an environment, and spawns its start if that was decided.
    fn find(self: &Arc<Self>, id: &EnvironmentId, requester: Requester) -> EnvironmentLookup {
        let found = self.table().find(id, requester);
        match found {
            EnvironmentLookup::NeedsStart(pending, outcome) => {
                self.spawn(pending);
                EnvironmentLookup::Starting(outcome)
            }
            EnvironmentLookup::Missing
            | EnvironmentLookup::ShutDown
            | EnvironmentLookup::Ready(_)
            | EnvironmentLookup::Starting(_)
            | EnvironmentLookup::Failed(_) => found,
        }
    }

    /// Spawns a start. The lock is free meanwhile: a runtime that has ended drops the task at once,
    /// and the task then records that it was cancelled.
    fn spawn(self: &Arc<Self>, pending: PendingStart) {
        let (id, number) = (pending.id.clone(), pending.start);
        let task = self
            .runtime
            .spawn(run(Arc::downgrade(self), pending))
            .abort_handle();
        let superseded = self.table().record_task(&id, number, task);
        if let Some(task) = superseded {
            task.abort();
        }
    }
}

impl Drop for ManagerShared {
    fn drop(&mut self) {
        let entries = self.table().shut_down();
        abort_starts(entries.into_values());
    }
}

/// Ends the starts of what was taken away. A captured handle is not touched.
fn abort_starts(entries: impl IntoIterator<Item = EnvironmentEntry>) {
    for entry in entries {
        if let Some(task) = entry.task() {
            task.abort();
        }
    }
}

/// Waits for the outcome of a start; `None` if it was taken away.
async fn wait_for_outcome(
    outcome: &mut watch::Receiver<Option<StartOutcome>>,
) -> Option<StartOutcome> {
    outcome.wait_for(Option::is_some).await.ok()?.clone()
}

/// Why an environment was not added. Nothing has changed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// Caller: the id has an environment.
    #[error("environment id `{0}` is in use")]
    InUse(EnvironmentId),
    /// Caller: there are as many as there may be.
    #[error("there are {MAX_ENVIRONMENTS} environments already")]
    TooMany,
    /// Caller: the manager was shut down.
    #[error("the environments were shut down")]
    ShutDown,
}

/// Why there is no environment to use.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Caller: there is none of this name.
    #[error("there is no environment `{0}`")]
    Missing(EnvironmentId),
    /// Whoever the source blames: it could not be opened.
    #[error("environment `{id}` did not start")]
    Failed {
        /// The environment.
        id: EnvironmentId,
        /// Why.
        #[source]
        source: Arc<OpenError>,
    },
    /// Caller: the manager was shut down.
    #[error("the environments were shut down")]
    ShutDown,
}

impl EnvironmentError {
    fn failed(id: &EnvironmentId, source: Arc<OpenError>) -> Self {
        let id = id.clone();
        Self::Failed { id, source }
    }
}

/// Opens a source and records the outcome, if the start is still current by then. Dropping the future,
/// even before it was polled, leaves the environment as failed, unless it was replaced.
fn run(manager: Weak<ManagerShared>, pending: PendingStart) -> impl Future<Output = ()> + Send {
    let source = Arc::clone(&pending.source);
    let guard = StartGuard {
        manager,
        pending: Some(pending),
    };
    async move {
        let open = AssertUnwindSafe(async move { source.open().await }).catch_unwind();
        let outcome = match open.await {
            Ok(Ok(environment)) => Ok(Arc::new(environment)),
            Ok(Err(error)) => Err(Arc::new(error)),
            Err(_panic) => Err(Arc::new(OpenError::Panicked)),
        };
        guard.finish(outcome);
    }
}

/// A start without an outcome. Dropped, it has one: nobody waits for a task that is gone.
#[derive(Debug)]
struct StartGuard {
    manager: Weak<ManagerShared>,
    pending: Option<PendingStart>,
}

impl StartGuard {
    fn finish(mut self, outcome: StartOutcome) {
        self.record(outcome);
    }

    fn record(&mut self, outcome: StartOutcome) {
        let (Some(pending), Some(manager)) = (self.pending.take(), self.manager.upgrade()) else {
            return;
        };
        let PendingStart { id, start, .. } = pending;
        let now = Instant::now();
        let waiting = manager.table().record_outcome(&id, start, &outcome, now);
        if let Some(waiting) = waiting {
            waiting.send_replace(Some(outcome));
        }
    }
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        if self.pending.is_some() {
            self.record(Err(Arc::new(OpenError::Cancelled)));
        }
    }
}
