//! The tools that run, list and control commands.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use exec_env::environment::StdinMode;
use exec_wire::{error::error_chain, process};
use regex::{Error, bytes::RegexBuilder};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    progress::ProgressSource,
    session::McpContext,
    tasks,
    tool::{self, MAX_ANSWER_BYTES, McpTool, ToolAnswer, ToolEffect, ToolError, truncate_json},
};
use crate::unified::{
    CommandProgram, ExecCommand, OutputView, ProcessNumber, ProcessSummary, ToolOutput, WaitFor,
    WriteStdin, WriteStdinError,
};

/// The arguments of `exec_command`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct ExecCommandTool {
    /// Shell command to run.
    cmd: String,
    /// Directory to run it in: absolute, or relative to the workspace. Default: the workspace.
    #[serde(default)]
    workdir: Option<String>,
    /// Program of the shell. Default: the account's own shell.
    #[serde(default)]
    shell: Option<String>,
    /// Runs the shell as a login shell, which reads the profile. Default: false.
    #[serde(default)]
    login: bool,
    /// Gives the command a terminal, which write_stdin types into. Needed by full-screen and
    /// prompting programs. Default: false, pipes.
    #[serde(default)]
    tty: bool,
    /// Lets write_stdin write to a command without a terminal. Default: false: it reads nothing,
    /// and programs that read to the end of their input do not wait for it.
    #[serde(default)]
    open_stdin: bool,
    /// How long to wait for the command to end before returning its output so far, in milliseconds.
    /// Default: 10000; 250 to 600000, or to 50000 if the client takes no notifications of progress.
    #[serde(default)]
    yield_time_ms: Option<u64>,
    /// Maximum number of output tokens to show; the middle of longer output is left out. Default:
    /// 10000.
    #[serde(default)]
    max_output_tokens: Option<usize>,
    /// What ends the wait before the command does.
    #[serde(default)]
    wait_for: Option<WaitForArgument>,
    /// How to show the output: `plain` text, `raw` with escape codes, or the `screen` of the
    /// terminal as it is now (needs tty). Default: plain.
    #[serde(default)]
    view: Option<ViewArgument>,
    /// Variables to set.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Why the command is needed, in a sentence.
    #[serde(default)]
    justification: Option<String>,
}

impl McpTool for ExecCommandTool {
    const NAME: &'static str = "exec_command";
    const TITLE: &'static str = "Run a command";
    const DESCRIPTION: &'static str = "Runs a shell command. Returns its output and its exit code, or, if \
        it still runs when yield_time_ms is over, its output so far and a session ID: continue with write_stdin. \
        A command that fails is not an error of the tool: look at the exit code. Background \
        processes of a command (`server &`) are killed when its exit is shown: run a server as its own command.";
    const EFFECT: ToolEffect = ToolEffect::Run;

    fn output_schema() -> Option<Arc<JsonObject>> {
        Some(tool::schema::<CommandOutput>())
    }

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let command = self.into_command(ctx)?;
        ctx.watch_command(ProgressSource::Call(ctx.call.clone()));
        let output = ctx.exec().exec_command(command).await;
        Ok(command_answer(output?, ctx))
    }
}

impl ExecCommandTool {
    /// Returns whether the call may return before the command ends.
    pub(in crate::mcp) fn returns_early(&self) -> bool {
        self.yield_time_ms.is_some() || self.wait_for.is_some()
    }

    /// Resolves the arguments.
    pub(in crate::mcp) fn into_command(self, ctx: &McpContext) -> Result<ExecCommand, ToolError> {
        if self.cmd.trim().is_empty() {
            return Err(ToolError::new("`cmd` must not be empty"));
        }
        let workdir = match &self.workdir {
            Some(typed) => ctx.path(typed)?,
            None => ctx.root().clone(),
        };
        Ok(ExecCommand {
            call_id: ctx.call.clone(),
            program: CommandProgram::Shell {
                line: self.cmd,
                shell: self.shell,
                login: self.login,
            },
            workdir: Some(workdir),
            env: self.env,
            tty: self.tty,
            stdin: self.open_stdin.then_some(StdinMode::Piped),
            yield_time: wait_limit(ctx, self.yield_time_ms),
            wait: self.wait_for.unwrap_or_default().parse()?,
            max_output_tokens: self.max_output_tokens,
            view: self.view.unwrap_or_default().into(),
            justification: self.justification,
        })
    }
}

