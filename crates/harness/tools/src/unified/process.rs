//! A command that was started, whatever runs it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use exec_core::log::{Exit, OutputChunk};
use exec_env::process::{EventStream, ExecProcess, ExecProcessEvent, ProcessError, ProcessNumber};
use exec_wire::path_uri::PathUri;
use futures_util::StreamExt;
use tokio::{
    sync::{Notify, watch},
    task::coop::consume_budget,
    time::{Instant, timeout_at},
};

use super::{
    EventSink, ExecEvent, call::CallId, output_buffers::OutputBuffers, settings::Settings,
    transcript::Transcript,
};

/// How long the watcher is waited for. It lags behind only if the whole program does.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(100);

/// What is known of a command: the same for every backend.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ProcessState {
    /// It has ended.
    pub has_exited: bool,
    /// The code that it ended with.
    pub exit_code: Option<i32>,
    /// Why nothing more can be known of it.
    pub failure: Option<String>,
}

/// A command that was started. When the last handle is dropped, its tree is killed.
#[derive(Debug)]
pub struct UnifiedExecProcess {
    pub(super) details: CommandDetails,
    pub(super) process: Arc<dyn ExecProcess>,
    pub(super) shared: Arc<ProcessShared>,
}

/// What a command was started as.
#[derive(Clone, Debug)]
pub(super) struct CommandDetails {
    pub(super) number: ProcessNumber,
    pub(super) call_id: CallId,
    pub(super) argv: Vec<String>,
    pub(super) cwd: PathUri,
    pub(super) tty: bool,
    pub(super) input: StdinMode,
    pub(super) started: SystemTime,
}

/// Whether a command was given something to read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum StdinMode {
    Open,
    None,
}

/// What the watcher of a command keeps for others. It outlives the handle, so that an end is told.
#[derive(Debug)]
pub(super) struct ProcessShared {
    buffers: Mutex<OutputBuffers>,
    /// Told whenever something was gathered. One call waits at a time.
    pub(super) changed: Notify,
    pub(super) state: watch::Sender<ProcessState>,
    /// Whether the end was told.
    pub(super) end_reported: watch::Sender<bool>,
}

/// A command, as a list shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessSummary {
    /// What a model calls it.
    pub number: ProcessNumber,
    /// The call that started it.
    pub call_id: CallId,
    /// What runs.
    pub argv: Vec<String>,
    /// Where.
    pub cwd: PathUri,
    /// It has a terminal.
    pub tty: bool,
    /// When it was started.
    pub started: SystemTime,
    /// What is known of it.
    pub state: ProcessState,
}

impl UnifiedExecProcess {
    /// Returns what is known of it now.
    pub fn state(&self) -> ProcessState {
        self.shared.state.borrow().clone()
    }

    /// Returns what is known of it, now and whenever that changes.
    pub fn states(&self) -> watch::Receiver<ProcessState> {
        self.shared.state.subscribe()
    }

    /// Returns it as a list shows it.
    pub fn summary(&self) -> ProcessSummary {
        self.details.summary(self.state())
    }

    /// Waits until its end was told.
    pub async fn wait_for_end(&self) {
        let mut end_reported = self.shared.end_reported.subscribe();
        // It cannot fail: the sender is in this handle.
        drop(end_reported.wait_for(|end_reported| *end_reported).await);
    }
}

