//! The table of the processes that a harness has started: numbers, ids, cursors, and a bound.
//!
//! Invariants: a number is assigned once; a process is checked out for each window of its output,
//! so that no two windows return the same bytes; its end is reported once. Not here: when to read
//! a process, and how to present its output.

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_core::output_log::ExitInfo;
use exec_wire::{
    id::{IdLengthError, OutputSeq, ProcessId},
    process::{TerminateMode, WaitUntil},
};
use futures_util::future::join_all;

use super::{CollectOptions, CollectedOutput, ExecProcess, ProcessError};

/// Generates the part of an id that is unique to this table.
type IdSuffix = Box<dyn FnMut() -> String + Send>;

/// The processes of a harness. Clones share them. Dropping the last clone drops the processes,
/// which kills their trees.
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
pub struct ProcessAllocation {
    /// Number that the model sees.
    pub number: ProcessNumber,
    /// Id in the environment: the number and the table's suffix.
    pub id: ProcessId,
}

/// Caller: the table is full.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("process table is full: {0} processes are running")]
pub struct TableFull(pub NonZeroUsize);

/// Why a process cannot be checked out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckoutError {
    /// Caller: the process was never inserted, its end was already shown, or it was evicted.
    #[error("unknown process number {0}")]
    Unknown(ProcessNumber),
    /// Caller: the process is checked out.
    #[error("process number {0} is in use")]
    Busy(ProcessNumber),
}

impl ProcessTable {
    /// Creates an empty table. `suffix` makes ids unique among tables, for example with a UUID.
    pub fn new(
        capacity: NonZeroUsize,
        when_full: EvictionPolicy,
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

    /// Protects the `most_recent` most recently used processes from eviction.
    #[must_use]
    pub fn with_protected(self, most_recent: usize) -> Self {
        self.lock().entries.protected = most_recent;
        self
    }

    /// Returns whether one more process would be accepted now. Call it before a start.
    pub fn check_capacity(&self) -> Result<(), TableFull> {
        let state = self.lock();
        if state.entries.has_capacity() || state.entries.eviction_candidate().is_some() {
            return Ok(());
        }
        Err(TableFull(state.entries.capacity))
    }

    /// Assigns the next number, and an id `<number>-<suffix>`.
    pub fn allocate(&self) -> Result<ProcessAllocation, IdLengthError> {
        let mut state = self.lock();
        let number = ProcessNumber(state.next_number);
        let id = ProcessId::new(&format!("{number}-{}", (state.suffix)()))?;
        state.next_number += 1;
        Ok(ProcessAllocation { number, id })
    }

    /// Inserts a process that continues after its first window, which returned its events up to
    /// `last`. A full table evicts an ended process, or a running one if the policy allows, and
    /// returns it.
    pub fn insert(
        &self,
        allocated: ProcessAllocation,
        process: &Arc<dyn ExecProcess>,
        last: OutputSeq,
    ) -> Result<Option<EvictedProcess>, TableFull> {
        let mut state = self.lock();
        let mut removed = None;
        if !state.entries.has_capacity() {
            let evicted = state.entries.evict();
            removed = Some(evicted.ok_or(TableFull(state.entries.capacity))?);
        }
        let process = Arc::clone(process);
        state.entries.insert(allocated.number, process, last);
        Ok(removed)
    }

    /// Checks out a process. It is returned when the session is dropped.
    pub fn check_out(&self, number: ProcessNumber) -> Result<ProcessCheckout, CheckoutError> {
        let mut state = self.lock();
        let entry = state.entries.by_number.get_mut(&number);
        let entry = entry.ok_or(CheckoutError::Unknown(number))?;
        if entry.busy {
            return Err(CheckoutError::Busy(number));
        }
        entry.busy = true;
        let (process, last) = (Arc::clone(&entry.process), entry.last);
        state.entries.touch(number);
        Ok(ProcessCheckout::new(self.clone(), number, process, last))
    }

    /// Returns the ends that were not reported yet. The processes stay until their output was read
    /// to the close, or until they are evicted.
    pub fn take_ended(&self) -> Vec<ProcessEnd> {
        let mut state = self.lock();
        let entries = state.entries.by_number.iter_mut();
        let ended = entries.filter_map(|(number, entry)| entry.report_end(*number));
        ended.collect()
    }

    /// Removes and terminates all processes. Returns the outcome of each.
    pub async fn terminate_all(
        &self,
        mode: TerminateMode,
    ) -> Vec<(ProcessNumber, Result<bool, ProcessError>)> {
        let entries = std::mem::take(&mut self.lock().entries.by_number);
        let ends = entries.into_iter().map(|(number, entry)| async move {
            let mut outcome = entry.process.terminate(mode).await;
            if let (Ok(true), TerminateMode::Graceful { timeout_ms }) = (&outcome, mode) {
                // Dropping the handle kills immediately, so wait for the grace period first.
                let granted = Duration::from_millis(timeout_ms);
                let ended = entry.process.wait(WaitUntil::Exited, Some(granted));
                outcome = ended.await.map(|_| true);
            }
            (number, outcome)
        });
        join_all(ends).await
    }

    /// Returns the number of processes.
    pub fn len(&self) -> usize {
        self.lock().entries.by_number.len()
    }

    /// Returns whether the table is empty.
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

/// Exclusive access to a process of a table.
#[derive(Debug)]
pub struct ProcessCheckout {
    table: ProcessTable,
    number: ProcessNumber,
    process: Arc<dyn ExecProcess>,
    last: OutputSeq,
}

/// A window of output of a process of a table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OutputWindow {
    /// The collected output.
    pub collected: CollectedOutput,
    /// The end of the process, if it has ended and was not reported before.
    pub ended: Option<ProcessEnd>,
}

impl ProcessCheckout {
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