/// The arguments of `write_stdin`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct WriteStdinTool {
    /// Session ID that exec_command returned.
    session_id: String,
    /// Characters to write, such as "y
    /// "; "\u0003" alone (Ctrl-C) interrupts every command, also one without a terminal. Default:
    /// none, only waits for output.
    #[serde(default)]
    chars: String,
    /// Closes the input after that, for commands that read to the end. Default: false.
    #[serde(default)]
    close_stdin: bool,
    /// How long to wait for more output, in milliseconds. Default: 250 after writing, else 5000;
    /// 250 to 600000, or to 50000 if the client takes no notifications of progress.
    #[serde(default)]
    yield_time_ms: Option<u64>,
    /// Maximum number of output tokens to show. Default: 10000.
    #[serde(default)]
    max_output_tokens: Option<usize>,
    /// What ends the wait before the command does.
    #[serde(default)]
    wait_for: Option<WaitForArgument>,
    /// How to show the output: `plain`, `raw`, or the `screen` of the terminal as it is now.
    /// Default: plain.
    #[serde(default)]
    view: Option<ViewArgument>,
}

impl McpTool for WriteStdinTool {
    const NAME: &'static str = "write_stdin";
    const TITLE: &'static str = "Write to a running command";
    const DESCRIPTION: &'static str = "Writes to a command that exec_command left running, or only waits \
        for it, and returns its output since the last call and, if it ended, its exit code. It can write to \
        commands that were started with tty or open_stdin, and interrupt every one.";
    const EFFECT: ToolEffect = ToolEffect::Run;

    fn output_schema() -> Option<Arc<JsonObject>> {
        Some(tool::schema::<CommandOutput>())
    }

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let number = find_command(ctx, &self.session_id).await?;
        ctx.watch_command(ProgressSource::Number(number));
        let write = WriteStdin {
            call_id: ctx.call.clone(),
            number,
            chars: self.chars,
            close: self.close_stdin,
            yield_time: wait_limit(ctx, self.yield_time_ms),
            wait: self.wait_for.unwrap_or_default().parse()?,
            max_output_tokens: self.max_output_tokens,
            view: self.view.unwrap_or_default().into(),
        };
        let output = ctx.exec().write_stdin(write).await;
        let output = output.map_err(|error| control_error(&self.session_id, error))?;
        Ok(command_answer(output, ctx))
    }
}

/// The arguments of `terminate_process`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct TerminateProcess {
    /// Session ID that exec_command returned.
    session_id: String,
}

impl McpTool for TerminateProcess {
    const NAME: &'static str = "terminate_process";
    const TITLE: &'static str = "End a running command";
    const DESCRIPTION: &'static str = "Ends a command that exec_command left running, and everything that it has started. \
        Returns its last output and its exit code.";
    const EFFECT: ToolEffect = ToolEffect::Terminate;

    fn output_schema() -> Option<Arc<JsonObject>> {
        Some(tool::schema::<CommandOutput>())
    }

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let number = find_command(ctx, &self.session_id).await?;
        let ended = ctx.exec().terminate(number).await;
        let ended = ended.map_err(|error| control_error(&self.session_id, error))?;
        Ok(command_answer(ended, ctx))
    }
}

/// Maximum size of a compiled pattern: bounds the time and memory of a search. A `\w` takes 50 KiB,
/// `.{1,80}` takes 100.
const MAX_PATTERN_BYTES: usize = 256 << 10;
/// Memory for the cache of the regex engine.
const MAX_DFA_CACHE_BYTES: usize = 1 << 20;

