//! The state of all environments, and the decisions that are made under the lock. Nothing here
//! blocks or drops a handle, because dropping a handle may run arbitrary code.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use exec_env::environment::Environment;
use tokio::{sync::watch, task::AbortHandle, time::Instant};

use super::{
    EnvironmentOpenError, EnvironmentSnapshot, EnvironmentSource, EnvironmentState, InsertError,
    environment_id::EnvironmentId,
};

/// Maximum number of environments of one manager. Each may hold a connection or a child process.
pub const MAX_ENVIRONMENTS: usize = 256;

/// Delay before a step retries a failed environment. Explicit requests retry immediately.
pub const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Outcome of a start.
pub(super) type StartOutcome = Result<Arc<Environment>, Arc<EnvironmentOpenError>>;

/// All environments of a manager.
#[derive(Debug, Default)]
pub(super) struct EnvironmentTable {
    entries: BTreeMap<EnvironmentId, EnvironmentEntry>,
    default: Option<EnvironmentId>,
    starts: u64,
    is_shut_down: bool,
}

/// An environment and its source.
#[derive(Debug)]
pub(super) struct EnvironmentEntry {
    source: Arc<dyn EnvironmentSource>,
    state: StartState,
}

impl EnvironmentEntry {
    /// Creates an entry, which is ready if the source is already open.
    pub(super) fn new(source: Arc<dyn EnvironmentSource>) -> Self {
        let already_open = source.already_open().map(Arc::new);
        let state = already_open.map_or(StartState::NotStarted, StartState::Ready);
        Self { source, state }
    }

    /// Returns the task that is opening the environment, if any.
    pub(super) fn task(&self) -> Option<&AbortHandle> {
        match &self.state {
            StartState::Starting(in_progress) => in_progress.task.as_ref(),
            StartState::NotStarted | StartState::Ready(_) | StartState::Failed { .. } => None,
        }
    }
}

/// Progress of a start.
#[derive(Debug)]
enum StartState {
    NotStarted,
    Starting(StartInProgress),
    Ready(Arc<Environment>),
    Failed {
        error: Arc<EnvironmentOpenError>,
        since: Instant,
    },
}

/// A start in progress.
#[derive(Debug)]
struct StartInProgress {
    start: StartNumber,
    /// Notifies waiters. Aborting the start drops it, and waiters look up the replacement.
    outcome: watch::Sender<Option<StartOutcome>>,
    /// Absent between the decision to start and the spawn of the task.
    task: Option<AbortHandle>,
}

/// Numbers the starts of a manager uniquely, so that a start can detect whether it is current.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct StartNumber(u64);

/// A start that must be spawned.
#[derive(Debug)]
pub(super) struct PendingStart {
    pub(super) id: EnvironmentId,
    pub(super) start: StartNumber,
    pub(super) source: Arc<dyn EnvironmentSource>,
}

/// The origin of a request for an environment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Requester {
    /// An explicit request, which retries a failed start immediately.
    Caller,
    /// A step that would use the environment, which retries a failed start after [`RETRY_AFTER`].
    Step {
        /// Current time.
        now: Instant,
    },
}

/// Result of a lookup.
#[derive(Debug)]
pub(super) enum EnvironmentLookup {
    /// The environment does not exist.
    Missing,
    /// The manager has been shut down.
    ShutDown,
    /// The handle.
    Ready(Arc<Environment>),
    /// A start is in progress.
    Starting(watch::Receiver<Option<StartOutcome>>),
    /// A start must be spawned.
    NeedsStart(PendingStart, watch::Receiver<Option<StartOutcome>>),
    /// The start failed recently and is not retried yet.
    Failed(Arc<EnvironmentOpenError>),
}

impl EnvironmentTable {
    /// Checks that the id is unused and the table accepts insertions.
    pub(super) fn check_free(&self, id: &EnvironmentId) -> Result<(), InsertError> {
        if self.entries.contains_key(id) {
            return Err(InsertError::InUse(id.clone()));
        }
        self.check_capacity(id)
    }

    /// Checks that the table accepts this id.
    pub(super) fn check_capacity(&self, id: &EnvironmentId) -> Result<(), InsertError> {
        if self.is_shut_down {
            return Err(InsertError::ShutDown);
        }
        if !self.entries.contains_key(id) && self.entries.len() >= MAX_ENVIRONMENTS {
            return Err(InsertError::TooMany);
        }
        Ok(())
    }

    /// Inserts an entry and returns the replaced one.
    pub(super) fn insert_entry(
        &mut self,
        id: EnvironmentId,
        entry: EnvironmentEntry,
    ) -> Option<EnvironmentEntry> {
        self.entries.insert(id, entry)
    }

    /// Removes an environment. Clears the default if it was this one.
    pub(super) fn remove(&mut self, id: &EnvironmentId) -> Option<EnvironmentEntry> {
        if self.default.as_ref() == Some(id) {
            self.default = None;
        }
        self.entries.remove(id)
    }

    /// Sets the default and returns whether that environment exists.
    pub(super) fn set_default(&mut self, id: Option<EnvironmentId>) -> bool {
        let exists = id.as_ref().is_none_or(|id| self.entries.contains_key(id));
        if exists {
            self.default = id;
        }
        exists
    }

