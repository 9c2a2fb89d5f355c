//! Exclusive access of one call to a command.
//!
//! Invariant: a command with a disclosed number stays in the table until a call has shown its exit,
//! it is evicted, or it is terminated. A command with an undisclosed number ends with the
//! call that started it, unless the settings keep it.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    UnifiedExecShared, call::OutputView, command_table::ProcessNumber,
    exec_command::ExecCommandError, output_buffers::ToolOutput, process::UnifiedExecProcess,
    settings::AbandonedCommand, write_stdin::WriteStdinError,
};

/// Exclusive access of a call to a command.
#[derive(Debug)]
pub(super) struct CallGuard<'a> {
    shared_exec: &'a UnifiedExecShared,
    process: Arc<UnifiedExecProcess>,
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
    ) -> Result<Self, WriteStdinError> {
        Ok(Self {
            process: shared_exec.table.check_out(number)?,
            shared_exec,
            number: NumberState::Disclosed,
        })
    }

    /// Registers a command that has just started. May evict another.
    pub(super) fn register(
        shared_exec: &'a UnifiedExecShared,
        process: Arc<UnifiedExecProcess>,
    ) -> Result<Self, ExecCommandError> {
        if let Some(evicted) = shared_exec.table.insert(Arc::clone(&process))? {
            shared_exec.discard(evicted);
        }
        Ok(Self {
            shared_exec,
            process,
            number: NumberState::Undisclosed,
        })
    }

    /// Returns the command.
    pub(super) fn process(&self) -> &Arc<UnifiedExecProcess> {
        &self.process
    }

    /// Shows the new output. An ended command is removed with it.
    pub(super) fn finish(mut self, request: &OutputRequest) -> ToolOutput {
        let number = self.process.details.number;
        let mut buffers = self.process.shared.lock();
        let output = ToolOutput {
            process_id: self.process.id().clone(),
            wall_time: request.started_at.elapsed(),
            transcript: buffers.take(request.view, request.tokens),
            running: (!buffers.end_reported).then_some(number),
            exit: buffers.exit.clone(),
            failure: buffers.failure.clone(),
        };
        drop(buffers);
        self.number = NumberState::Disclosed;
        if output.running.is_none() {
            self.shared_exec.table.remove(number);
            // A command that is only out of reach must not be ended later.
            if output.exit.is_some() {
                let process = Arc::clone(&self.process.process);
                self.shared_exec.store.release(process);
            }
        }
        output
    }

    /// Releases a command and discloses its number, without showing output.
    pub(super) fn disclose(mut self) -> ProcessNumber {
        self.number = NumberState::Disclosed;
        self.process.details.number
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let number = self.process.details.number;
        let ends = self.shared_exec.settings.abandoned == AbandonedCommand::Terminate;
        if self.number == NumberState::Disclosed || !ends {
            self.shared_exec.table.check_in(number);
            return;
        }
        self.shared_exec.table.remove(number);
        self.shared_exec.discard(Arc::clone(&self.process));
    }
}

/// Output requested by a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputRequest {
    /// When the call started.
    pub(super) started_at: Instant,
    pub(super) view: OutputView,
    pub(super) tokens: usize,
}
