//! `exec_command`: approves, sandboxes and starts a command, waits, and shows its output. Runs it
//! again after a sandbox denial if the policy says so.

use std::{num::NonZeroUsize, sync::Arc, time::SystemTime};

use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart};
use exec_env::{
    environment::{Command, ProcessIo, StartError, StdinMode},
    process::ExecProcess,
};
use exec_wire::{
    error::RpcError,
    id::{IdLengthError, OutputSeq},
    process::ExecMode,
};
use tokio::time::Instant;

use super::{
    UnifiedExec, UnifiedExecShared,
    call::{self, ExecCommand, OutputView, TerminalMode},
    call_guard::{CallGuard, OutputRequest},
    command_table::ProcessNumber,
    handle_scope::HandleKind,
    output_buffers::{MatchScope, OutputBuffers, ToolOutput},
    process::{CommandDetails, ProcessShared, ProcessWatcher, UnifiedExecProcess},
    settings::WaitPhase,
    tool_policy::{ApprovalDecision, ApprovalRequest, SandboxDenial},
    wait::OutputWait,
};

/// Maximum number of attempts: the first, and one after a denial.
const ATTEMPTS: usize = 2;

/// Why a command was not run. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecCommandError {
    /// Caller: the command is empty.
    #[error("command is empty")]
    Empty,
    /// Caller: only a terminal has a screen.
    #[error("the screen view needs a terminal: set tty")]
    NoScreen,
    /// Caller: no working directory was given, and the environment has no default.
    #[error("no working directory: the environment has no default; set workdir")]
    NoDirectory,
    /// Caller: the policy refused it, for this reason.
    #[error("command was refused: {0}")]
    Refused(String),
    /// Caller: too many commands are in use by calls.
    #[error("too many commands are in use: at most {0} are kept")]
    Full(NonZeroUsize),
    /// Caller: unified exec was shut down.
    #[error("unified exec is shut down")]
    ShutDown,
    /// Host: it returned no environment info.
    #[error("failed to get the environment info")]
    Host(#[source] RpcError),
    /// The start failed; the inner error says who must act.
    #[error("command did not start")]
    Start(#[from] StartError),
    /// Internal: the process id is too long.
    #[error("failed to make a process id")]
    Id(#[from] IdLengthError),
}

impl UnifiedExec {
    /// Runs a command and shows its output until it exits, the time is up, or the awaited condition
    /// is met. Otherwise it keeps running. Dropping the future terminates the command, because its
    /// number is not disclosed, unless
    /// [`Settings::abandoned`](super::UnifiedExecSettings::abandoned) keeps it.
    pub async fn exec_command(&self, call: ExecCommand) -> Result<ToolOutput, ExecCommandError> {
        let started_at = Instant::now();
        let mut request = self.approve(&call).await?;
        let policy = &self.shared_exec.policy;
        let mut output = self.attempt(&call, &request, 0, started_at).await?;
        for attempt in 1..ATTEMPTS {
            let Some(denied) = denied(&output) else { break };
            if !policy.retry(&request, &denied).await {
                break;
            }
            request.denied = Some(denied);
            if policy.approve(request.clone()).await != ApprovalDecision::Approved {
                break;
            }
            match self.attempt(&call, &request, attempt, started_at).await {
                Ok(retried) => output = retried,
                Err(error) => {
                    // The first attempt ran, and its output is in no other answer.
                    tracing::debug!(%error, "failed to retry a command after a sandbox denial");
                    break;
                }
            }
        }
        Ok(output)
    }

    /// Starts a command without waiting for it. Its handle is a task's: its result can be read
    /// repeatedly. A sandbox denial is not retried. Dropping the future is as in
    /// [`exec_command`](Self::exec_command).
    pub async fn start_task(&self, call: ExecCommand) -> Result<ProcessNumber, ExecCommandError> {
        let request = self.approve(&call).await?;
        let guard = self.start(&call, &request, 0, HandleKind::Task).await?;
        Ok(guard.disclose())
    }

    /// Checks the arguments of a call and asks the policy.
    async fn approve(&self, call: &ExecCommand) -> Result<ApprovalRequest, ExecCommandError> {
        if call.view == OutputView::Screen && !call.tty {
            return Err(ExecCommandError::NoScreen);
        }
        let info = self
            .shared_exec
            .info()
            .await
            .map_err(ExecCommandError::Host)?;
        let argv = call::argv(&call.program, &info.shell);
        let cwd = call.workdir.as_ref().or(info.cwd.as_ref());
        let request = ApprovalRequest {
            call_id: call.call_id.clone(),
            argv: argv.ok_or(ExecCommandError::Empty)?,
            cwd: cwd.ok_or(ExecCommandError::NoDirectory)?.clone(),
            justification: call.justification.clone(),
            denied: None,
        };
        match self.shared_exec.policy.approve(request.clone()).await {
            ApprovalDecision::Approved => Ok(request),
            ApprovalDecision::Refused(reason) => Err(ExecCommandError::Refused(reason)),
        }
    }

    /// Runs an approved command for one wait window.
    async fn attempt(
        &self,
        call: &ExecCommand,
        request: &ApprovalRequest,
        attempt: usize,
        started_at: Instant,
    ) -> Result<ToolOutput, ExecCommandError> {
        let settings = &self.shared_exec.settings;
        let guard = self
            .start(call, request, attempt, HandleKind::Command)
            .await?;
        let window = settings
            .windows
            .wait_window(WaitPhase::Start, call.yield_time, &call.wait);
        let deadline = Instant::now() + window;
        OutputWait::begin(guard.process(), &call.wait, MatchScope::LastCall, deadline)
            .done()
            .await;
        Ok(guard.finish(&OutputRequest {
            started_at,
            view: call.view,
            tokens: settings.tokens(call.max_output_tokens),
        }))
    }

    /// Starts a command, reports it, and spawns its watcher.
    async fn start(
        &self,
        call: &ExecCommand,
        request: &ApprovalRequest,
        attempt: usize,
        kind: HandleKind,
    ) -> Result<CallGuard<'_>, ExecCommandError> {
        let shared_exec = &*self.shared_exec;
        let number = shared_exec.table.allocate()?;
        let id = shared_exec.settings.scope.handle(kind)?;
        let (argv, cwd) = (request.argv.clone(), request.cwd.clone());
        let stdin = call.stdin.unwrap_or(shared_exec.settings.stdin);
        let details = CommandDetails {
            number,
            call_id: call.call_id.clone(),
            argv: argv.clone(),
            cwd: cwd.clone(),
            tty: call.tty,
            has_stdin: call.tty || stdin == StdinMode::Piped,
            started: SystemTime::now(),
        };
        let (io, terminal) = if call.tty {
            (
                ProcessIo::Terminal(shared_exec.settings.terminal),
                TerminalMode::Given,
            )
        } else {
            (ProcessIo::Pipes { stdin }, TerminalMode::None)
        };
        let command = Command {
            env_policy: Some(shared_exec.settings.env_policy.clone()),
            env: call::noninteractive_env(terminal, &call.env),
            io,
            sandbox: shared_exec.policy.sandbox(request, attempt),
            network: shared_exec.policy.network(request, attempt),
            mode: Some(ExecMode::Prepared),
            ..Command::new(id, argv, cwd)
        };
        let started = shared_exec.store.store.start(command).await?;
        let handle = Arc::clone(&started.process);
        let watched = shared_exec.watch(details, started.process);
        if watched.is_err() {
            // Dropping the handle ends the command, except in a durable store.
            shared_exec.store.release(handle);
        }
        watched
    }
}

impl UnifiedExecShared {
    /// Enters a process into the table, reports its start, and spawns its watcher.
    pub(super) fn watch(
        &self,
        details: CommandDetails,
        process: Arc<dyn ExecProcess>,
    ) -> Result<CallGuard<'_>, ExecCommandError> {
        let screen = details.tty.then_some(self.settings.terminal);
        let buffers = OutputBuffers::new(self.settings.retained_bytes, screen);
        let shared = Arc::new(ProcessShared::new(buffers));
        let process = Arc::new(UnifiedExecProcess {
            details: details.clone(),
            process,
            shared: Arc::clone(&shared),
        });
        let events = process.process.follow(FollowOptions {
            start: FollowStart::After(OutputSeq(0)),
            backpressure: BackpressureMode::Pause,
        });
        let guard = CallGuard::register(self, process)?;
        let (sink, settings) = (Arc::clone(&self.events), Arc::clone(&self.settings));
        let watcher = ProcessWatcher::begin(details, shared, sink, settings);
        tokio::spawn(watcher.watch(events));
        Ok(guard)
    }
}

/// Returns the denial of an ended command, if the sandbox denied it something.
fn denied(output: &ToolOutput) -> Option<SandboxDenial> {
    let exit = output.exit.as_ref().filter(|exit| exit.sandbox_denied)?;
    Some(SandboxDenial {
        exit_code: exit.code,
        output: output.transcript.text.clone(),
    })
}
