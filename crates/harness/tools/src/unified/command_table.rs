//! The commands of one [`UnifiedExec`](super::UnifiedExec): one record each, under one lock.
//!
//! Invariants: a number is assigned once; one call at a time holds a command; the number of
//! commands is bounded, and a held command is never evicted.

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_wire::id::ProcessId;

use super::{
    call::CallId, exec_command::ExecCommandError, process::UnifiedExecProcess,
    settings::UnifiedExecSettings, write_stdin::WriteStdinError,
};

/// Number of a command, as the model sees it. Starts at 1 and is never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ProcessNumber(pub u64);

impl fmt::Display for ProcessNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Maximum number of remembered evictions.
const MAX_REMEMBERED_EVICTIONS: usize = 256;

/// The commands by number.
#[derive(Debug)]
pub(super) struct CommandTable {
    capacity: NonZeroUsize,
    /// Number of most recently used commands that are never evicted.
    protected: usize,
    state: Mutex<TableState>,
}

#[derive(Debug, Default)]
struct TableState {
    records: BTreeMap<ProcessNumber, CommandRecord>,
    last_number: u64,
    use_count: u64,
    is_closed: bool,
}

#[derive(Debug)]
enum CommandRecord {
    /// Its exit was not shown yet.
    Kept(KeptCommand),
    /// It was evicted for another command. Remembered for the error message.
    Evicted,
}

#[derive(Debug)]
struct KeptCommand {
    process: Arc<UnifiedExecProcess>,
    /// A call holds it.
    busy: bool,
    /// Value of `use_count` at the last use.
    last_used: u64,
}

impl CommandTable {
    /// Creates an empty table.
    pub(super) fn new(settings: &UnifiedExecSettings) -> Self {
        let capacity = settings.max_processes;
        Self {
            capacity,
            // If all commands were protected, a full table could not evict any.
            protected: settings.protected_processes.min(capacity.get() / 2),
            state: Mutex::default(),
        }
    }

    /// Assigns the next number, if a command would be accepted now.
    pub(super) fn allocate(&self) -> Result<ProcessNumber, ExecCommandError> {
        let mut state = self.lock();
        self.find_slot(&state)?;
        state.last_number += 1;
        Ok(ProcessNumber(state.last_number))
    }

    /// Inserts a started command, held by the call that started it. Returns the command that was
    /// evicted for it.
    pub(super) fn insert(
        &self,
        process: Arc<UnifiedExecProcess>,
    ) -> Result<Option<Arc<UnifiedExecProcess>>, ExecCommandError> {
        let mut state = self.lock();
        let evicted = match self.find_slot(&state)? {
            TableSlot::Free => None,
            TableSlot::HeldBy(number) => state.evict(number),
        };
        let command = KeptCommand {
            busy: true,
            last_used: state.next_use(),
            process,
        };
        let number = command.process.details.number;
        state.records.insert(number, CommandRecord::Kept(command));
        Ok(evicted)
    }

    /// Holds a command for a call.
    pub(super) fn check_out(
        &self,
        number: ProcessNumber,
    ) -> Result<Arc<UnifiedExecProcess>, WriteStdinError> {
        let mut state = self.lock();
        let last_used = state.next_use();
        match state.records.get_mut(&number) {
            None => Err(WriteStdinError::Unknown(number)),
            Some(CommandRecord::Evicted) => Err(WriteStdinError::Evicted(number, self.capacity)),
            Some(CommandRecord::Kept(command)) if command.busy => {
                Err(WriteStdinError::Busy(number))
            }
            Some(CommandRecord::Kept(command)) => {
                (command.busy, command.last_used) = (true, last_used);
                Ok(Arc::clone(&command.process))
            }
        }
    }

    /// Releases a command that a call held, unless it was removed.
    pub(super) fn check_in(&self, number: ProcessNumber) {
        let mut state = self.lock();
        let last_used = state.next_use();
        if let Some(CommandRecord::Kept(command)) = state.records.get_mut(&number) {
            (command.busy, command.last_used) = (false, last_used);
        }
    }

    /// Removes a command.
    pub(super) fn remove(&self, number: ProcessNumber) {
        self.lock().records.remove(&number);
    }

    /// Returns a command, also one that a call holds.
    pub(super) fn get(&self, number: ProcessNumber) -> Option<Arc<UnifiedExecProcess>> {
        let state = self.lock();
        let command = state.records.get(&number)?.as_kept()?;
        Some(Arc::clone(&command.process))
    }