/// Condition that ends a wait early. At most one member may be given.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct WaitForArgument {
    /// Returns when no output came for this many milliseconds, after some did.
    #[serde(default)]
    idle_ms: Option<u64>,
    /// Returns when the output of this call matches this regular expression (Rust syntax).
    #[serde(default)]
    pattern: Option<String>,
    /// Returns when the call has seen this many bytes of output.
    #[serde(default)]
    bytes: Option<usize>,
}

impl WaitForArgument {
    /// Parses the argument.
    fn parse(self) -> Result<WaitFor, ToolError> {
        match (self.idle_ms, self.pattern, self.bytes) {
            (None, None, None) => Ok(WaitFor::Exit),
            (Some(idle), None, None) => Ok(WaitFor::Idle(Duration::from_millis(idle))),
            (None, Some(pattern), None) => RegexBuilder::new(&pattern)
                .size_limit(MAX_PATTERN_BYTES)
                .dfa_size_limit(MAX_DFA_CACHE_BYTES)
                .multi_line(true)
                .build()
                .map(WaitFor::Pattern)
                .map_err(|error| match error {
                    Error::CompiledTooBig(_) => ToolError::new(
                        "`wait_for.pattern` is too large to search for efficiently: use smaller numbers in \
                         `{}`, or `(?-u)` and classes such as `[a-z]` in place of `\\w`",
                    ),
                    error @ (Error::Syntax(_) | _) => {
                        ToolError(format!("`wait_for.pattern`: {error}"))
                    }
                }),
            (None, None, Some(bytes)) => Ok(WaitFor::Bytes(bytes)),
            _ => Err(ToolError::new(
                "`wait_for` takes one of `idle_ms`, `pattern` and `bytes`",
            )),
        }
    }
}

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum ViewArgument {
    #[default]
    Plain,
    Raw,
    Screen,
}

impl From<ViewArgument> for OutputView {
    fn from(view: ViewArgument) -> Self {
        match view {
            ViewArgument::Plain => Self::Plain,
            ViewArgument::Raw => Self::Raw,
            ViewArgument::Screen => Self::Screen,
        }
    }
}

/// Limits a requested wait if the client does not support progress notifications.
fn wait_limit(ctx: &McpContext, requested: Option<u64>) -> Option<Duration> {
    let requested = requested.map(Duration::from_millis);
    requested.map(|requested| ctx.progress_support.limit_wait(requested))
}

/// Maximum encoded size of the output, which the answer contains twice: as text and structured. The
/// rest is for the text around it.
const MAX_OUTPUT_BYTES: usize = MAX_ANSWER_BYTES / 2 - (16 << 10);

/// Structured output of a command.
#[derive(Clone, Debug, JsonSchema, Serialize)]
struct CommandOutput {
    /// Session ID of the command, if it is still running: the session_id of write_stdin.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    /// Exit code, if it ended; 128 + n after signal n.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Name of the signal that killed it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    /// True if the sandbox seems to have refused it something.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_denied: Option<bool>,
    /// What the sandbox probably refused, and which flags of this server allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_hint: Option<String>,
    /// Why the state of the command is unknown, if so: it may or may not still be running.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<String>,
    /// How long this call took, in seconds.
    wall_time_seconds: f64,
    /// Tokens of all output since the last call, before truncation.
    original_token_count: usize,
    /// Output since the last call.
    output: String,
}

