//! A started command, and the watcher that follows it to its end.
//!
//! Invariant: `ExecCommandEnd` is sent once, after all output events and before a call can show the
//! exit. The watcher holds no process handle, so it does not keep the process alive.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use exec_core::output_log::{ExitInfo, OutputChunk};
use exec_env::process::{EventStream, ExecProcess, ExecProcessEvent, ProcessError};
use exec_wire::{id::ProcessId, path_uri::PathUri};
use futures_util::StreamExt;
use tokio::{
    sync::{Notify, watch},
    task::coop::consume_budget,
    time::{Instant, timeout_at},
};

use super::{
    EventSink, ExecEvent,
    call::{CallId, OutputView},
    command_table::ProcessNumber,
    output_buffers::{OutputBuffers, ToolOutput, Transcript},
    settings::UnifiedExecSettings,
};

/// How long to wait for the watcher. It lags only if the whole program does.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(100);

/// State of a command, the same for every backend.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct WatchedState {
    /// Whether it has exited.
    pub has_exited: bool,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// Why its state is unknown.
    pub failure: Option<String>,
}

/// A started command. Dropping the last handle kills its process tree.
#[derive(Debug)]
pub struct UnifiedExecProcess {
    pub(super) details: CommandDetails,
    pub(super) process: Arc<dyn ExecProcess>,
    pub(super) shared: Arc<ProcessShared>,
}

/// How a command was started.
#[derive(Clone, Debug)]
pub(super) struct CommandDetails {
    pub(super) number: ProcessNumber,
    pub(super) call_id: CallId,
    pub(super) argv: Vec<String>,
    pub(super) cwd: PathUri,
    pub(super) tty: bool,
    pub(super) has_stdin: bool,
    pub(super) started: SystemTime,
}

/// State shared with the watcher. It outlives the handle, so that the end is reported.
#[derive(Debug)]
pub(super) struct ProcessShared {
    buffers: Mutex<OutputBuffers>,
    /// Notified on every change. One call waits at a time.
    pub(super) changed: Notify,
    /// Whether the end event was sent.
    pub(super) end_reported: watch::Sender<bool>,
}

/// Summary of a command for a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessSummary {
    /// Process id of the command.
    pub process_id: ProcessId,
    /// Number of the command.
    pub number: ProcessNumber,
    /// The call that started it.
    pub call_id: CallId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: PathUri,
    /// Whether it has a terminal.
    pub tty: bool,
    /// When it started.
    pub started: SystemTime,
    /// Current state.
    pub state: WatchedState,
}

impl UnifiedExecProcess {
    /// Returns its process id.
    pub fn id(&self) -> &ProcessId {
        self.process.id()
    }

    /// Returns its number.
    pub fn number(&self) -> ProcessNumber {
        self.details.number
    }

    /// Returns when it started.
    pub fn started(&self) -> SystemTime {
        self.details.started
    }

    /// Returns when it ended.
    pub fn ended(&self) -> Option<SystemTime> {
        self.shared.lock().ended
    }

    /// Returns all its output, shown or not, and its exit. Shows nothing: the next call returns the
    /// same output as without this one.
    pub fn report(&self, view: OutputView, tokens: usize) -> ToolOutput {
        let buffers = self.shared.lock();
        let until = buffers.ended.unwrap_or_else(SystemTime::now);
        let wall_time = until.duration_since(self.details.started);
        let transcript = buffers.whole(view, tokens);
        self.output(&buffers, wall_time.unwrap_or_default(), transcript)
    }

    /// Returns a summary for a list.
    pub fn summary(&self) -> ProcessSummary {
        let details = self.details.clone();
        ProcessSummary {
            process_id: self.id().clone(),
            number: details.number,
            call_id: details.call_id,
            argv: details.argv,
            cwd: details.cwd,
            tty: details.tty,
            started: details.started,
            state: self.shared.lock().state.clone(),
        }
    }

    /// Returns the last line of its output that is not blank, shortened for a progress message.
    pub fn last_line(&self) -> Option<String> {
        self.shared.lock().last_line()
    }

    /// Waits until the end event was sent.
    pub async fn wait_for_end(&self) {
        let mut end_reported = self.shared.end_reported.subscribe();
        // Cannot fail: this handle owns the sender.
        drop(end_reported.wait_for(|end_reported| *end_reported).await);
    }
}

impl UnifiedExecProcess {
    /// Returns the result of a call that shows `transcript`.
    pub(super) fn output(
        &self,
        buffers: &OutputBuffers,
        wall_time: Duration,
        transcript: Transcript,
    ) -> ToolOutput {
        ToolOutput {
            process_id: self.id().clone(),
            wall_time,
            transcript,
            running: (!buffers.end_reported).then_some(self.details.number),
            exit: buffers.exit.clone(),
            failure: buffers.failure.clone(),
        }
    }

    /// Waits until the watcher has received the output written so far, with a timeout.
    pub(super) async fn catch_up(&self) {
        let next = self.process.status().next_seq;
        let deadline = Instant::now() + CATCH_UP_TIMEOUT;
        loop {
            let changed = self.shared.changed.notified();
            {
                let buffers = self.shared.lock();
                if buffers.end_reported || buffers.last_seq.next() >= next {
                    return;
                }
            }
            if timeout_at(deadline, changed).await.is_err() {
                return;
            }
        }
    }
}

