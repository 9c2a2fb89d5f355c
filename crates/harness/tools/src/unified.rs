//! Unified exec: the two calls `exec_command` and `write_stdin` over any environment.
//!
//! A call shows the output of a command until it exits, the time is up, or the awaited condition is
//! met. The command keeps running, and the next call continues where the last one ended. A watcher
//! follows each command and reports events, whether or not a call waits. The caller decides what
//! may run and in which sandbox.
//!
//! Each command is in a bounded table (`command_table`) from its start until its exit was shown. A
//! call holds its command meanwhile (`call_guard`).

mod call;
mod call_guard;
mod command_store;
mod command_table;
mod exec_command;
mod find_command;
mod handle_scope;
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

pub use self::{
    call::{CallId, CommandProgram, ExecCommand, OutputView, WaitFor, WriteStdin},
    command_store::{CommandStore, Durability},
    command_table::ProcessNumber,
    exec_command::ExecCommandError,
    find_command::FindCommandError,
    handle_scope::{HandleKind, HandleScope},
    output_buffers::{ToolOutput, Transcript},
    process::{ProcessSummary, UnifiedExecProcess, WatchedState},
    screen::TerminalScreen,
    settings::{AbandonedCommand, UnifiedExecSettings, WaitWindows},
    tool_policy::{
        ApprovalDecision, ApprovalRequest, ReadOnlyPolicy, SandboxDenial, ToolPolicy,
        UnrestrictedPolicy, WorkspaceWritePolicy,
    },
    write_stdin::WriteStdinError,
};

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::output_log::ExitInfo;
use exec_env::{environment::Environment, process::ProcessError};
use exec_wire::{
    environment::EnvironmentInfo,
    error::RpcError,
    path_uri::PathUri,
    process::{OutputStream, TerminateMode, WaitUntil},
};
use futures_util::future::join_all;
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};

use self::{
    call_guard::{CallGuard, OutputRequest},
    command_store::{SessionCommands, StoreAccess},
    command_table::CommandTable,
};

/// How long the end event of a killed command may take.
const END_EVENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs an agent's commands in one environment. Clones share them; dropping the last one ends the
/// commands, unless they are in a durable store.
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
    store: Arc<StoreAccess>,
    table: CommandTable,
    info: OnceCell<EnvironmentInfo>,
    /// Held while a command of the store is attached to, so that it is attached to once.
    attaching: tokio::sync::Mutex<()>,
}

impl UnifiedExec {
    /// Creates it without commands.
    pub fn new(
        environment: Environment,
        settings: UnifiedExecSettings,
        policy: Arc<dyn ToolPolicy>,
        events: Arc<dyn EventSink>,
    ) -> Self {
        let store = Arc::new(SessionCommands(Arc::clone(&environment.backend)));
        Self::with_store(environment, settings, policy, events, store)
    }

    /// Creates it over a store. Commands of the same scope that are in the store can be
    /// [found](Self::find).
    pub fn with_store(
        environment: Environment,
        settings: UnifiedExecSettings,
        policy: Arc<dyn ToolPolicy>,
        events: Arc<dyn EventSink>,
        store: Arc<dyn CommandStore>,
    ) -> Self {
        let shared_exec = UnifiedExecShared {
            environment,
            store: Arc::new(StoreAccess::new(store, settings.scope.clone())),
            table: CommandTable::new(&settings),
            settings: Arc::new(settings),
            policy,
            events,
            info: OnceCell::new(),
            attaching: tokio::sync::Mutex::default(),
        };
        Self {
            shared_exec: Arc::new(shared_exec),
        }
    }

