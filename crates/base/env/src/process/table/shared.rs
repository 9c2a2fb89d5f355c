//! The table itself, shared by those who look after its processes.

use std::{
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_wire::{
    id::{IdTooLong, OutputSeq, ProcessId},
    process::{TerminateMode, WaitUntil},
};
use futures_util::future::join_all;

use super::{
    entries::{Ended, Entries, ProcessNumber, Removed, WhenFull},
    session::Session,
};
use crate::process::{ExecProcess, ProcessError};

/// Makes the part of an id that tells it from those of other tables.
type Suffix = Box<dyn FnMut() -> String + Send>;

/// The processes that a harness has going. Clones share them; when the last one is dropped, so are
/// the processes, which kills their trees.
#[derive(Clone)]
pub struct ProcessTable {
    state: Arc<Mutex<State>>,
}

pub(super) struct State {
    pub(super) entries: Entries,
    next: u64,
    suffix: Suffix,
}

/// A number and an id for a process that is about to start.
#[derive(Debug, Eq, PartialEq)]
pub struct Allocated {
    /// What a model calls it.
    pub number: ProcessNumber,
    /// What the environment calls it: the number and the table's suffix.
    pub id: ProcessId,
}

/// Caller: as many processes are going as the table takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0} processes are running already")]
pub struct TableFull(pub NonZeroUsize);

/// Why a process cannot be looked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Caller: it was never kept, or its end was shown, or it made room for another.
    #[error("unknown process number {0}")]
    Unknown(ProcessNumber),
    /// Caller: somebody else looks at it.
    #[error("process number {0} is in use")]
    Busy(ProcessNumber),
}

impl ProcessTable {
    /// Begins empty. `suffix` makes ids unique among tables, a UUID for one.
    pub fn new(
        capacity: NonZeroUsize,
        when_full: WhenFull,
        suffix: impl FnMut() -> String + Send + 'static,
    ) -> Self {
        let state = State {
            entries: Entries::new(capacity, when_full),
            next: 1,
            suffix: Box::new(suffix),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Protects those that were looked at last: so many of them do not make room for others.
    #[must_use]
    pub fn protecting(self, most_recent: usize) -> Self {
        self.lock().entries.protected = most_recent;
        self
    }

    /// Tells whether one more process would be kept now. Asked before a start whose process could not be.
    pub fn check_room(&self) -> Result<(), TableFull> {
        let state = self.lock();
        if state.entries.has_room() || state.entries.least().is_some() {
            return Ok(());
        }
        Err(TableFull(state.entries.capacity))
    }

    /// Gives out the next number, and an id `<number>-<suffix>`.
    pub fn allocate(&self) -> Result<Allocated, IdTooLong> {
        let mut state = self.lock();
        let number = ProcessNumber(state.next);
        let id = ProcessId::new(&format!("{number}-{}", (state.suffix)()))?;
        state.next += 1;
        Ok(Allocated { number, id })
    }

    /// Keeps a process that goes on after its first window, which showed its events up to `last`. In a
    /// full table one that has ended makes room, or one that runs if the policy says so; it is returned.
    pub fn keep(
        &self,
        allocated: Allocated,
        process: &Arc<dyn ExecProcess>,
        last: OutputSeq,
    ) -> Result<Option<Removed>, TableFull> {
        let mut state = self.lock();
        let mut removed = None;
        if !state.entries.has_room() {
            let room = state.entries.make_room();
            removed = Some(room.ok_or(TableFull(state.entries.capacity))?);
        }
        let process = Arc::clone(process);
        state.entries.insert(allocated.number, process, last);
        Ok(removed)
    }

    /// Takes a process out to look at it. It goes back when the session is dropped.
    pub fn open(&self, number: ProcessNumber) -> Result<Session, OpenError> {
        let mut state = self.lock();
        let entry = state.entries.by_number.get_mut(&number);
        let entry = entry.ok_or(OpenError::Unknown(number))?;
        if entry.busy {
            return Err(OpenError::Busy(number));
        }
        entry.busy = true;
        let (process, last) = (Arc::clone(&entry.process), entry.last);
        state.entries.touch(number);
        Ok(Session::new(self.clone(), number, process, last))
    }

    /// Returns the ends that were not told yet. The processes stay until their output was shown to
    /// the close, or they make room.
    pub fn newly_ended(&self) -> Vec<Ended> {
        let mut state = self.lock();
        let entries = state.entries.by_number.iter_mut();
        let ended = entries.filter_map(|(number, entry)| entry.tell_end(*number));
        ended.collect()
    }

    /// Removes all processes and ends them. Tells what became of each.
    pub async fn terminate_all(
        &self,
        mode: TerminateMode,
    ) -> Vec<(ProcessNumber, Result<bool, ProcessError>)> {
        let entries = std::mem::take(&mut self.lock().entries.by_number);
        let ends = entries.into_iter().map(|(number, entry)| async move {
            let mut outcome = entry.process.terminate(mode).await;
            if let (Ok(true), TerminateMode::Graceful { timeout_ms }) = (&outcome, mode) {
                // Dropping the handle kills at once, and some time was granted.
                let granted = Duration::from_millis(timeout_ms);
                let ended = entry.process.wait(WaitUntil::Exited, Some(granted));
                outcome = ended.await.map(|_| true);
            }
            (number, outcome)
        });
        join_all(ends).await
    }

    /// Returns how many processes are kept.
    pub fn len(&self) -> usize {
        self.lock().entries.by_number.len()
    }

    /// Tells whether no process is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ProcessTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessTable")
            .field("entries", &self.lock().entries)
            .finish_non_exhaustive()
    }
}
