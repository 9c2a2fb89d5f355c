//! Exclusive access of one call to a command, and the commands that ended recently.
//!
//! Invariant: a command whose number was disclosed stays in the table until a call has shown its
//! exit, it is evicted, or it is terminated. A command with an undisclosed number ends with the
//! call that started it, unless the settings keep it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_env::process::{CheckoutError, EvictedProcess, ProcessCheckout, ProcessNumber, TableFull};
use exec_wire::id::OutputSeq;
use tokio::time::Instant;

use super::{
    UnifiedExecShared,
    call::{CallId, OutputView},
    kill_and_wait,
    output_buffers::{RestoreOutcome, ToolOutput},
    process::{CommandDetails, ProcessShared, ProcessSummary, UnifiedExecProcess},
    settings::AbandonedCommand,
};

/// Exclusive access of a call to a command.
#[derive(Debug)]
pub(super) struct CallGuard<'a> {
    shared_exec: &'a UnifiedExecShared,
    process: Arc<UnifiedExecProcess>,
    session: Option<ProcessCheckout>,
    number: NumberState,
}

/// Whether the agent knows the number of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum NumberState {
    Disclosed,
    Undisclosed,
}

impl<'a> CallGuard<'a> {
    /// Opens a command by its number.
    pub(super) fn open(
        shared_exec: &'a UnifiedExecShared,
        number: ProcessNumber,
    ) -> Result<Self, CheckoutError> {
        let session = shared_exec.table.check_out(number)?;
        let process = shared_exec.lock().get(&number).cloned();
        Ok(Self {
            shared_exec,
            process: process.ok_or(CheckoutError::Unknown(number))?,
            session: Some(session),
            number: NumberState::Disclosed,
        })
    }

    /// Registers a command that has just started. May evict another.
    pub(super) fn register(
        shared_exec: &'a UnifiedExecShared,
        allocated: exec_env::process::ProcessAllocation,
        process: Arc<UnifiedExecProcess>,
    ) -> Result<Self, TableFull> {
        let number = allocated.number;
        shared_exec.lock().insert(number, Arc::clone(&process));
        let registered = shared_exec
            .table
            .insert(allocated, &process.process, OutputSeq(0));
        match registered {
            Ok(None) => {}
            Ok(Some(EvictedProcess { number, .. })) => {
                shared_exec.recently_ended.add_evicted(number);
                let evicted = shared_exec.lock().remove(&number);
                evicted.map(|evicted| tokio::spawn(kill_and_wait(evicted)));
            }
            Err(full) => {
                shared_exec.lock().remove(&number);
                return Err(full);
            }
        }
        Ok(Self {
            shared_exec,
            process,
            // The number is not disclosed yet, so no other call can hold it.
            session: shared_exec.table.check_out(number).ok(),
            number: NumberState::Undisclosed,
        })
    }

    /// Returns the command.
    pub(super) fn process(&self) -> &Arc<UnifiedExecProcess> {
        &self.process
    }

    /// Shows the new output. An ended command is removed with it, but remembered in case the answer
    /// is not delivered.
    pub(super) fn finish(mut self, request: &OutputRequest<'_>) -> ToolOutput {
        let (details, shared) = (&self.process.details, &self.process.shared);
        let output = request.take_output(details, shared);
        self.number = NumberState::Disclosed;
        if output.running.is_none() {
            let (details, shared) = (details.clone(), Arc::clone(shared));
            self.shared_exec.recently_ended.add(details, shared);
            self.forget();
        }
        output
    }

    /// Kills the command and reports its end.
    pub(super) fn kill_and_wait(mut self) {
        self.kill();
        self.number = NumberState::Disclosed;
    }

    fn kill(&mut self) {
        self.forget();
        // Without a runtime, dropping the handle kills it as well.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(kill_and_wait(Arc::clone(&self.process)));
        }
    }

    fn forget(&mut self) {
        self.shared_exec.lock().remove(&self.process.details.number);
        if let Some(session) = self.session.take() {
            session.forget();
        }
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let ends = self.shared_exec.settings.abandoned == AbandonedCommand::Terminate;
        if self.number == NumberState::Undisclosed && ends {
            self.kill();
        }
    }
}

