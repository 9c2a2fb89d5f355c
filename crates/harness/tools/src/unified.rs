//! Unified exec: the two calls `exec_command` and `write_stdin` over any environment.
//!
//! A call shows the output of a command until it exits, the time is up, or the awaited condition is
//! met. The command keeps running, and the next call continues where the last one ended. A watcher
//! follows each command and reports events, whether or not a call waits. The caller decides what
//! may run and in which sandbox.
//!
//! Each command is in a bounded table from its start until its exit was shown. A call holds its
//! command meanwhile (`call_guard`).

mod call;
mod call_guard;
mod exec_command;
mod output_buffers;
mod plain_text;
mod process;
mod screen;
mod settings;
#[cfg(test)]
mod tests;
mod tool_policy;
mod wait;
mod write_stdin;

#[cfg(feature = "mcp")]
pub(crate) use self::plain_text::PlainText;
pub use self::{
    call::{CallId, CommandProgram, ExecCommand, OutputView, WaitFor, WriteStdin},
    exec_command::ExecCommandError,
    output_buffers::{ToolOutput, Transcript},
    process::{ProcessSummary, UnifiedExecProcess, WatchedState},
    screen::TerminalScreen,
    settings::{AbandonedCommand, UnifiedExecSettings, WaitWindows},
    tool_policy::{
        ApprovalDecision, ApprovalRequest, ReadOnlyPolicy, SandboxChoice, SandboxDenial,
        ToolPolicy, UnrestrictedPolicy, WorkspaceWritePolicy,
    },
    write_stdin::WriteStdinError,
};

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_core::output_log::ExitInfo;
use exec_env::{
    environment::Environment,
    process::{CheckoutError, EvictionPolicy, ProcessError, ProcessNumber, ProcessTable},
};
use exec_wire::{
    environment::EnvironmentInfo,
    error::RpcError,
    path_uri::PathUri,
    process::{OutputStream, TerminateMode},
};
use futures_util::future::join_all;
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};
use uuid::Uuid;

use self::{
    call_guard::{CallGuard, OutputRequest, RecentlyEnded},
    output_buffers::RestoreOutcome,
};

/// How long the end event of a killed command may take.
const END_EVENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs an agent's commands in one environment. Clones share them; dropping the last one ends the
/// commands.
#[derive(Clone, Debug)]
pub struct UnifiedExec {
    shared_exec: Arc<UnifiedExecShared>,
}

#[derive(Debug)]
struct UnifiedExecShared {
    environment: Environment,
    settings: Arc<UnifiedExecSettings>,
    policy: Arc<dyn ToolPolicy>,
    events: Arc<dyn EventSink>,
    table: ProcessTable,
    running: Mutex<BTreeMap<ProcessNumber, Arc<UnifiedExecProcess>>>,
    recently_ended: RecentlyEnded,
    info: OnceCell<EnvironmentInfo>,
    is_shut_down: AtomicBool,
}

impl UnifiedExec {
    /// Creates it without commands.
    pub fn new(
        environment: Environment,
        settings: UnifiedExecSettings,
        policy: Arc<dyn ToolPolicy>,
        events: Arc<dyn EventSink>,
    ) -> Self {
        let when_full = EvictionPolicy::EvictLeastRecentlyUsed;
        let suffix = || Uuid::new_v4().simple().to_string();
        // If all commands were protected, a full table could not evict any.
        let protected = settings.protected_processes;
        let protected = protected.min(settings.max_processes.get() / 2);
        let table = ProcessTable::new(settings.max_processes, when_full, suffix);
        let shared_exec = UnifiedExecShared {
            environment,
            settings: Arc::new(settings),
            policy,
            events,
            table: table.with_protected(protected),
            running: Mutex::default(),
            recently_ended: RecentlyEnded::default(),
            info: OnceCell::new(),
            is_shut_down: AtomicBool::new(false),
        };
        Self {
            shared_exec: Arc::new(shared_exec),
        }
    }

    /// Terminates a command and its process tree: gracefully, then by force. Returns its output
    /// since the last call and its exit. A waiting call returns as well, and then it shows the
    /// output instead.
    pub async fn terminate(
        &self,
        call: &CallId,
        number: ProcessNumber,
    ) -> Result<ToolOutput, WriteStdinError> {
        let started_at = Instant::now();
        let request = OutputRequest {
            call,
            started_at,
            view: OutputView::Plain,
            tokens: self.shared_exec.settings.tokens(None),
        };
        let (process, guard) = match CallGuard::open(&self.shared_exec, number) {
            Ok(guard) => (Arc::clone(guard.process()), Some(guard)),
            Err(CheckoutError::Busy(_)) => {
                let process = self.shared_exec.lock().get(&number).cloned();
                (process.ok_or(CheckoutError::Unknown(number))?, None)
            }
            Err(error) => {
                let output = self.shared_exec.show_ended_again(number, &request);
                return output.ok_or_else(|| self.shared_exec.open_error(error));
            }
        };
        self.shared_exec.end(&process).await?;
        Ok(match guard {
            Some(guard) => guard.finish(&request),
            None => {
                let buffers = process.shared.lock();
                ToolOutput {
                    wall_time: started_at.elapsed(),
                    transcript: Transcript::default(),
                    running: None,
                    exit: buffers.exit.clone(),
                    failure: buffers.failure.clone(),
                }
            }
        })
    }

