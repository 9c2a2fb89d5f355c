//! `process/*`: start, input, output, signals and termination of processes, and `command/exec*`:
//! the first version of these methods, with native paths and boolean statuses.

mod output;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    base64_bytes::Base64Bytes,
    environment::ShellProgram,
    id::{ProcessId, WriteId},
    network::{ManagedNetwork, NetworkProxy},
    path_uri::PathUri,
    sandbox::SandboxPolicy,
};

pub use self::output::{
    AcknowledgeProcess, AttachProcess, AttachResult, ExitCause, ListHistory, ListProcesses,
    OutputPage, OutputStream, PageChunk, ProcessClosed, ProcessExited, ProcessFailed, ProcessList,
    ProcessOutput, ProcessOwner, ProcessSnapshot, ProcessStarted, ProcessState, ProcessSummary,
    PurgeHistory, PurgedHistory, ReadProcess, ReleaseProcess, ResourceUsage, SnapshotProcess,
};

/// Empty object.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmptyResult {}

/// `process/start`: starts a process. The response is sent once it runs or has failed to start.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StartProcess {
    /// Process id chosen by the client, unique in the session.
    pub process_id: ProcessId,
    /// Exported to the child as `CODEX_THREAD_ID` and `CODEX_TOOL_CALL_ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ProcessMetadata>,
    /// Program and arguments. Not empty.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: PathUri,
    /// How the child inherits the server's environment. Absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_policy: Option<EnvPolicy>,
    /// Environment variables, applied on top of those from the policy.
    pub env: BTreeMap<String, String>,
    /// Restores a snapshot of a login shell instead of sourcing its profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell_snapshot: Option<ShellSnapshot>,
    /// Runs the process on a pseudo-terminal.
    pub tty: bool,
    /// Keeps stdin writable for a process without a terminal.
    #[serde(default)]
    pub pipe_stdin: bool,
    /// Overrides `argv[0]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
    /// Sandbox policy. Absent: no sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
    /// Requires a sandbox with managed network.
    #[serde(default)]
    pub enforce_managed_network: bool,
    /// Settings of the managed network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_network: Option<ManagedNetwork>,
    /// Proxy that the server runs for this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_proxy: Option<NetworkProxy>,
    /// Initial terminal size. Absent: 24 × 80.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<TerminalSize>,
    /// Whether the caller has already resolved its policy for this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ExecMode>,
    /// Resource limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ProcessLimits>,
    /// Detaches the process: it belongs to the server instead of the session.
    #[serde(default)]
    pub detached: bool,
    /// Whether the process outlives its server. Absent: as the server is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
}

/// Origin of the process in terms of the client.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessMetadata {
    /// UUID of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Id of the tool call. Any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// How the child inherits the server's environment.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvPolicy {
    /// Variables to start with.
    pub inherit: EnvInherit,
    /// Keeps variables with names that look like secrets.
    pub ignore_default_excludes: bool,
    /// Patterns of names to drop.
    pub exclude: Vec<String>,
    /// Variables to set after dropping.
    pub set: BTreeMap<String, String>,
    /// If not empty, patterns of the only names to keep.
    pub include_only: Vec<String>,
}

/// Variables of the server's environment that a policy starts with.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum EnvInherit {
    /// All variables.
    All,
    /// No variables.
    None,
    /// A short list: `PATH`, `HOME`, …
    Core,
}

/// Requests the snapshot of a login shell.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShellSnapshot {
    /// Scope in which the snapshot is reused, 1 to 256 bytes.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = crate::limits::MAX_SNAPSHOT_SCOPE_BYTES)))]
    pub scope_id: String,
    /// Shell program.
    pub shell: ShellProgram,
}

/// Size of a terminal.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TerminalSize {
    /// Number of rows.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub rows: u16,
    /// Number of columns.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Whether the caller resolved approval and sandbox before the request.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ExecMode {
    /// Raw command of a trusted caller.
    Direct,
    /// Request that the caller's policy has resolved.
    Prepared,
}

/// Resource limits of a process. Absent members are unlimited.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessLimits {
    /// Wall-clock limit in milliseconds, after which the process is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Limit of time without input or output in milliseconds, after which the process is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// CPU time in milliseconds, rounded up to a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Number of processes of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Open descriptors per process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Bytes per written file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
}

/// Response to `process/start`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StartResult {
    /// Process id of the request.
    pub process_id: ProcessId,
    /// Sandbox mechanism. Absent from older peers.
    #[serde(default)]
    pub sandbox_type: Option<SandboxType>,
}

/// Sandbox mechanism of a process.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::open_enum))]
#[serde(rename_all = "camelCase")]
pub enum SandboxType {
    /// No sandbox.
    None,
    /// Linux kernel features.
    LinuxSeccomp,
    /// macOS Seatbelt.
    MacosSeatbelt,
    /// A restricted token on Windows.
    WindowsRestrictedToken,
    /// Unknown value from a newer peer.
    #[serde(other)]
    Unknown,
}