impl UnifiedExecProcess {
    /// Waits until the watcher has taken what the process had written by now, if it does so soon.
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

impl CommandDetails {
    /// Returns a command as a list shows it.
    pub(super) fn summary(&self, state: ProcessState) -> ProcessSummary {
        let Self {
            number,
            call_id,
            argv,
            cwd,
            tty,
            input: _,
            started,
        } = self.clone();
        ProcessSummary {
            number,
            call_id,
            argv,
            cwd,
            tty,
            started,
            state,
        }
    }
}

impl ProcessShared {
    pub(super) fn new(buffers: OutputBuffers) -> Self {
        Self {
            buffers: Mutex::new(buffers),
            changed: Notify::new(),
            state: watch::Sender::new(ProcessState::default()),
            end_reported: watch::Sender::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, OutputBuffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many times the grace for a close is granted anew because something came. What the command itself
/// wrote last may be on its way over a slow network; what it left behind may never stop writing.
const MAX_GRACE_PERIODS: u32 = 8;

/// What follows a command.
#[derive(Debug)]
pub(super) struct ProcessWatcher {
    details: CommandDetails,
    shared: Arc<ProcessShared>,
    sink: Arc<dyn EventSink>,
    settings: Arc<Settings>,
    started: Instant,
    deltas: usize,
}

/// How long the close of a command that has ended is waited for.
#[derive(Clone, Copy, Debug)]
struct CloseDeadline {
    /// Unless something comes.
    soft: Instant,
    /// Whatever comes.
    hard: Instant,
}

impl ProcessWatcher {
    /// Tells the start. The clock of the command begins here.
    pub(super) fn begin(
        details: CommandDetails,
        shared: Arc<ProcessShared>,
        sink: Arc<dyn EventSink>,
        settings: Arc<Settings>,
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

    /// Follows the command to its end, and tells it.
    pub(super) async fn watch(mut self, mut events: EventStream) {
        let grace = self.settings.close_grace;
        let mut exited: Option<(Exit, CloseDeadline)> = None;
        let outcome = loop {
            let event = match &exited {
                None => events.next().await,
                Some((exit, closing)) => {
                    // A stream that always has something would never be timed out.
                    let by = closing.soft.min(closing.hard);
                    let is_up = Instant::now() >= closing.hard;
                    match timeout_at(by, events.next()).await {
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
                    // A process that never pauses would leave nobody else a turn.
                    consume_budget().await;
                    continue;
                }
                Some(ExecProcessEvent::Exited(seq, exit)) => {
                    self.shared.lock().last_seq = seq;
                    self.shared.state.send_replace(ProcessState {
                        has_exited: true,
                        exit_code: Some(exit.code),
                        failure: None,
                    });
                    self.shared.changed.notify_one();
                    let closing = CloseDeadline {
                        soft: Instant::now() + grace,
                        hard: Instant::now() + grace * MAX_GRACE_PERIODS,
                    };
                    exited = Some((exit, closing));
                    continue;
                }
                Some(ExecProcessEvent::Closed(_)) => ProcessError::ended_before_the_close(),
                Some(ExecProcessEvent::Failed(error)) => error,
                None => ProcessError::ended_before_the_close(),
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
        let mut rest = chunk.data.clone();
        while !rest.is_empty() && self.deltas < self.settings.max_deltas {
            let length = rest.len().min(self.settings.delta_bytes.max(1));
            self.deltas += 1;
            self.sink.handle_event(ExecEvent::ExecCommandOutputDelta {
                call_id: self.details.call_id.clone(),
                stream: chunk.stream,
                chunk: rest.split_to(length),
            });
        }
    }

    fn finish(self, outcome: Result<Exit, ProcessError>) {
        let whole = self.shared.lock().finish();
        self.sink.handle_event(ExecEvent::ExecCommandEnd {
            call_id: self.details.call_id.clone(),
            number: self.details.number,
            outcome: outcome.clone(),
            aggregated_output: Transcript::truncated(whole, usize::MAX).text,
            duration: self.started.elapsed(),
        });
        let (exit, failure) = match outcome {
            Ok(exit) => (Some(exit), None),
            Err(error) => (None, Some(error)),
        };
        self.shared.state.send_replace(ProcessState {
            has_exited: exit.is_some(),
            exit_code: exit.as_ref().map(|exit| exit.code),
            failure: failure.as_ref().map(ToString::to_string),
        });
        let mut buffers = self.shared.lock();
        (buffers.exit, buffers.failure) = (exit, failure);
        buffers.end_reported = true;
        drop(buffers);
        self.shared.end_reported.send_replace(true);
        self.shared.changed.notify_one();
    }
}