/// Output requested by a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputRequest<'a> {
    /// The call.
    pub(super) call: &'a CallId,
    /// When the call started.
    pub(super) started_at: Instant,
    pub(super) view: OutputView,
    pub(super) tokens: usize,
}

impl OutputRequest<'_> {
    /// Takes the new output of a command.
    pub(super) fn take_output(
        &self,
        details: &CommandDetails,
        shared: &ProcessShared,
    ) -> ToolOutput {
        let mut buffers = shared.lock();
        ToolOutput {
            wall_time: self.started_at.elapsed(),
            transcript: buffers.take(self.call, self.view, self.tokens),
            running: (!buffers.end_reported).then_some(details.number),
            exit: buffers.exit.clone(),
            failure: buffers.failure.clone(),
        }
    }
}

/// Maximum number of remembered commands. Each keeps the output of its last call.
const MAX_REMEMBERED_COMMANDS: usize = 16;

/// Maximum number of remembered evictions.
const MAX_REMEMBERED_EVICTIONS: usize = 256;

/// Commands that ended recently, the latest last. If the answer with an exit was not delivered, the
/// exit is shown again. Holds no process handles: a command's remaining processes end when its exit
/// is shown.
#[derive(Debug, Default)]
pub(super) struct RecentlyEnded {
    ended: Mutex<VecDeque<EndedCommand>>,
    evicted: Mutex<VecDeque<ProcessNumber>>,
}

#[derive(Debug)]
struct EndedCommand {
    details: CommandDetails,
    shared: Arc<ProcessShared>,
    end: EndDelivery,
}

/// Whether the exit of a command was delivered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum EndDelivery {
    Shown,
    Undelivered,
}

impl RecentlyEnded {
    /// Adds a command when its exit is shown.
    pub(super) fn add(&self, details: CommandDetails, shared: Arc<ProcessShared>) {
        let mut ended = self.lock();
        if ended.len() >= MAX_REMEMBERED_COMMANDS {
            // Keep commands with an undelivered exit longer.
            let least = ended
                .iter()
                .position(|ended| ended.end == EndDelivery::Shown);
            ended.remove(least.unwrap_or(0));
        }
        ended.push_back(EndedCommand {
            details,
            shared,
            end: EndDelivery::Shown,
        });
    }

    /// Records that the answer of a call was not delivered.
    pub(super) fn restore(&self, call: &CallId) -> RestoreOutcome {
        for ended in self.lock().iter_mut().rev() {
            if ended.shared.lock().restore(call) == RestoreOutcome::Restored {
                ended.end = EndDelivery::Undelivered;
                return RestoreOutcome::Restored;
            }
        }
        RestoreOutcome::NotOwned
    }

    /// Removes and returns a command with an undelivered exit.
    pub(super) fn take(
        &self,
        number: ProcessNumber,
    ) -> Option<(CommandDetails, Arc<ProcessShared>)> {
        let mut ended = self.lock();
        let matches = |ended: &EndedCommand| {
            ended.details.number == number && ended.end == EndDelivery::Undelivered
        };
        let index = ended.iter().position(matches)?;
        let EndedCommand {
            details, shared, ..
        } = ended.remove(index)?;
        Some((details, shared))
    }

    /// Lists the commands with an undelivered exit.
    pub(super) fn undelivered(&self) -> Vec<ProcessSummary> {
        let ended = self.lock();
        let undelivered = ended
            .iter()
            .filter(|ended| ended.end == EndDelivery::Undelivered);
        let summary =
            |ended: &EndedCommand| ended.details.summary(ended.shared.state.borrow().clone());
        undelivered.map(summary).collect()
    }

    /// Records an eviction.
    pub(super) fn add_evicted(&self, number: ProcessNumber) {
        let mut evicted = self.evicted.lock().unwrap_or_else(PoisonError::into_inner);
        if evicted.len() >= MAX_REMEMBERED_EVICTIONS {
            evicted.pop_front();
        }
        evicted.push_back(number);
    }

    /// Returns whether a command is known to have been evicted.
    pub(super) fn was_evicted(&self, number: ProcessNumber) -> bool {
        let evicted = self.evicted.lock().unwrap_or_else(PoisonError::into_inner);
        evicted.contains(&number)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<EndedCommand>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