    /// Returns the number of a command by its process id.
    pub(super) fn find(&self, id: &ProcessId) -> Option<ProcessNumber> {
        let state = self.lock();
        let mut kept = state.kept();
        let command = kept.find(|command| command.process.id() == id)?;
        Some(command.process.details.number)
    }

    /// Removes a command unless a call holds it. Returns whether it is gone.
    pub(super) fn remove_idle(&self, number: ProcessNumber) -> bool {
        let mut state = self.lock();
        match state.records.get(&number) {
            Some(CommandRecord::Kept(command)) if command.busy => false,
            _ => {
                state.records.remove(&number);
                true
            }
        }
    }

    /// Returns the latest command that a call started.
    pub(super) fn started_by(&self, call: &CallId) -> Option<Arc<UnifiedExecProcess>> {
        let state = self.lock();
        let mut latest_first = state.kept().rev();
        let command = latest_first.find(|command| command.process.details.call_id == *call)?;
        Some(Arc::clone(&command.process))
    }

    /// Returns all commands, by number.
    pub(super) fn all(&self) -> Vec<Arc<UnifiedExecProcess>> {
        let state = self.lock();
        state
            .kept()
            .map(|command| Arc::clone(&command.process))
            .collect()
    }

    /// Rejects further commands. Removes and returns all.
    pub(super) fn close(&self) -> Vec<Arc<UnifiedExecProcess>> {
        let mut state = self.lock();
        state.is_closed = true;
        let records = std::mem::take(&mut state.records);
        let kept = records.into_values().filter_map(CommandRecord::into_kept);
        kept.map(|command| command.process).collect()
    }

    /// Finds a slot for one more command.
    fn find_slot(&self, state: &TableState) -> Result<TableSlot, ExecCommandError> {
        if state.is_closed {
            return Err(ExecCommandError::ShutDown);
        }
        if state.kept().count() < self.capacity.get() {
            return Ok(TableSlot::Free);
        }
        let candidate = state.eviction_candidate(self.protected);
        let full = ExecCommandError::Full(self.capacity);
        candidate.map(TableSlot::HeldBy).ok_or(full)
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Place for one more command.
enum TableSlot {
    Free,
    /// The slot of this command, which is evicted.
    HeldBy(ProcessNumber),
}

impl TableState {
    fn kept(&self) -> impl DoubleEndedIterator<Item = &KeptCommand> {
        self.records.values().filter_map(CommandRecord::as_kept)
    }

    fn next_use(&mut self) -> u64 {
        self.use_count += 1;
        self.use_count
    }

    /// Returns the least recently used command that is not held or protected, ended ones first.
    fn eviction_candidate(&self, protected: usize) -> Option<ProcessNumber> {
        let mut by_use: Vec<_> = self.kept().collect();
        by_use.sort_by_key(|command| command.last_used);
        by_use.truncate(by_use.len().saturating_sub(protected));
        let mut idle = by_use.into_iter().filter(|command| !command.busy);
        let has_exited = |command: &&KeptCommand| command.process.process.status().exit.is_some();
        let candidate = idle.clone().find(has_exited).or_else(|| idle.next())?;
        Some(candidate.process.details.number)
    }

    /// Evicts a command, and forgets the oldest evictions.
    fn evict(&mut self, number: ProcessNumber) -> Option<Arc<UnifiedExecProcess>> {
        let record = self.records.insert(number, CommandRecord::Evicted);
        let is_evicted = |record: &CommandRecord| matches!(record, CommandRecord::Evicted);
        let evicted = || self.records.iter().filter(|(_, record)| is_evicted(record));
        if evicted().count() > MAX_REMEMBERED_EVICTIONS {
            let oldest = evicted().next().map(|(number, _)| *number);
            oldest.and_then(|number| self.records.remove(&number));
        }
        Some(record?.into_kept()?.process)
    }
}

impl CommandRecord {
    fn as_kept(&self) -> Option<&KeptCommand> {
        match self {
            Self::Kept(command) => Some(command),
            Self::Evicted => None,
        }
    }

    fn into_kept(self) -> Option<KeptCommand> {
        match self {
            Self::Kept(command) => Some(command),
            Self::Evicted => None,
        }
    }
}
