//! The table of the processes that a harness has started: numbers, ids, cursors, and a bound.
//!
//! Invariants: a number is assigned once; a process is checked out for each window of its output,
//! so that no two windows return the same bytes; its end is reported once. Not here: when to read
//! a process, and how to present its output.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_core::log::Exit;
use exec_wire::{
    id::{IdTooLong, OutputSeq, ProcessId},
    process::{TerminateMode, WaitUntil},
};
use futures_util::future::join_all;

use super::{Collect, Collected, ExecProcess, ProcessError};

/// Makes the part of an id that tells it from those of other tables.
type IdSuffix = Box<dyn FnMut() -> String + Send>;

/// The processes that a harness has going. Clones share them; when the last one is dropped, so are
/// the processes, which kills their trees.
#[derive(Clone)]
pub struct ProcessTable {
    state: Arc<Mutex<TableState>>,
}

struct TableState {
    entries: TableEntries,
    next_number: u64,
    suffix: IdSuffix,
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
        let state = TableState {
            entries: TableEntries::new(capacity, when_full),
            next_number: 1,
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
        if state.entries.has_capacity() || state.entries.eviction_candidate().is_some() {
            return Ok(());
        }
        Err(TableFull(state.entries.capacity))
    }

    /// Gives out the next number, and an id `<number>-<suffix>`.
    pub fn allocate(&self) -> Result<Allocated, IdTooLong> {
        let mut state = self.lock();
        let number = ProcessNumber(state.next_number);
        let id = ProcessId::new(&format!("{number}-{}", (state.suffix)()))?;
        state.next_number += 1;
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
        if !state.entries.has_capacity() {
            let room = state.entries.evict();
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
    pub fn take_ended(&self) -> Vec<Ended> {
        let mut state = self.lock();
        let entries = state.entries.by_number.iter_mut();
        let ended = entries.filter_map(|(number, entry)| entry.report_end(*number));
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

    fn lock(&self) -> MutexGuard<'_, TableState> {
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

/// A process of a table that nobody else looks at meanwhile.
#[derive(Debug)]
pub struct Session {
    table: ProcessTable,
    number: ProcessNumber,
    process: Arc<dyn ExecProcess>,
    last: OutputSeq,
}

/// A window of output of a process that a table keeps.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Windowed {
    /// What was gathered.
    pub collected: Collected,
    /// The end of the process, if it came and was not told before.
    pub ended: Option<Ended>,
}

impl Session {
    fn new(
        table: ProcessTable,
        number: ProcessNumber,
        process: Arc<dyn ExecProcess>,
        last: OutputSeq,
    ) -> Self {
        Self {
            table,
            number,
            process,
            last,
        }
    }

    /// Gathers what comes behind the last window. A process whose close was shown, or that nothing
    /// more can be learned of, is removed from the table. Dropping the future loses nothing: the
    /// next window begins where this one did.
    pub async fn collect(
        &mut self,
        window: Duration,
        max_bytes: usize,
    ) -> Result<Windowed, ProcessError> {
        let collect = Collect {
            after: self.last,
            window,
            max_bytes,
        };
        let collected = self.process.collect(collect).await;
        let mut state = self.table.lock();
        let by_number = &mut state.entries.by_number;
        let collected = match collected {
            Ok(collected) => collected,
            Err(error) => {
                by_number.remove(&self.number);
                return Err(error);
            }
        };
        self.last = collected.last;
        let mut ended = None;
        if let Some(entry) = by_number.get_mut(&self.number) {
            entry.last = collected.last;
            if !collected.running {
                ended = entry.report_end(self.number);
            }
        }
        if collected.closed {
            by_number.remove(&self.number);
        }
        Ok(Windowed { collected, ended })
    }

    /// Removes the process from the table.
    pub fn forget(self) {
        self.table.lock().entries.by_number.remove(&self.number);
    }

    /// Returns the process, to write to it or to end it.
    pub fn process(&self) -> &Arc<dyn ExecProcess> {
        &self.process
    }

    /// Returns its number.
    pub fn number(&self) -> ProcessNumber {
        self.number
    }

    /// Returns the last number that a window has shown.
    pub fn last(&self) -> OutputSeq {
        self.last
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut state = self.table.lock();
        if let Some(entry) = state.entries.by_number.get_mut(&self.number) {
            entry.busy = false;
        }
        state.entries.touch(self.number);
    }
}

/// A process of one table, as a model names it. Counted from 1; given once.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ProcessNumber(pub u64);

impl fmt::Display for ProcessNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a full table does with one more process, if none of its own has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WhenFull {
    /// Does not take it.
    Refuse,
    /// Gives up the one that nobody has looked at for the longest time.
    GiveUpLeastRecentlyUsed,
}

/// A process that made room for another.
#[derive(Clone, Debug)]
pub struct Removed {
    /// Its number, which names nothing any more.
    pub number: ProcessNumber,
    /// The process. If it runs, dropping the last handle kills its tree.
    pub process: Arc<dyn ExecProcess>,
    /// Its end, if it has ended and that was not told before.
    pub ended: Option<Ended>,
}

/// The end of a process. Told once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ended {
    /// Its number.
    pub number: ProcessNumber,
    /// Its id.
    pub id: ProcessId,
    /// How it ended.
    pub exit: Exit,
}

/// A process of a table.
#[derive(Debug)]
struct TableEntry {
    process: Arc<dyn ExecProcess>,
    /// The last number that a window has shown.
    last: OutputSeq,
    /// A session is open.
    busy: bool,
    /// Its end was told.
    end_reported: bool,
    /// When it was looked at, counted in looks.
    last_used: u64,
}

impl TableEntry {
    /// Returns its end, the first time that it has one.
    fn report_end(&mut self, number: ProcessNumber) -> Option<Ended> {
        if self.end_reported {
            return None;
        }
        let exit = self.process.status().exit?;
        self.end_reported = true;
        let id = self.process.id().clone();
        Some(Ended { number, id, exit })
    }
}

/// The processes by number.
#[derive(Debug)]
struct TableEntries {
    capacity: NonZeroUsize,
    when_full: WhenFull,
    by_number: BTreeMap<ProcessNumber, TableEntry>,
    /// So many of those looked at last do not make room.
    protected: usize,
    use_count: u64,
}

impl TableEntries {
    fn new(capacity: NonZeroUsize, when_full: WhenFull) -> Self {
        Self {
            capacity,
            when_full,
            by_number: BTreeMap::new(),
            protected: 0,
            use_count: 0,
        }
    }

    /// Adds a process.
    fn insert(&mut self, number: ProcessNumber, process: Arc<dyn ExecProcess>, last: OutputSeq) {
        let entry = TableEntry {
            process,
            last,
            busy: false,
            end_reported: false,
            last_used: 0,
        };
        self.by_number.insert(number, entry);
        self.touch(number);
    }

    /// Records that somebody looks at a process.
    fn touch(&mut self, number: ProcessNumber) {
        self.use_count += 1;
        if let Some(entry) = self.by_number.get_mut(&number) {
            entry.last_used = self.use_count;
        }
    }

    /// Tells whether one more fits.
    fn has_capacity(&self) -> bool {
        self.by_number.len() < self.capacity.get()
    }

    /// Returns the process that matters least: one that has ended, or as the policy says. It is never
    /// one that a session is open for, nor one of those that are protected.
    fn eviction_candidate(&self) -> Option<ProcessNumber> {
        let mut uses: Vec<u64> = self
            .by_number
            .values()
            .map(|entry| entry.last_used)
            .collect();
        uses.sort_unstable_by(|one, other| other.cmp(one));
        // The least recent of those that stay.
        let protected = self.protected.checked_sub(1).map(|last| uses.get(last));
        let oldest = |ended: bool| {
            let idle = self.by_number.iter().filter(|(_, entry)| {
                let stays =
                    protected.is_some_and(|last| last.is_none_or(|last| entry.last_used >= *last));
                !entry.busy && !stays
            });
            idle.filter(|(_, entry)| entry.process.status().exit.is_some() == ended)
                .min_by_key(|(_, entry)| entry.last_used)
                .map(|(number, _)| *number)
        };
        match (oldest(true), self.when_full) {
            (Some(number), _) => Some(number),
            (None, WhenFull::Refuse) => None,
            (None, WhenFull::GiveUpLeastRecentlyUsed) => oldest(false),
        }
    }

    /// Removes the process that matters least.
    fn evict(&mut self) -> Option<Removed> {
        let number = self.eviction_candidate()?;
        let mut entry = self.by_number.remove(&number)?;
        let ended = entry.report_end(number);
        Some(Removed {
            number,
            process: entry.process,
            ended,
        })
    }
}
