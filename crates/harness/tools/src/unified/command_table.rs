//! The commands of one [`UnifiedExec`](super::UnifiedExec): one record each, under one lock.
//!
//! Invariants: a number is assigned once; one call at a time holds a command; the number of
//! commands is bounded, and a held command is never evicted.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    kept: BTreeMap<ProcessNumber, KeptCommand>,
    /// Commands that were evicted for others. Remembered for the error message.
    evicted: BTreeSet<ProcessNumber>,
    last_number: u64,
    use_count: u64,
    is_closed: bool,
}

/// A command whose exit was not shown yet.
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
        let evicted = self.find_slot(&state)?;
        let evicted = evicted.and_then(|number| state.evict(number));
        let command = KeptCommand {
            busy: true,
            last_used: state.next_use(),
            process,
        };
        state.kept.insert(command.process.details.number, command);
        Ok(evicted)
    }

    /// Holds a command for a call.
    pub(super) fn check_out(
        &self,
        number: ProcessNumber,
    ) -> Result<Arc<UnifiedExecProcess>, WriteStdinError> {
        let state = &mut *self.lock();
        let last_used = state.next_use();
        match state.kept.get_mut(&number) {
            Some(command) if command.busy => Err(WriteStdinError::Busy(number)),
            Some(command) => {
                (command.busy, command.last_used) = (true, last_used);
                Ok(Arc::clone(&command.process))
            }
            None if state.evicted.contains(&number) => {
                Err(WriteStdinError::Evicted(number, self.capacity))
            }
            None => Err(WriteStdinError::Unknown(number)),
        }
    }

    /// Releases a command that a call held, unless it was removed.
    pub(super) fn check_in(&self, number: ProcessNumber) {
        let mut state = self.lock();
        let last_used = state.next_use();
        if let Some(command) = state.kept.get_mut(&number) {
            (command.busy, command.last_used) = (false, last_used);
        }
    }

    /// Removes a command.
    pub(super) fn remove(&self, number: ProcessNumber) {
        self.lock().kept.remove(&number);
    }

    /// Returns a command, also one that a call holds.
    pub(super) fn get(&self, number: ProcessNumber) -> Option<Arc<UnifiedExecProcess>> {
        let state = self.lock();
        Some(Arc::clone(&state.kept.get(&number)?.process))
    }

    /// Returns the number of a command by its process id.
    pub(super) fn find(&self, id: &ProcessId) -> Option<ProcessNumber> {
        let state = self.lock();
        let mut kept = state.kept.iter();
        let (number, _) = kept.find(|(_, command)| command.process.id() == id)?;
        Some(*number)
    }

    /// Removes a command unless a call holds it. Returns whether it is gone.
    pub(super) fn remove_idle(&self, number: ProcessNumber) -> bool {
        let mut state = self.lock();
        let is_held = state.kept.get(&number).is_some_and(|kept| kept.busy);
        if !is_held {
            state.kept.remove(&number);
            state.evicted.remove(&number);
        }
        !is_held
    }

    /// Returns the latest command that a call started.
    pub(super) fn started_by(&self, call: &CallId) -> Option<Arc<UnifiedExecProcess>> {
        let state = self.lock();
        let mut latest_first = state.kept.values().rev();
        let command = latest_first.find(|command| command.process.details.call_id == *call)?;
        Some(Arc::clone(&command.process))
    }

    /// Returns all commands, by number.
    pub(super) fn all(&self) -> Vec<Arc<UnifiedExecProcess>> {
        let state = self.lock();
        let kept = state.kept.values();
        kept.map(|command| Arc::clone(&command.process)).collect()
    }

    /// Rejects further commands. Removes and returns all.
    pub(super) fn close(&self) -> Vec<Arc<UnifiedExecProcess>> {
        let closed = TableState {
            is_closed: true,
            ..TableState::default()
        };
        let state = std::mem::replace(&mut *self.lock(), closed);
        let kept = state.kept.into_values();
        kept.map(|command| command.process).collect()
    }

    /// Finds a slot for one more command. Returns the command to evict from it, if it is not free.
    fn find_slot(&self, state: &TableState) -> Result<Option<ProcessNumber>, ExecCommandError> {
        if state.is_closed {
            return Err(ExecCommandError::ShutDown);
        }
        if state.kept.len() < self.capacity.get() {
            return Ok(None);
        }
        let candidate = state.eviction_candidate(self.protected);
        candidate
            .map(Some)
            .ok_or(ExecCommandError::Full(self.capacity))
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableState {
    fn next_use(&mut self) -> u64 {
        self.use_count += 1;
        self.use_count
    }

    /// Returns the least recently used command that is not held or protected, ended ones first.
    fn eviction_candidate(&self, protected: usize) -> Option<ProcessNumber> {
        let mut by_use: Vec<_> = self.kept.values().collect();
        by_use.sort_by_key(|command| command.last_used);
        by_use.truncate(by_use.len().saturating_sub(protected));
        let mut idle = by_use.into_iter().filter(|command| !command.busy);
        let has_exited = |command: &&KeptCommand| command.process.process.status().exit.is_some();
        let candidate = idle.clone().find(has_exited).or_else(|| idle.next())?;
        Some(candidate.process.details.number)
    }

    /// Evicts a command, and forgets the oldest evictions.
    fn evict(&mut self, number: ProcessNumber) -> Option<Arc<UnifiedExecProcess>> {
        self.evicted.insert(number);
        if self.evicted.len() > MAX_REMEMBERED_EVICTIONS {
            self.evicted.pop_first();
        }
        Some(self.kept.remove(&number)?.process)
    }
}