    /// Collects the output after the last window. Removes the process from the table after its
    /// close or its failure. Dropping the future loses nothing: the next window starts at the same
    /// cursor.
    pub async fn collect(
        &mut self,
        window: Duration,
        max_bytes: usize,
    ) -> Result<OutputWindow, ProcessError> {
        let collect = CollectOptions {
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
        Ok(OutputWindow { collected, ended })
    }

    /// Removes the process from the table.
    pub fn forget(self) {
        self.table.lock().entries.by_number.remove(&self.number);
    }

    /// Returns the process, to write to it or to terminate it.
    pub fn process(&self) -> &Arc<dyn ExecProcess> {
        &self.process
    }

    /// Returns its number.
    pub fn number(&self) -> ProcessNumber {
        self.number
    }

    /// Returns the last sequence number that a window has returned.
    pub fn last(&self) -> OutputSeq {
        self.last
    }
}

impl Drop for ProcessCheckout {
    fn drop(&mut self) {
        let mut state = self.table.lock();
        if let Some(entry) = state.entries.by_number.get_mut(&self.number) {
            entry.busy = false;
        }
        state.entries.touch(self.number);
    }
}

/// Number of a process in one table, as the model sees it. Starts at 1 and is never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ProcessNumber(pub u64);

impl fmt::Display for ProcessNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a full table of running processes handles an insertion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EvictionPolicy {
    /// Rejects the new process.
    Refuse,
    /// Evicts the least recently used process.
    EvictLeastRecentlyUsed,
}

/// A process that was evicted.
#[derive(Clone, Debug)]
pub struct EvictedProcess {
    /// Its former number.
    pub number: ProcessNumber,
    /// The process. If it still runs, dropping the last handle kills its tree.
    pub process: Arc<dyn ExecProcess>,
    /// Its end, if it has ended and was not reported before.
    pub ended: Option<ProcessEnd>,
}

/// The end of a process, reported once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessEnd {
    /// Its number.
    pub number: ProcessNumber,
    /// Its id.
    pub id: ProcessId,
    /// Its exit status.
    pub exit: ExitInfo,
}

/// A process of a table.
#[derive(Debug)]
struct TableEntry {
    process: Arc<dyn ExecProcess>,
    /// Last sequence number that a window has returned.
    last: OutputSeq,
    /// The process is checked out.
    busy: bool,
    /// The end was reported.
    end_reported: bool,
    /// Value of `use_count` at the last use.
    last_used: u64,
}

impl TableEntry {
    /// Returns the end of the process, the first time only.
    fn report_end(&mut self, number: ProcessNumber) -> Option<ProcessEnd> {
        if self.end_reported {
            return None;
        }
        let exit = self.process.status().exit?;
        self.end_reported = true;
        let id = self.process.id().clone();
        Some(ProcessEnd { number, id, exit })
    }
}

/// The processes by number.
#[derive(Debug)]
struct TableEntries {
    capacity: NonZeroUsize,
    when_full: EvictionPolicy,
    by_number: BTreeMap<ProcessNumber, TableEntry>,
    /// Number of most recently used processes that are never evicted.
    protected: usize,
    use_count: u64,
}

impl TableEntries {
    fn new(capacity: NonZeroUsize, when_full: EvictionPolicy) -> Self {
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

    /// Records a use of a process.
    fn touch(&mut self, number: ProcessNumber) {
        self.use_count += 1;
        if let Some(entry) = self.by_number.get_mut(&number) {
            entry.last_used = self.use_count;
        }
    }

    /// Returns whether the table has room for one more process.
    fn has_capacity(&self) -> bool {
        self.by_number.len() < self.capacity.get()
    }

    /// Returns the process to evict: an ended one, or the one that the policy selects. Never
    /// returns a process that is checked out or protected.
    fn eviction_candidate(&self) -> Option<ProcessNumber> {
        let mut uses: Vec<u64> = self
            .by_number
            .values()
            .map(|entry| entry.last_used)
            .collect();
        uses.sort_unstable_by(|one, other| other.cmp(one));
        // The least recently used of the protected processes.
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
            (None, EvictionPolicy::Refuse) => None,
            (None, EvictionPolicy::EvictLeastRecentlyUsed) => oldest(false),
        }
    }

    /// Evicts a process.
    fn evict(&mut self) -> Option<EvictedProcess> {
        let number = self.eviction_candidate()?;
        let mut entry = self.by_number.remove(&number)?;
        let ended = entry.report_end(number);
        Some(EvictedProcess {
            number,
            process: entry.process,
            ended,
        })
    }
}