    /// Removes everything and rejects insertions from then on.
    pub(super) fn shut_down(&mut self) -> BTreeMap<EnvironmentId, EnvironmentEntry> {
        self.is_shut_down = true;
        self.default = None;
        std::mem::take(&mut self.entries)
    }

    /// Looks up an environment, and prepares a start if one is needed.
    pub(super) fn find(&mut self, id: &EnvironmentId, requester: Requester) -> EnvironmentLookup {
        if self.is_shut_down {
            return EnvironmentLookup::ShutDown;
        }
        let Some(entry) = self.entries.get_mut(id) else {
            return EnvironmentLookup::Missing;
        };
        match &entry.state {
            StartState::Ready(handle) => return EnvironmentLookup::Ready(Arc::clone(handle)),
            StartState::Starting(in_progress) => {
                return EnvironmentLookup::Starting(in_progress.outcome.subscribe());
            }
            StartState::Failed { error, since } => match requester {
                Requester::Step { now } if now.duration_since(*since) < RETRY_AFTER => {
                    return EnvironmentLookup::Failed(Arc::clone(error));
                }
                Requester::Step { .. } | Requester::Caller => {}
            },
            StartState::NotStarted => {}
        }
        self.starts += 1;
        let start = StartNumber(self.starts);
        let (sender, outcome) = watch::channel(None);
        entry.state = StartState::Starting(StartInProgress {
            start,
            outcome: sender,
            task: None,
        });
        let pending = PendingStart {
            id: id.clone(),
            start,
            source: Arc::clone(&entry.source),
        };
        EnvironmentLookup::NeedsStart(pending, outcome)
    }

    /// Records the task of a start. Returns it if the start was superseded.
    pub(super) fn record_task(
        &mut self,
        id: &EnvironmentId,
        start: StartNumber,
        task: AbortHandle,
    ) -> Option<AbortHandle> {
        let Some(StartState::Starting(in_progress)) = self.current_state(id, start) else {
            return Some(task);
        };
        in_progress.task.replace(task)
    }

    /// Records the outcome of a start. Returns the channel to notify if the start is current.
    pub(super) fn record_outcome(
        &mut self,
        id: &EnvironmentId,
        start: StartNumber,
        outcome: &StartOutcome,
        now: Instant,
    ) -> Option<watch::Sender<Option<StartOutcome>>> {
        let state = self.current_state(id, start)?;
        let outcome = match outcome {
            Ok(handle) => StartState::Ready(Arc::clone(handle)),
            Err(error) => StartState::Failed {
                error: Arc::clone(error),
                since: now,
            },
        };
        match std::mem::replace(state, outcome) {
            StartState::Starting(in_progress) => Some(in_progress.outcome),
            StartState::NotStarted | StartState::Ready(_) | StartState::Failed { .. } => None,
        }
    }

    /// Returns the default.
    pub(super) fn default(&self) -> Option<EnvironmentId> {
        self.default.clone()
    }

    /// Returns all ids, sorted.
    pub(super) fn ids(&self) -> Vec<EnvironmentId> {
        self.entries.keys().cloned().collect()
    }

    /// Returns the state of an environment.
    pub(super) fn state(&self, id: &EnvironmentId) -> Option<EnvironmentState> {
        Some(match &self.entries.get(id)?.state {
            StartState::NotStarted => EnvironmentState::NotStarted,
            StartState::Starting(_) => EnvironmentState::Starting,
            StartState::Ready(handle) => EnvironmentState::Ready(Arc::clone(handle)),
            StartState::Failed { error, .. } => EnvironmentState::Failed(Arc::clone(error)),
        })
    }

    /// Captures the environments of `ids` that are ready, starting or failed.
    pub(super) fn snapshot<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a EnvironmentId>,
    ) -> EnvironmentSnapshot {
        let mut snapshot = EnvironmentSnapshot::default();
        for id in ids {
            match self.state(id) {
                Some(EnvironmentState::Ready(handle)) => {
                    snapshot.environments.insert(id.clone(), Some(handle));
                }
                Some(EnvironmentState::Starting) => {
                    snapshot.environments.insert(id.clone(), None);
                }
                Some(EnvironmentState::Failed(error)) => {
                    snapshot.failed.insert(id.clone(), error);
                }
                Some(EnvironmentState::NotStarted) | None => {}
            }
        }
        snapshot
    }

    /// Captures all environments.
    pub(super) fn snapshot_all(&self) -> EnvironmentSnapshot {
        self.snapshot(self.entries.keys())
    }

    /// Returns the state of an entry if the given start is current.
    fn current_state(&mut self, id: &EnvironmentId, start: StartNumber) -> Option<&mut StartState> {
        let state = &mut self.entries.get_mut(id)?.state;
        match state {
            StartState::Starting(in_progress) if in_progress.start == start => Some(state),
            StartState::Starting(_)
            | StartState::NotStarted
            | StartState::Ready(_)
            | StartState::Failed { .. } => None,
        }
    }
}
