//! Environments by id: starts them and tracks the current handle of each.
//!
//! An id permanently names the same executor; the handle for it is local to this process and can be
//! replaced. Invariant: readiness and the ready handle are read together under one lock, and a
//! start that a replacement has superseded changes nothing. A model step captures its environments
//! together, as an [`EnvironmentSnapshot`]. Not here: how to open an environment
//! (see [`EnvironmentSource`]), and whether a connection is currently up, which its client tracks.

mod environment_id;
mod table;
#[cfg(test)]
mod tests;

pub use self::{
    environment_id::{EnvironmentId, EnvironmentIdError},
    table::{MAX_ENVIRONMENTS, RETRY_AFTER},
};

use std::{
    collections::BTreeMap,
    error::Error,
    fmt, io,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use exec_env::environment::{DisconnectReason, Environment};
use exec_wire::error::RpcError;
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::{runtime::Handle, sync::watch, time::Instant};

use self::table::{
    EnvironmentEntry, EnvironmentLookup, EnvironmentTable, PendingStart, Requester, StartOutcome,
};

/// The environments of a harness by id. Clones share them. Dropping the last clone aborts pending
/// starts. An empty manager means *none*: nothing can be executed.
#[derive(Clone, Debug)]
pub struct EnvironmentManager {
    shared: Arc<ManagerShared>,
}

impl EnvironmentManager {
    /// Creates an empty manager. Starts run on `runtime`.
    pub fn new(runtime: Handle) -> Self {
        let table = Mutex::default();
        Self {
            shared: Arc::new(ManagerShared { table, runtime }),
        }
    }

    /// Adds an environment under an unused id.
    pub fn insert(
        &self,
        id: EnvironmentId,
        source: Arc<dyn EnvironmentSource>,
        start: StartMode,
    ) -> Result<(), InsertError> {
        self.put(id, source, start, EnvironmentTable::check_free)
    }

    /// Adds an environment, or replaces the source of an existing one. The id continues to name the
    /// same executor: captured handles stay valid, waiters wait for the new start, and the outcome
    /// of the previous start is dropped.
    pub fn replace(
        &self,
        id: EnvironmentId,
        source: Arc<dyn EnvironmentSource>,
        start: StartMode,
    ) -> Result<(), InsertError> {
        self.put(id, source, start, EnvironmentTable::check_capacity)
    }

    /// Removes an environment and returns whether it existed. Captured handles stay valid; waiters
    /// get [`EnvironmentError::Missing`].
    pub fn remove(&self, id: &EnvironmentId) -> bool {
        let previous = self.shared.table().remove(id);
        let existed = previous.is_some();
        abort_starts(previous);
        existed
    }

    /// Sets or clears the default environment.
    pub fn set_default(&self, id: Option<EnvironmentId>) -> Result<(), EnvironmentError> {
        let is_set = self.shared.table().set_default(id.clone());
        match id {
            Some(id) if !is_set => Err(EnvironmentError::Missing(id)),
            Some(_) | None => Ok(()),
        }
    }

    /// Removes every environment and aborts pending starts. Rejects insertions from then on.
    pub fn shut_down(&self) {
        let entries = self.shared.table().shut_down();
        abort_starts(entries.into_values());
    }

    /// Waits until an environment is ready. Starts it if it was not started yet or has failed.
    /// Concurrent calls share one start. Dropping the future does not abort the start.
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
            // The start was aborted: look up its replacement.
            if let Some(outcome) = wait_for_outcome(&mut outcome).await {
                return outcome.map_err(|error| EnvironmentError::failed(id, error));
            }
        }
    }

    /// Starts an environment without waiting for it. Does nothing if it is ready or starting;
    /// retries a failed start.
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

    /// Starts an environment that a step would use, if it was not started yet or failed longer than
    /// [`RETRY_AFTER`] ago. Returns the resulting state, or `None` if the environment does not
    /// exist.
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

    /// Returns the default environment, if one is set.
    pub fn default(&self) -> Option<EnvironmentId> {
        self.shared.table().default()
    }

    /// Returns the ids of all environments, sorted.
    pub fn ids(&self) -> Vec<EnvironmentId> {
        self.shared.table().ids()
    }

    /// Returns the state of an environment, or `None` if it does not exist. Starts nothing.
    pub fn state(&self, id: &EnvironmentId) -> Option<EnvironmentState> {
        self.shared.table().state(id)
    }

    /// Captures the current state of all environments. Starts nothing.
    pub fn snapshot(&self) -> EnvironmentSnapshot {
        self.shared.table().snapshot_all()
    }

    /// Captures the current state of these environments. Starts nothing.
    pub fn snapshot_of(&self, ids: &[EnvironmentId]) -> EnvironmentSnapshot {
        self.shared.table().snapshot(ids)
    }

    /// Adds or replaces an environment if `check` accepts the id.
    fn put(
        &self,
        id: EnvironmentId,
        source: Arc<dyn EnvironmentSource>,
        start: StartMode,
        check: impl FnOnce(&EnvironmentTable, &EnvironmentId) -> Result<(), InsertError>,
    ) -> Result<(), InsertError> {
        // Declared before the guard, so that it is dropped after the lock is released.
        let entry = EnvironmentEntry::new(source);
        let mut table = self.shared.table();
        check(&table, &id)?;
        let previous = table.insert_entry(id.clone(), entry);
        drop(table);
        abort_starts(previous);
        if start == StartMode::Eager {
            // Callers that wait for the environment get the error.
            drop(self.shared.find(&id, Requester::Caller));
        }
        Ok(())
    }
}