    /// Terminates a command and its process tree: gracefully, then by force. Returns its output
    /// since the last call and its exit. A waiting call returns as well, and then it shows the
    /// output instead.
    pub async fn terminate(&self, number: ProcessNumber) -> Result<ToolOutput, WriteStdinError> {
        let started_at = Instant::now();
        let (process, guard) = match CallGuard::open(&self.shared_exec, number) {
            Ok(guard) => (Arc::clone(guard.process()), Some(guard)),
            Err(error @ WriteStdinError::Busy(_)) => {
                (self.shared_exec.table.get(number).ok_or(error)?, None)
            }
            Err(error) => return Err(error),
        };
        self.shared_exec.end(&process).await?;
        Ok(match guard {
            Some(guard) => guard.finish(&OutputRequest {
                started_at,
                view: OutputView::Plain,
                tokens: self.shared_exec.settings.tokens(None),
            }),
            None => process.output(
                &process.shared.lock(),
                started_at.elapsed(),
                Transcript::default(),
            ),
        })
    }

    /// Terminates all commands and rejects new ones. Their ends are reported as events.
    pub async fn shut_down(&self) {
        let (mode, grace) = (
            self.shared_exec.terminate_mode(),
            self.shared_exec.settings.terminate_grace,
        );
        let ends = self.shared_exec.table.close().into_iter();
        let ends = ends.map(|process| async move {
            // A command that cannot be terminated is out of reach, and its watcher reports that.
            if let Ok(true) = process.process.terminate(mode).await {
                let exited = process.process.wait(WaitUntil::Exited, Some(grace));
                drop(exited.await);
            }
            kill_and_wait(process).await;
        });
        join_all(ends).await;
    }

    /// Ends what this program does with its commands and rejects new ones. Commands of a durable
    /// store run on; others are terminated.
    pub async fn detach(&self) {
        match self.shared_exec.store.durability() {
            Durability::Session => self.shut_down().await,
            Durability::Durable => drop(self.shared_exec.table.close()),
        }
    }

    /// Returns the scope of the process ids.
    pub fn scope(&self) -> &HandleScope {
        &self.shared_exec.settings.scope
    }

    /// Returns whether commands outlive this program.
    pub fn durability(&self) -> Durability {
        self.shared_exec.store.durability()
    }

    /// Returns the number of output tokens of a call that requests this many.
    pub fn output_tokens(&self, requested: Option<usize>) -> usize {
        self.shared_exec.settings.tokens(requested)
    }

    /// Returns the commands in the table by number: running ones, and those with an unshown exit.
    pub fn processes(&self) -> Vec<ProcessSummary> {
        let processes = self.shared_exec.table.all();
        processes.iter().map(|process| process.summary()).collect()
    }

    /// Returns a command. Holding the handle keeps its process tree alive.
    pub fn process(&self, number: ProcessNumber) -> Option<Arc<UnifiedExecProcess>> {
        self.shared_exec.table.get(number)
    }

    /// Returns the latest command that a call started.
    pub fn process_started_by(&self, call: &CallId) -> Option<Arc<UnifiedExecProcess>> {
        self.shared_exec.table.started_by(call)
    }
}

impl UnifiedExecShared {
    /// Returns facts about the host, requested once.
    async fn info(&self) -> Result<&EnvironmentInfo, RpcError> {
        let backend = &self.environment.backend;
        self.info.get_or_try_init(|| backend.info()).await
    }

    /// Terminates a command and waits for its end event.
    async fn end(&self, process: &UnifiedExecProcess) -> Result<(), WriteStdinError> {
        let grace = self.settings.terminate_grace;
        process.process.terminate(self.terminate_mode()).await?;
        let ended = timeout(grace + END_EVENT_TIMEOUT, process.wait_for_end()).await;
        ended.map_err(|_| WriteStdinError::NotEnding(process.details.number))
    }

    /// Kills a command that no call will ask for.
    fn discard(&self, process: Arc<UnifiedExecProcess>) {
        // Without a runtime, dropping the handle kills it, unless it is in a durable store.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let store = Arc::clone(&self.store);
            runtime.spawn(async move {
                let handle = Arc::clone(&process.process);
                kill_and_wait(process).await;
                store.release(handle);
            });
        }
    }

    fn terminate_mode(&self) -> TerminateMode {
        let grace = self.settings.terminate_grace.as_millis();
        TerminateMode::Graceful {
            timeout_ms: u64::try_from(grace).unwrap_or(u64::MAX),
        }
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