/// Converts the output of a call into an answer.
pub(in crate::mcp) fn command_answer(output: ToolOutput, ctx: &McpContext) -> ToolAnswer {
    let exit = output.exit.as_ref();
    let denied = exit.is_some_and(|exit| exit.sandbox_denied);
    let failed = exit.is_some_and(|exit| exit.code != 0);
    let hint = failed.then(|| ctx.explain_denial(&output.transcript.text, denied));
    let structured = CommandOutput {
        session_id: output.running.map(|_| output.process_id.to_string()),
        exit_code: exit.map(|exit| exit.code),
        signal: exit.and_then(|exit| exit.signal).map(str::to_owned),
        sandbox_denied: denied.then_some(true),
        sandbox_hint: hint.flatten(),
        lost: output.failure.as_ref().map(ToString::to_string),
        wall_time_seconds: (output.wall_time.as_secs_f64() * 1000.0).round() / 1000.0,
        original_token_count: output.transcript.original_tokens,
        output: truncate_json(&output.transcript.text, MAX_OUTPUT_BYTES).into_owned(),
    };
    ToolAnswer::text(render(&structured)).with(&structured)
}

/// Renders the output as text. Writing to a string cannot fail.
fn render(output: &CommandOutput) -> String {
    let mut text = format!("Wall time: {:.3} seconds\n", output.wall_time_seconds);
    if let Some(code) = output.exit_code {
        let _ = write!(text, "Process exited with code {code}");
        if let Some(signal) = &output.signal {
            let _ = write!(text, " (killed by {signal})");
        }
        text.push('\n');
    }
    if let Some(id) = &output.session_id {
        let _ = writeln!(text, "Process running with session ID {id}");
    }
    if let Some(reason) = &output.lost {
        let _ = writeln!(text, "Process was lost: {reason}");
    }
    if let Some(hint) = &output.sandbox_hint {
        let _ = writeln!(text, "{hint}");
    }
    let _ = writeln!(
        text,
        "Original token count: {}",
        output.original_token_count
    );
    text.push_str("Output:\n");
    text.push_str(&output.output);
    text
}

/// Finds the command with a session ID or task id, also one that an earlier server process started.
async fn find_command(ctx: &McpContext, session_id: &str) -> Result<ProcessNumber, ToolError> {
    let found = match tasks::process_id(session_id) {
        Some(id) => ctx.exec().find(&id).await?,
        None => None,
    };
    found.ok_or_else(|| unknown_command(session_id))
}

fn unknown_command(session_id: &str) -> ToolError {
    let session_id = truncate_json(session_id, MAX_SHOWN_BYTES);
    ToolError(format!("no command has session_id {session_id}"))
}

/// Explains why a command cannot be written to or ended.
fn control_error(id: &str, error: WriteStdinError) -> ToolError {
    let command = format!("the command with session_id {id}");
    ToolError(match error {
        WriteStdinError::Unknown(_) => return unknown_command(id),
        WriteStdinError::Busy(_) => {
            format!("another call waits for {command}: wait for that one, or cancel it")
        }
        WriteStdinError::Evicted(_, limit) => {
            format!("{command} was evicted: at most {limit} commands are kept")
        }
        WriteStdinError::NoScreen(_) => {
            format!("{command} has no terminal, and so no screen: start it with `tty`")
        }
        WriteStdinError::InputClosed(_) => format!("the input of {command} is closed"),
        WriteStdinError::NoInput(_) => format!(
            "{command} was started without an input: start it with `open_stdin`, or with `tty` if it prompts"
        ),
        WriteStdinError::NotReading(_) => format!("{command} does not read its input"),
        WriteStdinError::NotEnding(_) => format!("{command} does not exit"),
        error @ WriteStdinError::Process(_) => error_chain(&error),
    })
}

/// Maximum number of listed commands: as many as run at once.
const MAX_LISTED: usize = 64;
/// Maximum encoded size of a command and of its directory. 64 entries, twice each, fit into an
/// answer.
const MAX_SHOWN_BYTES: usize = 2 << 10;
/// Maximum number of arguments shown.
const MAX_SHOWN_ARGUMENTS: usize = 8;

/// The arguments of `list_processes`: none.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct ListProcesses {}