/// State shared by the clones of a manager and its pending starts.
#[derive(Debug)]
struct ManagerShared {
    table: Mutex<EnvironmentTable>,
    runtime: Handle,
}

impl ManagerShared {
    /// Locks the table. No code that could call the manager runs under the lock.
    fn table(&self) -> MutexGuard<'_, EnvironmentTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up an environment, and spawns its start if one is needed.
    fn find(self: &Arc<Self>, id: &EnvironmentId, requester: Requester) -> EnvironmentLookup {
        let found = self.table().find(id, requester);
        let EnvironmentLookup::NeedsStart(pending, outcome) = found else {
            return found;
        };
        self.spawn(pending);
        EnvironmentLookup::Starting(outcome)
    }

    /// Spawns a start without holding the lock: a runtime that has shut down drops the task
    /// immediately, and the task then records that it was cancelled.
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

/// Aborts the starts of removed entries. Captured handles are not affected.
fn abort_starts(entries: impl IntoIterator<Item = EnvironmentEntry>) {
    for entry in entries {
        if let Some(task) = entry.task() {
            task.abort();
        }
    }
}

/// Waits for the outcome of a start. Returns `None` if the start was aborted.
async fn wait_for_outcome(
    outcome: &mut watch::Receiver<Option<StartOutcome>>,
) -> Option<StartOutcome> {
    outcome.wait_for(Option::is_some).await.ok()?.clone()
}

/// Why an environment was not added. Nothing has changed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// Caller: the id is in use.
    #[error("environment id `{0}` is in use")]
    InUse(EnvironmentId),
    /// Caller: the manager is full.
    #[error("too many environments: limit is {MAX_ENVIRONMENTS}")]
    TooMany,
    /// Caller: the manager was shut down.
    #[error("the environment manager was shut down")]
    ShutDown,
}

/// Why an environment is not available.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Caller: the environment does not exist.
    #[error("unknown environment `{0}`")]
    Missing(EnvironmentId),
    /// The environment could not be opened. The source error says who must act.
    #[error("environment `{id}` did not start")]
    Failed {
        /// The environment.
        id: EnvironmentId,
        /// The cause.
        #[source]
        source: Arc<EnvironmentOpenError>,
    },
    /// Caller: the manager was shut down.
    #[error("the environment manager was shut down")]
    ShutDown,
}

impl EnvironmentError {
    fn failed(id: &EnvironmentId, source: Arc<EnvironmentOpenError>) -> Self {
        let id = id.clone();
        Self::Failed { id, source }
    }
}