    /// Terminates all commands and rejects new ones. Their ends are reported as events.
    pub async fn shut_down(&self) {
        self.shared_exec.is_shut_down.store(true, Ordering::SeqCst);
        let running = std::mem::take(&mut *self.shared_exec.lock());
        let mode = self.shared_exec.terminate_mode();
        // A command that cannot be terminated is out of reach, and its watcher reports that.
        drop(self.shared_exec.table.terminate_all(mode).await);
        join_all(running.into_values().map(kill_and_wait)).await;
    }

    /// Records that the answer of a call was not delivered: the next call for its command shows the
    /// output again, and a command whose exit it had shown is listed again. Has no effect if
    /// another call for the command was answered since, or if the command was already forgotten.
    pub fn mark_undelivered(&self, call: &CallId) {
        let running: Vec<_> = self.shared_exec.lock().values().cloned().collect();
        let restore = |process: &Arc<UnifiedExecProcess>| {
            process.shared.lock().restore(call) == RestoreOutcome::Restored
        };
        if !running.iter().any(restore) {
            self.shared_exec.recently_ended.restore(call);
        }
    }

    /// Returns the commands in the table and those with an undelivered exit, by number.
    pub fn processes(&self) -> Vec<ProcessSummary> {
        let mut processes = self.shared_exec.recently_ended.undelivered();
        let running = self.shared_exec.lock();
        processes.extend(running.values().map(|process| process.summary()));
        processes.sort_by_key(|process| process.number);
        processes
    }

    /// Returns a command. Holding the handle keeps its process tree alive.
    pub fn process(&self, number: ProcessNumber) -> Option<Arc<UnifiedExecProcess>> {
        self.shared_exec.lock().get(&number).cloned()
    }
}

impl UnifiedExecShared {
    /// Returns facts about the host, requested once.
    async fn info(&self) -> Result<&EnvironmentInfo, RpcError> {
        let backend = &self.environment.backend;
        self.info.get_or_try_init(|| backend.info()).await
    }

    /// Shows the undelivered exit of an ended command again.
    fn show_ended_again(
        &self,
        number: ProcessNumber,
        request: &OutputRequest<'_>,
    ) -> Option<ToolOutput> {
        let (details, shared) = self.recently_ended.take(number)?;
        let output = request.take_output(&details, &shared);
        self.recently_ended.add(details, shared);
        Some(output)
    }

    /// Converts the error of a command that cannot be opened; reports evictions.
    fn open_error(&self, error: CheckoutError) -> WriteStdinError {
        if let CheckoutError::Unknown(number) = error
            && self.recently_ended.was_evicted(number)
        {
            return WriteStdinError::Evicted(number, self.settings.max_processes);
        }
        error.into()
    }

    /// Terminates a command and waits for its end event.
    async fn end(&self, process: &UnifiedExecProcess) -> Result<(), WriteStdinError> {
        let grace = self.settings.terminate_grace;
        process.process.terminate(self.terminate_mode()).await?;
        let ended = timeout(grace + END_EVENT_TIMEOUT, process.wait_for_end()).await;
        ended.map_err(|_| WriteStdinError::NotEnding(process.details.number))
    }

    fn terminate_mode(&self) -> TerminateMode {
        let grace = self.settings.terminate_grace.as_millis();
        TerminateMode::Graceful {
            timeout_ms: u64::try_from(grace).unwrap_or(u64::MAX),
        }
    }

    /// Returns whether everything was shut down.
    fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ProcessNumber, Arc<UnifiedExecProcess>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kills a command that no call will ask for, and waits for its end event.
async fn kill_and_wait(process: Arc<UnifiedExecProcess>) {
    if let Err(error) = process.process.terminate(TerminateMode::Force).await {
        tracing::debug!(number = %process.details.number, %error, "failed to terminate a command");
    }
    if timeout(END_EVENT_TIMEOUT, process.wait_for_end())
        .await
        .is_err()
    {
        tracing::warn!(number = %process.details.number, "killed command did not report its end in time");
    }
}

/// Receives events, in order for each process. Called on the runtime: it must not block.
pub trait EventSink: fmt::Debug + Send + Sync {
    /// Handles one event.
    fn handle_event(&self, event: ExecEvent);
}

/// Discards every event.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullEventSink;

impl EventSink for NullEventSink {
    fn handle_event(&self, _event: ExecEvent) {}
}

/// An event of a command. The call is the one that started it.
#[derive(Clone, Debug)]
pub enum ExecEvent {
    /// The command started.
    ExecCommandBegin {
        /// The call.
        call_id: CallId,
        /// Its number.
        number: ProcessNumber,
        /// Program and arguments.
        argv: Vec<String>,
        /// Working directory.
        cwd: PathUri,
    },
    /// The command wrote output.
    ExecCommandOutputDelta {
        /// The call.
        call_id: CallId,
        /// Stream of the output.
        stream: OutputStream,
        /// The data.
        chunk: Bytes,
    },
    /// Input is about to be written to the command, or it is polled. Never after its end.
    TerminalInteraction {
        /// The call that started it.
        call_id: CallId,
        /// Its number.
        number: ProcessNumber,
        /// The input.
        stdin: String,
    },
    /// The command ended.
    ExecCommandEnd {
        /// The call.
        call_id: CallId,
        /// Its number.
        number: ProcessNumber,
        /// Exit of the command, or why it is unknown.
        outcome: Result<ExitInfo, ProcessError>,
        /// Head and tail of all output.
        aggregated_output: String,
        /// Time since its start.
        duration: Duration,
    },
}