/// Structured output of `list_processes`.
#[derive(Clone, Debug, JsonSchema, Serialize)]
struct ProcessList {
    /// Commands that are running, and ended commands whose exit was not shown yet.
    processes: Vec<ListedProcess>,
}

/// One command.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(inline)]
struct ListedProcess {
    /// The session_id of write_stdin.
    session_id: String,
    /// Program and arguments.
    command: Vec<String>,
    /// Directory that it was started in.
    workdir: String,
    /// True if it has a terminal.
    tty: bool,
    /// How long ago it was started.
    started_seconds_ago: u64,
    /// True if it is running; if not, write_stdin shows its exit code.
    running: bool,
    /// Exit code, if it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

impl McpTool for ListProcesses {
    const NAME: &'static str = "list_processes";
    const TITLE: &'static str = "List running commands";
    const DESCRIPTION: &'static str = "Lists the commands that exec_command left running, and those whose \
        end was not shown yet, with their session IDs. Includes commands from before a restart that are still \
        there.";
    const EFFECT: ToolEffect = ToolEffect::ReadOnly;

    fn output_schema() -> Option<Arc<JsonObject>> {
        Some(tool::schema::<ProcessList>())
    }

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let now = SystemTime::now();
        let stored = ctx.exec().stored().await?;
        let own = ctx.exec().processes();
        let mut listed: Vec<_> = own.iter().map(|one| describe(one, now, ctx)).collect();
        let stored = stored.iter().map(|one| describe_stored(one, now, ctx));
        listed.extend(stored.take(MAX_LISTED - listed.len().min(MAX_LISTED)));
        let processes = ProcessList { processes: listed };
        let mut text = String::new();
        for process in &processes.processes {
            let state = match (process.running, process.exit_code) {
                (true, _) => "running".to_owned(),
                (false, Some(code)) => format!("exited with code {code}"),
                (false, None) => "lost".to_owned(),
            };
            let command = process.command.last().map_or("", String::as_str);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "session {}: {state}, started {} s ago in {}: {command}",
                process.session_id, process.started_seconds_ago, process.workdir
            );
        }
        if processes.processes.is_empty() {
            text.push_str("Nothing is running.");
        }
        Ok(ToolAnswer::text(text).with(&processes))
    }
}

fn describe(process: &ProcessSummary, now: SystemTime, ctx: &McpContext) -> ListedProcess {
    let age = now
        .duration_since(process.started)
        .unwrap_or(Duration::ZERO);
    ListedProcess {
        session_id: process.process_id.to_string(),
        command: shorten_argv(&process.argv),
        workdir: truncate_json(&ctx.display_path(&process.cwd), MAX_SHOWN_BYTES).into_owned(),
        tty: process.tty,
        started_seconds_ago: age.as_secs(),
        running: !process.state.has_exited && process.state.failure.is_none(),
        exit_code: process.state.exit_code,
    }
}

/// Describes a command that an earlier server process started.
fn describe_stored(
    process: &process::ProcessSummary,
    now: SystemTime,
    ctx: &McpContext,
) -> ListedProcess {
    let started = UNIX_EPOCH + Duration::from_millis(process.started_at_ms);
    ListedProcess {
        session_id: process.process_id.to_string(),
        command: shorten_argv(&process.argv),
        workdir: truncate_json(&ctx.display_path(&process.cwd), MAX_SHOWN_BYTES).into_owned(),
        tty: process.tty,
        started_seconds_ago: now.duration_since(started).unwrap_or_default().as_secs(),
        running: process.running,
        exit_code: process.exit_code,
    }
}

/// Shortens program and arguments for the list.
fn shorten_argv(argv: &[String]) -> Vec<String> {
    let max_bytes = MAX_SHOWN_BYTES / argv.len().clamp(1, MAX_SHOWN_ARGUMENTS);
    let arguments = argv.iter().take(MAX_SHOWN_ARGUMENTS);
    arguments
        .map(|argument| truncate_json(argument, max_bytes).into_owned())
        .collect()
}
