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
pub(super) type Outcome = Result<Arc<Environment>, Arc<OpenError>>;

/// All environments of a manager.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<EnvironmentId, Entry>,
    default: Option<EnvironmentId>,
    starts: u64,
    is_shut_down: bool,
}

/// What is under one id.
#[derive(Debug)]
pub(super) struct Entry {
    source: Arc<dyn EnvironmentSource>,
    standing: Standing,
}

impl Entry {
    /// Takes a source, and what it has at hand.
    pub(super) fn new(source: Arc<dyn EnvironmentSource>) -> Self {
        let at_hand = source.at_hand().map(Arc::new);
        let standing = at_hand.map_or(Standing::NotStarted, Standing::Ready);
        Self { source, standing }
    }

    /// Returns the task that is opening it, if one is.
    pub(super) fn task(&self) -> Option<&AbortHandle> {
        match &self.standing {
            Standing::Starting(under_way) => under_way.task.as_ref(),
            Standing::NotStarted | Standing::Ready(_) | Standing::Failed { .. } => None,
        }
    }
}

/// How far one is.
#[derive(Debug)]
enum Standing {
    NotStarted,
    Starting(UnderWay),
    Ready(Arc<Environment>),
    Failed {
        error: Arc<OpenError>,
        since: Instant,
    },
}

/// A start that is under way.
#[derive(Debug)]
struct UnderWay {
    start: StartNumber,
    /// Tells those who wait. Whoever takes the start away drops it, and they look again.
    outcome: watch::Sender<Option<Outcome>>,
    /// Absent for the moment between deciding and spawning.
    task: Option<AbortHandle>,
}

/// Numbers the starts of a manager. One is given once, so that a start knows whether it is current.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct StartNumber(u64);

/// A start that was decided and has to be spawned.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) id: EnvironmentId,
    pub(super) start: StartNumber,
    pub(super) source: Arc<dyn EnvironmentSource>,
}

/// Who asks for an environment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
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
pub(super) enum Found {
    /// Nothing.
    Missing,
    /// The manager has been shut down.
    ShutDown,
    /// The handle.
    Ready(Arc<Environment>),
    /// A start that others began.
    Starting(watch::Receiver<Option<Outcome>>),
    /// A start that has to be spawned.
    Decided(Decided, watch::Receiver<Option<Outcome>>),
    /// A failure that is not tried again yet.
    Failed(Arc<OpenError>),
}

impl Table {
    /// Tells whether an entry may be put under an id that is free.
    pub(super) fn check_free(&self, id: &EnvironmentId) -> Result<(), InsertError> {
        if self.entries.contains_key(id) {
            return Err(InsertError::InUse(id.clone()));
        }
        self.check_room(id)
    }

    /// Tells whether an entry may be put under an id.
    pub(super) fn check_room(&self, id: &EnvironmentId) -> Result<(), InsertError> {
        if self.is_shut_down {
            return Err(InsertError::ShutDown);
        }
        if !self.entries.contains_key(id) && self.entries.len() >= MAX_ENVIRONMENTS {
            return Err(InsertError::TooMany);
        }
        Ok(())
    }

    /// Puts an entry under an id. Returns what was there.
    pub(super) fn put(&mut self, id: EnvironmentId, entry: Entry) -> Option<Entry> {
        self.entries.insert(id, entry)
    }

    /// Takes an environment away. The default of that name is none then.
    pub(super) fn remove(&mut self, id: &EnvironmentId) -> Option<Entry> {
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
    pub(super) fn shut_down(&mut self) -> BTreeMap<EnvironmentId, Entry> {
        self.is_shut_down = true;
        self.default = None;
        std::mem::take(&mut self.entries)
    }

    /// Finds an environment for `asker`, and decides on a start if it takes one.
    pub(super) fn find(&mut self, id: &EnvironmentId, asker: Asker) -> Found {
        if self.is_shut_down {
            return Found::ShutDown;
        }
        let Some(entry) = self.entries.get_mut(id) else {
            return Found::Missing;
        };
        match &entry.standing {
            Standing::Ready(handle) => return Found::Ready(Arc::clone(handle)),
            Standing::Starting(under_way) => {
                return Found::Starting(under_way.outcome.subscribe());
            }
            Standing::Failed { error, since } => match asker {
                Asker::Step { now } if now.duration_since(*since) < RETRY_AFTER => {
                    return Found::Failed(Arc::clone(error));
                }
                Asker::Step { .. } | Asker::Caller => {}
            },
            Standing::NotStarted => {}
        }
        self.starts += 1;
        let start = StartNumber(self.starts);
        let (sender, outcome) = watch::channel(None);
        entry.standing = Standing::Starting(UnderWay {
            start,
            outcome: sender,
            task: None,
        });
        let decided = Decided {
            id: id.clone(),
            start,
            source: Arc::clone(&entry.source),
        };
        Found::Decided(decided, outcome)
    }

    /// Records the task of a start. Gives it back if the start is not current any more.
    pub(super) fn record_task(
        &mut self,
        id: &EnvironmentId,
        start: StartNumber,
        task: AbortHandle,
    ) -> Option<AbortHandle> {
        let Some(Standing::Starting(under_way)) = self.current(id, start) else {
            return Some(task);
        };
        under_way.task.replace(task)
    }

    /// Records what a start came to. Returns who has to be told, if it is the current one.
    pub(super) fn record_outcome(
        &mut self,
        id: &EnvironmentId,
        start: StartNumber,
        outcome: &Outcome,
        now: Instant,
    ) -> Option<watch::Sender<Option<Outcome>>> {
        let standing = self.current(id, start)?;
        let outcome = match outcome {
            Ok(handle) => Standing::Ready(Arc::clone(handle)),
            Err(error) => Standing::Failed {
                error: Arc::clone(error),
                since: now,
            },
        };
        match std::mem::replace(standing, outcome) {
            Standing::Starting(under_way) => Some(under_way.outcome),
            Standing::NotStarted | Standing::Ready(_) | Standing::Failed { .. } => None,
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
        Some(match &self.entries.get(id)?.standing {
            Standing::NotStarted => EnvironmentState::NotStarted,
            Standing::Starting(_) => EnvironmentState::Starting,
            Standing::Ready(handle) => EnvironmentState::Ready(Arc::clone(handle)),
            Standing::Failed { error, .. } => EnvironmentState::Failed(Arc::clone(error)),
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
    fn current(&mut self, id: &EnvironmentId, start: StartNumber) -> Option<&mut Standing> {
        let standing = &mut self.entries.get_mut(id)?.standing;
        match standing {
            Standing::Starting(under_way) if under_way.start == start => Some(standing),
            Standing::Starting(_)
            | Standing::NotStarted
            | Standing::Ready(_)
            | Standing::Failed { .. } => None,
        }
    }
}
