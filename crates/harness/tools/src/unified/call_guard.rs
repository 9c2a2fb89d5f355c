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
    /// Whether the agent knows the number of the command.
    is_disclosed: bool,
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
            is_disclosed: true,
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
            is_disclosed: false,
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
        let transcript = buffers.take(request.view, request.tokens);
        let wall_time = request.started_at.elapsed();
        let output = self.process.output(&buffers, wall_time, transcript);
        drop(buffers);
        self.is_disclosed = true;
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
        self.is_disclosed = true;
        self.process.details.number
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let number = self.process.details.number;
        let ends = self.shared_exec.settings.abandoned == AbandonedCommand::Terminate;
        if self.is_disclosed || !ends {
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
