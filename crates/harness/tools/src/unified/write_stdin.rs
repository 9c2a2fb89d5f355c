//! `write_stdin`: writes to a command that runs on, or only looks at it, and shows what it says.

use std::{num::NonZeroUsize, time::Duration};

use bytes::Bytes;
use exec_env::process::{OpenError, ProcessError, ProcessNumber};
use exec_wire::process::{ProcessSignal, WriteStatus};
use tokio::time::{Instant, timeout_at};

use super::{
    ExecEvent, UnifiedExec,
    call::{View, WriteStdin},
    call_guard::{CallGuard, OutputRequest},
    output_buffers::MatchScope,
    process::{StdinMode, UnifiedExecProcess},
    settings::WaitPhase,
    transcript::ToolOutput,
    wait::OutputWait,
};

/// Input that is handed over at once.
const MAX_WRITE_BYTES: usize = 256 << 10;
/// How long a write may take to be accepted, whatever the window is: a network is slower than a window
/// is short, and an agent that is told of a failure writes the same again.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// What Ctrl-C is.
const INTERRUPT: &str = "\u{3}";

/// Why nothing was written to a command, or it was not ended. What it wrote is shown by the next call.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteStdinError {
    /// Caller: there is no such command, or somebody else waits for it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Caller: it made room for another command.
    #[error("process number {0} made room for another: at most {1} are kept")]
    Evicted(ProcessNumber, NonZeroUsize),
    /// Caller: only a terminal has a screen.
    #[error("process number {0} has no terminal, and so no screen")]
    NoScreen(ProcessNumber),
    /// Caller: its input was closed.
    #[error("input of process number {0} is closed")]
    InputClosed(ProcessNumber),
    /// Caller: it was started without an input.
    #[error("process number {0} was started without an input")]
    NoInput(ProcessNumber),
    /// Caller: it does not read. What was written may reach it later.
    #[error("process number {0} does not read its input")]
    NotReading(ProcessNumber),
    /// Host: it was killed, and its end is not told.
    #[error("process number {0} does not end")]
    NotEnding(ProcessNumber),
    /// Whoever the inner error blames.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl UnifiedExec {
    /// Writes to a command, and shows what it says until it ends, the time is up, or what the call waits
    /// for has come. Nothing is written to one that has ended meanwhile: its end is shown. Dropping the
    /// future loses nothing: the next call shows what this one would have.
    pub async fn write_stdin(&self, call: WriteStdin) -> Result<ToolOutput, WriteStdinError> {
        let began = Instant::now();
        let settings = &self.shared_exec.settings;
        let request = OutputRequest {
            call: &call.call_id,
            began,
            view: call.view,
            tokens: settings.tokens(call.max_output_tokens),
        };
        let guard = match CallGuard::open(&self.shared_exec, call.number) {
            Ok(guard) => guard,
            Err(error) => {
                let shown = self.shared_exec.show_ended_again(call.number, &request);
                return shown.ok_or_else(|| self.shared_exec.open_error(error));
            }
        };
        let process = guard.process();
        if call.view == View::Screen && !process.details.tty {
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
            // What was there before the write is no answer to it.
            process.catch_up().await;
        }
        let mut wait = OutputWait::begin(process, &call.wait, since, began + window);
        let mut written = Ok(());
        self.report_interaction(process, &call);
        if writes {
            let by = began + window.max(WRITE_TIMEOUT);
            let in_time = timeout_at(by, write(process, &call)).await;
            written = in_time.unwrap_or(Err(WriteStdinError::NotReading(call.number)));
            wait.extend(Instant::now() + window);
        }
        match written {
            Ok(()) => {}
            // It ended before it could read; that says more than the refusal.
            Err(_) if process.process.status().exit.is_some() => {}
            Err(error) => return Err(error),
        }
        wait.done().await;
        Ok(guard.finish(&request))
    }

    /// Tells what is about to be written, or that the command is looked at; not of one that has ended, nor
    /// of what it has no input for.
    fn report_interaction(&self, process: &UnifiedExecProcess, call: &WriteStdin) {
        let is_told = process.process.status().exit.is_none() && !has_no_stdin(process, call);
        // Locked until it is told: the end is told behind it, or was told before.
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

/// Whether there is something to write or to close, and nothing that takes it. A signal needs no input.
fn has_no_stdin(process: &UnifiedExecProcess, call: &WriteStdin) -> bool {
    let writes = !call.chars.is_empty() && call.chars != INTERRUPT;
    process.details.input == StdinMode::None && (writes || call.close)
}

/// Writes, and closes if that is asked for.
async fn write(process: &UnifiedExecProcess, call: &WriteStdin) -> Result<(), WriteStdinError> {
    let number = call.number;
    if call.chars == INTERRUPT && !process.details.tty {
        // Without a terminal nothing makes a signal of the character, and no program expects it in a pipe.
        process.process.signal(ProcessSignal::Interrupt).await?;
        if !call.close {
            return Ok(());
        }
    }
    if has_no_stdin(process, call) {
        return Err(WriteStdinError::NoInput(number));
    }
    if call.chars != INTERRUPT || process.details.tty {
        let mut rest = Bytes::copy_from_slice(call.chars.as_bytes());
        while !rest.is_empty() {
            let piece = rest.split_to(MAX_WRITE_BYTES.min(rest.len()));
            check_write_status(process.process.write(None, piece).await?, number)?;
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
        WriteStatus::UnknownProcess => Err(OpenError::Unknown(number).into()),
    }
}
