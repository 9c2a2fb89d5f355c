//! The environments and how far each is: what is decided under the lock. Nothing waits here, and no
//! handle is dropped here: what a handle does when it is dropped is not known.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use exec_env::environment::Environment;
use tokio::{sync::watch, task::AbortHandle, time::Instant};

use super::{
    InsertError,
    environment_id::EnvironmentId,
    snapshot::{EnvironmentSnapshot, EnvironmentState},
    source::{EnvironmentSource, OpenError},
};

/// Environments of one manager: each may hold a connection or a child process.
pub const MAX_ENVIRONMENTS: usize = 256;

/// How long after a failure an environment is left alone by steps that would merely like to have it.
/// Who asks for it by name is not held back.
pub const RETRY_AFTER: Duration = Duration::from_secs(30);

/// What a start comes to.
pub(super) type StartOutcome = Result<Arc<Environment>, Arc<OpenError>>;

/// All environments of a manager.
#[derive(Debug, Default)]
pub(super) struct EnvironmentTable {
    entries: BTreeMap<EnvironmentId, EnvironmentEntry>,
    default: Option<EnvironmentId>,
    starts: u64,
    is_shut_down: bool,
}

/// What is under one id.
#[derive(Debug)]
pub(super) struct EnvironmentEntry {
    source: Arc<dyn EnvironmentSource>,
    state: StartState,
}

impl EnvironmentEntry {
    /// Takes a source, and what it has at hand.
    pub(super) fn new(source: Arc<dyn EnvironmentSource>) -> Self {
        let already_open = source.already_open().map(Arc::new);
        let state = already_open.map_or(StartState::NotStarted, StartState::Ready);
        Self { source, state }
    }

    /// Returns the task that is opening it, if one is.
    pub(super) fn task(&self) -> Option<&AbortHandle> {
        match &self.state {
            StartState::Starting(in_progress) => in_progress.task.as_ref(),
            StartState::NotStarted | StartState::Ready(_) | StartState::Failed { .. } => None,
        }
    }
}

/// How far one is.
#[derive(Debug)]
enum StartState {
    NotStarted,
    Starting(StartInProgress),
    Ready(Arc<Environment>),
    Failed {
        error: Arc<OpenError>,
        since: Instant,
    },
}

/// A start that is under way.
#[derive(Debug)]
struct StartInProgress {
    start: StartNumber,
    /// Tells those who wait. Whoever takes the start away drops it, and they look again.
    outcome: watch::Sender<Option<StartOutcome>>,
    /// Absent for the moment between deciding and spawning.
    task: Option<AbortHandle>,
}

/// Numbers the starts of a manager. One is given once, so that a start knows whether it is current.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct StartNumber(u64);

/// A start that was decided and has to be spawned.
#[derive(Debug)]
pub(super) struct PendingStart {
    pub(super) id: EnvironmentId,
    pub(super) start: StartNumber,
    pub(super) source: Arc<dyn EnvironmentSource>,
}

/// Who asks for an environment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Requester {
    /// Somebody who needs it: a failure is tried again at once.
    Caller,
    /// A step that would use it: a failure is tried again after [`RETRY_AFTER`].
    Step {
        /// When.
        now: Instant,
    },
}

/// What is there for whoever asks.
#[derive(Debug)]
pub(super) enum EnvironmentLookup {
    /// Nothing.
    Missing,
    /// The manager has been shut down.
    ShutDown,
    /// The handle.
    Ready(Arc<Environment>),
    /// A start that others began.
    Starting(watch::Receiver<Option<StartOutcome>>),
    /// A start that has to be spawned.
    NeedsStart(PendingStart, watch::Receiver<Option<StartOutcome>>),
    /// A failure that is not tried again yet.
    Failed(Arc<OpenError>),
}

impl EnvironmentTable {
    /// Tells whether an entry may be put under an id that is free.
    pub(super) fn check_free(&self, id: &EnvironmentId) -> Result<(), InsertError> {
        if self.entries.contains_key(id) {
            return Err(InsertError::InUse(id.clone()));
        }
        self.check_capacity(id)
    }

    /// Tells whether an entry may be put under an id.
    pub(super) fn check_capacity(&self, id: &EnvironmentId) -> Result<(), InsertError> {
        if self.is_shut_down {
            return Err(InsertError::ShutDown);
        }
        if !self.entries.contains_key(id) && self.entries.len() >= MAX_ENVIRONMENTS {
            return Err(InsertError::TooMany);
        }
        Ok(())
    }

    /// Puts an entry under an id. Returns what was there.
    pub(super) fn insert_entry(
        &mut self,
        id: EnvironmentId,
        entry: EnvironmentEntry,
    ) -> Option<EnvironmentEntry> {
        self.entries.insert(id, entry)
    }

    /// Takes an environment away. The default of that name is none then.
    pub(super) fn remove(&mut self, id: &EnvironmentId) -> Option<EnvironmentEntry> {
        if self.default.as_ref() == Some(id) {
            self.default = None;
        }
        self.entries.remove(id)
    }

    /// Sets the default; returns whether that environment exists.
    pub(super) fn set_default(&mut self, id: Option<EnvironmentId>) -> bool {
        let exists = id.as_ref().is_none_or(|id| self.entries.contains_key(id));
        if exists {
            self.default = id;
        }
        exists
    }

    /// Takes everything away, and nothing in any more.
    pub(super) fn shut_down(&mut self) -> BTreeMap<EnvironmentId, EnvironmentEntry> {
        self.is_shut_down = true;
        self.default = None;
        std::mem::take(&mut self.entries)
    }

    /// Finds an environment for `asker`, and decides on a start if it takes one.
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

    /// Records the task of a start. Gives it back if the start is not current any more.
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

    /// Records what a start came to. Returns who has to be told, if it is the current one.
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

    /// Returns all ids, in their order.
    pub(super) fn ids(&self) -> Vec<EnvironmentId> {
        self.entries.keys().cloned().collect()
    }

    /// Tells how far an environment is.
    pub(super) fn state(&self, id: &EnvironmentId) -> Option<EnvironmentState> {
        Some(match &self.entries.get(id)?.state {
            StartState::NotStarted => EnvironmentState::NotStarted,
            StartState::Starting(_) => EnvironmentState::Starting,
            StartState::Ready(handle) => EnvironmentState::Ready(Arc::clone(handle)),
            StartState::Failed { error, .. } => EnvironmentState::Failed(Arc::clone(error)),
        })
    }

    /// Captures those of `ids` that are ready, starting or failed.
    pub(super) fn snapshot<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a EnvironmentId>,
    ) -> EnvironmentSnapshot {
        let mut snapshot = EnvironmentSnapshot::default();
        for id in ids {
            match self.state(id) {
                Some(EnvironmentState::Ready(handle)) => snapshot.record_ready(id.clone(), handle),
                Some(EnvironmentState::Starting) => snapshot.record_starting(id.clone()),
                Some(EnvironmentState::Failed(error)) => snapshot.record_failed(id.clone(), error),
                Some(EnvironmentState::NotStarted) | None => {}
            }
        }
        snapshot
    }

    /// Captures all environments.
    pub(super) fn snapshot_all(&self) -> EnvironmentSnapshot {
        self.snapshot(self.entries.keys())
    }

    /// Returns the standing that a start may change: only while it is the current one.
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
