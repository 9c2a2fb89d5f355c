//! `write_stdin`: writes to a running command or polls it, and shows its output.

use std::{num::NonZeroUsize, time::Duration};

use bytes::Bytes;
use exec_env::process::ProcessError;
use exec_wire::process::{ProcessSignal, WriteStatus};
use tokio::time::{Instant, timeout_at};

use super::{
    ExecEvent, UnifiedExec,
    call::{OutputView, WriteStdin},
    call_guard::{CallGuard, OutputRequest},
    command_table::ProcessNumber,
    output_buffers::{MatchScope, ToolOutput},
    process::UnifiedExecProcess,
    settings::WaitPhase,
    wait::OutputWait,
};

/// Maximum size of one write.
const MAX_WRITE_BYTES: usize = 256 << 10;
/// Timeout for the acceptance of a write, independent of the wait window: network latency may
/// exceed the window, and an agent would repeat a failed write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The Ctrl-C character.
const INTERRUPT: &str = "\u{3}";

/// Why writing to or terminating a command failed. The next call shows its output.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteStdinError {
    /// Caller: the command was never started, or its exit was already shown.
    #[error("unknown process number {0}")]
    Unknown(ProcessNumber),
    /// Caller: another call holds it.
    #[error("process number {0} is in use")]
    Busy(ProcessNumber),
    /// Caller: it was evicted for another command.
    #[error("process number {0} was evicted: at most {1} commands are kept")]
    Evicted(ProcessNumber, NonZeroUsize),
    /// Caller: only a terminal has a screen.
    #[error("process number {0} has no terminal, and so no screen")]
    NoScreen(ProcessNumber),
    /// Caller: its stdin is closed.
    #[error("input of process number {0} is closed")]
    InputClosed(ProcessNumber),
    /// Caller: it was started without stdin.
    #[error("process number {0} was started without an input")]
    NoInput(ProcessNumber),
    /// Caller: it does not read its stdin. The input may reach it later.
    #[error("process number {0} does not read its input")]
    NotReading(ProcessNumber),
    /// Host: it was killed, but its end is not reported.
    #[error("process number {0} does not exit")]
    NotEnding(ProcessNumber),
    /// The inner error says who must act.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl UnifiedExec {
    /// Writes to a command, and shows its output until it exits, the time is up, or the awaited
    /// condition is met. If it has exited meanwhile, nothing is written and the exit is shown.
    /// Dropping the future loses nothing: the next call shows the output.
    pub async fn write_stdin(&self, call: WriteStdin) -> Result<ToolOutput, WriteStdinError> {
        let started_at = Instant::now();
        let settings = &self.shared_exec.settings;
        let request = OutputRequest {
            started_at,
            view: call.view,
            tokens: settings.tokens(call.max_output_tokens),
        };
        let guard = CallGuard::open(&self.shared_exec, call.number)?;
        let process = guard.process();
        if call.view == OutputView::Screen && !process.details.tty {
            return Err(WriteStdinError::NoScreen(call.number));
        }
        let writes = !call.chars.is_empty() || call.close;
        let (before, since) = if writes {
            (WaitPhase::Write, MatchScope::Now)
        } else {
            (WaitPhase::Poll, MatchScope::LastCall)
        };
        let window = settings
            .windows
            .wait_window(before, call.yield_time, &call.wait);
        if writes {
            // Output from before the write is not a response to it.
            process.catch_up().await;
        }
        let mut wait = OutputWait::begin(process, &call.wait, since, started_at + window);
        let mut written = Ok(());
        self.report_interaction(process, &call);
        if writes {
            let deadline = started_at + window.max(WRITE_TIMEOUT);
            let in_time = timeout_at(deadline, write(process, &call)).await;
            written = in_time.unwrap_or(Err(WriteStdinError::NotReading(call.number)));
            wait.extend(Instant::now() + window);
        }
        match written {
            Ok(()) => {}
            // It exited before it could read; the exit is more informative than the error.
            Err(_) if process.process.status().exit.is_some() => {}
            Err(error) => return Err(error),
        }
        wait.done().await;
        Ok(guard.finish(&request))
    }

    /// Reports the input or the poll, unless the command has exited or has no stdin for it.
    fn report_interaction(&self, process: &UnifiedExecProcess, call: &WriteStdin) {
        let is_told = process.process.status().exit.is_none() && !has_no_stdin(process, call);
        // Hold the lock during the report, so that it is ordered before the end event.
        let buffers = process.shared.lock();
        if !is_told || buffers.finished {
            return;
        }
        let event = ExecEvent::TerminalInteraction {
            call_id: process.details.call_id.clone(),
            number: call.number,
            stdin: call.chars.clone(),
        };
        self.shared_exec.events.handle_event(event);
    }
}

/// Returns whether the call needs stdin that the command does not have. A signal needs none.
fn has_no_stdin(process: &UnifiedExecProcess, call: &WriteStdin) -> bool {
    let writes = !call.chars.is_empty() && call.chars != INTERRUPT;
    !process.details.has_stdin && (writes || call.close)
}

/// Writes the input, and closes stdin if requested.
async fn write(process: &UnifiedExecProcess, call: &WriteStdin) -> Result<(), WriteStdinError> {
    let number = call.number;
    if call.chars == INTERRUPT && !process.details.tty {
        // Without a terminal, the character would not become a signal, and programs do not expect
        // it in a pipe.
        process.process.signal(ProcessSignal::Interrupt).await?;
        if !call.close {
            return Ok(());
        }
    }
    if has_no_stdin(process, call) {
        return Err(WriteStdinError::NoInput(number));
    }
    if call.chars != INTERRUPT || process.details.tty {
        let mut remaining = Bytes::copy_from_slice(call.chars.as_bytes());
        while !remaining.is_empty() {
            let chunk = remaining.split_to(MAX_WRITE_BYTES.min(remaining.len()));
            check_write_status(process.process.write(None, chunk).await?, number)?;
        }
    }
    if call.close {
        check_write_status(process.process.close_stdin(None).await?, number)?;
    }
    Ok(())
}

fn check_write_status(status: WriteStatus, number: ProcessNumber) -> Result<(), WriteStdinError> {
    match status {
        WriteStatus::Accepted => Ok(()),
        WriteStatus::StdinClosed => Err(WriteStdinError::InputClosed(number)),
        WriteStatus::Starting => Err(WriteStdinError::NotReading(number)),
        WriteStatus::UnknownProcess => Err(WriteStdinError::Unknown(number)),
    }
}