/// Opens a source and records the outcome if the start is still current. Dropping the future, even
/// before its first poll, marks the environment as failed unless it was replaced.
fn run(manager: Weak<ManagerShared>, pending: PendingStart) -> impl Future<Output = ()> + Send {
    let source = Arc::clone(&pending.source);
    let mut guard = StartGuard {
        manager,
        pending: Some(pending),
    };
    async move {
        let open = AssertUnwindSafe(async move { source.open().await }).catch_unwind();
        let outcome = match open.await {
            Ok(Ok(environment)) => Ok(Arc::new(environment)),
            Ok(Err(error)) => Err(Arc::new(error)),
            Err(_panic) => Err(Arc::new(EnvironmentOpenError::Panicked)),
        };
        guard.record(outcome);
    }
}

/// Records a start as cancelled when dropped, so that waiters do not hang.
#[derive(Debug)]
struct StartGuard {
    manager: Weak<ManagerShared>,
    pending: Option<PendingStart>,
}

impl StartGuard {
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
            self.record(Err(Arc::new(EnvironmentOpenError::Cancelled)));
        }
    }
}

/// The environments of one model step, captured together: each ready environment with the handle
/// that was ready. Immutable: later changes do not affect it.
///
/// Excludes environments that were not started and those that do not exist.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentSnapshot {
    environments: BTreeMap<EnvironmentId, Option<Arc<Environment>>>,
    failed: BTreeMap<EnvironmentId, Arc<EnvironmentOpenError>>,
}

impl EnvironmentSnapshot {
    /// Returns the captured environments sorted by id: `Some(handle)` if ready, `None` if starting.
    pub fn environments(
        &self,
    ) -> impl Iterator<Item = (&EnvironmentId, Option<&Arc<Environment>>)> {
        self.environments
            .iter()
            .map(|(id, handle)| (id, handle.as_ref()))
    }

    /// Returns the handle, if the environment was ready.
    pub fn ready(&self, id: &EnvironmentId) -> Option<&Arc<Environment>> {
        self.environments.get(id)?.as_ref()
    }

    /// Returns whether the environment was starting.
    pub fn is_starting(&self, id: &EnvironmentId) -> bool {
        self.environments.get(id).is_some_and(Option::is_none)
    }

    /// Returns the error, if the environment had failed.
    pub fn failure(&self, id: &EnvironmentId) -> Option<&Arc<EnvironmentOpenError>> {
        self.failed.get(id)
    }
}

/// State of an environment.
#[derive(Clone, Debug)]
pub enum EnvironmentState {
    /// Not requested yet.
    NotStarted,
    /// Being opened.
    Starting,
    /// Ready for use through this handle.
    Ready(Arc<Environment>),
    /// Failed to open. The next request retries it.
    Failed(Arc<EnvironmentOpenError>),
}

/// Opens an environment: immediately if it is local, or by connecting to a server.
pub trait EnvironmentSource: fmt::Debug + Send + Sync {
    /// Opens the environment. Called again after a failure, and never concurrently by one manager.
    ///
    /// The manager sets no time limit, because only the source knows how long its steps take: a
    /// source applies its own connect and handshake timeouts. Dropping the future leaves nothing
    /// running.
    fn open(&self) -> BoxFuture<'static, Result<Environment, EnvironmentOpenError>>;

    /// Returns the environment if it is already open. It is then ready as soon as it is inserted.
    fn already_open(&self) -> Option<Environment> {
        None
    }
}

/// An existing environment is its own source: the local one, or an embedder's.
impl EnvironmentSource for Environment {
    fn open(&self) -> BoxFuture<'static, Result<Self, EnvironmentOpenError>> {
        ready(Ok(self.clone())).boxed()
    }

    fn already_open(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// When the manager first opens a source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StartMode {
    /// When it is inserted.
    Eager,
    /// When it is requested.
    Lazy,
}

/// Why an environment could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentOpenError {
    /// Caller: the configuration is invalid.
    #[error("{0}")]
    Configuration(String),
    /// Host: a local step failed.
    #[error("{context}")]
    Host {
        /// The failed step and its object.
        context: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Transport: the connection could not be opened.
    #[error("failed to connect to the exec-server")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
    /// Peer: the server returned an error.
    #[error(transparent)]
    Remote(RpcError),
    /// Transport: the session is lost.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
    /// A bug: the source panicked.
    #[error("opening the environment panicked")]
    Panicked,
    /// Host: the runtime shut down before the environment was open.
    #[error("the runtime shut down while the environment was starting")]
    Cancelled,
}