impl ProcessShared {
    pub(super) fn new(buffers: OutputBuffers) -> Self {
        Self {
            buffers: Mutex::new(buffers),
            changed: Notify::new(),
            end_reported: watch::Sender::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, OutputBuffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often the grace period for closing is extended by output. The last output of the command may
/// be delayed by a slow network; a background process may never stop writing.
const MAX_GRACE_PERIODS: u32 = 8;

/// Follows a command.
#[derive(Debug)]
pub(super) struct ProcessWatcher {
    details: CommandDetails,
    shared: Arc<ProcessShared>,
    sink: Arc<dyn EventSink>,
    settings: Arc<UnifiedExecSettings>,
    started: Instant,
    deltas: usize,
}

/// Deadlines for the output of an exited command to close.
#[derive(Clone, Copy, Debug)]
struct CloseDeadline {
    /// Extended by output.
    soft: Instant,
    /// Not extended.
    hard: Instant,
}

impl ProcessWatcher {
    /// Reports the start. The duration counts from here.
    pub(super) fn begin(
        details: CommandDetails,
        shared: Arc<ProcessShared>,
        sink: Arc<dyn EventSink>,
        settings: Arc<UnifiedExecSettings>,
    ) -> Self {
        sink.handle_event(ExecEvent::ExecCommandBegin {
            call_id: details.call_id.clone(),
            number: details.number,
            argv: details.argv.clone(),
            cwd: details.cwd.clone(),
        });
        Self {
            details,
            shared,
            sink,
            settings,
            started: Instant::now(),
            deltas: 0,
        }
    }

    /// Follows the command to its end and reports it.
    pub(super) async fn watch(mut self, mut events: EventStream) {
        let grace = self.settings.close_grace;
        let mut exited: Option<(ExitInfo, CloseDeadline)> = None;
        let outcome = loop {
            let event = match &exited {
                None => events.next().await,
                Some((exit, closing)) => {
                    // A stream that is always ready would never time out.
                    let deadline = closing.soft.min(closing.hard);
                    let is_up = Instant::now() >= closing.hard;
                    match timeout_at(deadline, events.next()).await {
                        Ok(event) if !is_up => event,
                        Ok(_) | Err(_) => break Ok(exit.clone()),
                    }
                }
            };
            let failure = match event {
                Some(ExecProcessEvent::Output(chunk)) => {
                    self.take(&chunk);
                    if let Some((_, closing)) = &mut exited {
                        closing.soft = Instant::now() + grace;
                    }
                    // A process that writes without pause would starve other tasks.
                    consume_budget().await;
                    continue;
                }
                Some(ExecProcessEvent::Exited(seq, exit)) => {
                    let mut buffers = self.shared.lock();
                    buffers.last_seq = seq;
                    buffers.state = WatchedState {
                        has_exited: true,
                        exit_code: Some(exit.code),
                        failure: None,
                    };
                    drop(buffers);
                    self.shared.changed.notify_one();
                    let closing = CloseDeadline {
                        soft: Instant::now() + grace,
                        hard: Instant::now() + grace * MAX_GRACE_PERIODS,
                    };
                    exited = Some((exit, closing));
                    continue;
                }
                Some(ExecProcessEvent::Failed(error)) => error,
                Some(ExecProcessEvent::Closed(_)) | None => ProcessError::missing_close(),
            };
            break match exited {
                Some((exit, _)) => Ok(exit),
                None => Err(failure),
            };
        };
        self.finish(outcome);
    }

    fn take(&mut self, chunk: &OutputChunk) {
        self.shared.lock().push(chunk);
        self.shared.changed.notify_one();
        let mut remaining = chunk.data.clone();
        while !remaining.is_empty() && self.deltas < self.settings.max_deltas {
            let length = remaining.len().min(self.settings.delta_bytes.max(1));
            self.deltas += 1;
            self.sink.handle_event(ExecEvent::ExecCommandOutputDelta {
                call_id: self.details.call_id.clone(),
                stream: chunk.stream,
                chunk: remaining.split_to(length),
            });
        }
    }

    fn finish(self, outcome: Result<ExitInfo, ProcessError>) {
        let output = self.shared.lock().finish();
        self.sink.handle_event(ExecEvent::ExecCommandEnd {
            call_id: self.details.call_id.clone(),
            number: self.details.number,
            outcome: outcome.clone(),
            aggregated_output: Transcript::truncated(output, usize::MAX).text,
            duration: self.started.elapsed(),
        });
        let (exit, failure) = match outcome {
            Ok(exit) => (Some(exit), None),
            Err(error) => (None, Some(error)),
        };
        let mut buffers = self.shared.lock();
        buffers.state = WatchedState {
            has_exited: exit.is_some(),
            exit_code: exit.as_ref().map(|exit| exit.code),
            failure: failure.as_ref().map(ToString::to_string),
        };
        (buffers.exit, buffers.failure) = (exit, failure);
        buffers.ended = Some(SystemTime::now());
        buffers.end_reported = true;
        drop(buffers);
        self.shared.end_reported.send_replace(true);
        self.shared.changed.notify_one();
    }
}