/// `process/write`: queues bytes for the child's stdin.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteProcess {
    /// Process id.
    pub process_id: ProcessId,
    /// Input bytes. Absent if they are sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Base64Bytes>,
    /// Makes retries of the write idempotent.
    pub write_id: WriteId,
}

/// `process/closeStdin`: closes the child's stdin after all earlier writes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CloseStdin {
    /// Process id.
    pub process_id: ProcessId,
    /// Makes retries idempotent on a terminal, where end-of-file is a character.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_id: Option<WriteId>,
}

/// Response to `process/write` and `process/closeStdin`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WriteResult {
    /// Status of the write.
    pub status: WriteStatus,
}

/// Status of a write.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WriteStatus {
    /// Queued for the child, or accepted earlier under the same id.
    Accepted,
    /// Unknown process.
    UnknownProcess,
    /// The process was started without a writable stdin, or it was closed.
    StdinClosed,
    /// The process is not running yet.
    Starting,
}

/// `process/resize`: sets the terminal size.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResizeProcess {
    /// Process id.
    pub process_id: ProcessId,
    /// Number of rows.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub rows: u16,
    /// Number of columns.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub cols: u16,
}

/// `process/signal`: sends a signal to the process group.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SignalProcess {
    /// Process id.
    pub process_id: ProcessId,
    /// Signal to send.
    pub signal: ProcessSignal,
}

/// Signal that a client may send.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ProcessSignal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
    /// SIGHUP.
    Hangup,
    /// SIGQUIT.
    Quit,
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    Continue,
    /// SIGUSR1.
    User1,
    /// SIGUSR2.
    User2,
}

/// `process/terminate`: terminates the process and its whole tree.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateProcess {
    /// Process id.
    pub process_id: ProcessId,
    /// Termination mode. Absent: force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<TerminateMode>,
}

/// Termination mode.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum TerminateMode {
    /// SIGKILL immediately.
    #[default]
    Force,
    /// SIGTERM, then SIGKILL after the timeout.
    #[serde(rename_all = "camelCase")]
    Graceful {
        /// Timeout in milliseconds.
        timeout_ms: u64,
    },
}

/// Response to `process/terminate`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TerminateResult {
    /// The process was running.
    pub running: bool,
}

/// `process/wait`: waits for a process to end.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WaitProcess {
    /// Process id.
    pub process_id: ProcessId,
    /// Event to wait for.
    #[serde(default)]
    pub until: WaitUntil,
    /// Timeout in milliseconds. Absent: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Event that a wait waits for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WaitUntil {
    /// The child was reaped.
    Exited,
    /// The output ended as well.
    #[default]
    Closed,
}

/// Response to `process/wait`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WaitResult {
    /// The child was reaped.
    pub exited: bool,
    /// Exit code, if reaped.
    pub exit_code: Option<i32>,
    /// Signal that killed the process, if any.
    pub signal: Option<String>,
    /// The output ended.
    pub closed: bool,
    /// The timeout expired first.
    pub timed_out: bool,
}

/// `command/exec`: starts a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecCommand {
    /// Id chosen by the client.
    pub process_id: ProcessId,
    /// Program and arguments. Not empty.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub argv: Vec<String>,
    /// Absolute native path of the working directory.
    pub cwd: String,
    /// Complete environment.
    pub env: BTreeMap<String, String>,
    /// Runs the process on a pseudo-terminal. Otherwise stdin is closed.
    pub tty: bool,
    /// Maximum retained bytes per stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes_cap: Option<usize>,
    /// Overrides `argv[0]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
}

/// Response to `command/exec`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommandStarted {
    /// Process id of the request.
    pub process_id: ProcessId,
    /// Always true: the response is sent once the process runs.
    pub running: bool,
    /// Always null.
    pub exit_code: Option<i32>,
    /// Always null: output is streamed.
    pub stdout: Option<String>,
    /// Always null: output is streamed.
    pub stderr: Option<String>,
}

/// `command/exec/write`: writes to the terminal of a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteCommand {
    /// Process id.
    pub process_id: ProcessId,
    /// Input bytes.
    pub chunk: Base64Bytes,
}

/// Response to `command/exec/write`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandWritten {
    /// Always true: refusals are errors.
    pub accepted: bool,
}

/// `command/exec/terminate`: terminates a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateCommand {
    /// Process id.
    pub process_id: ProcessId,
}

/// `command/exec/outputDelta`: output of a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommandOutputDelta {
    /// Process id.
    pub process_id: ProcessId,
    /// Stream that produced it. A terminal reports as `stdout`.
    pub stream: CommandStream,
    /// Output bytes. Absent if they are sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Base64Bytes>,
}

/// Stream of a process of the first dialect.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum CommandStream {
    /// The child's standard output, or its terminal.
    Stdout,
    /// The child's standard error.
    Stderr,
}

/// `command/exec/exited`: the process ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommandExited {
    /// Process id.
    pub process_id: ProcessId,
    /// Exit code as in `process/exited`.
    pub exit_code: i32,
}
