//! `process/*`: starting, feeding, reading and ending processes.

mod output;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::output::{
    Acknowledged, AttachProcess, Attached, ExitCause, Exited, ListProcesses, OutputPage,
    OutputStream, PageChunk, ProcessClosed, ProcessFailed, ProcessList, ProcessOwner,
    ProcessSnapshot, ProcessStarted, ProcessState, ProcessSummary, ReadProcess, ReleaseProcess,
    SnapshotProcess, Usage,
};
use crate::{
    bytes::Base64,
    environment::Shell,
    id::{ProcessId, WriteId},
    method::{Method, MethodName},
    network::{ManagedNetwork, NetworkProxy},
    path_uri::PathUri,
    sandbox::Sandbox,
};

macro_rules! method {
    ($type:ty, $name:ident, $result:ty) => {
        impl Method for $type {
            const NAME: MethodName = MethodName::$name;
            type Result = $result;
        }
    };
}

method!(StartProcess, ProcessStart, Started);
method!(ReadProcess, ProcessRead, OutputPage);
method!(WriteProcess, ProcessWrite, WriteResult);
method!(CloseStdin, ProcessCloseStdin, WriteResult);
method!(ResizeProcess, ProcessResize, Empty);
method!(SignalProcess, ProcessSignal, Empty);
method!(TerminateProcess, ProcessTerminate, Terminated);
method!(WaitProcess, ProcessWait, WaitResult);
method!(SnapshotProcess, ProcessSnapshot, ProcessSnapshot);
method!(AttachProcess, ProcessAttach, Attached);
method!(ReleaseProcess, ProcessRelease, Empty);
method!(ListProcesses, ProcessList, ProcessList);

/// The empty object.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Deserialize, Serialize)]
pub struct Empty {}

/// `process/start`: starts a process. The answer comes once it runs, or could not be started.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StartProcess {
    /// The client's name for it, unique in the session.
    pub process_id: ProcessId,
    /// Exported to the child as `CODEX_THREAD_ID` and `CODEX_TOOL_CALL_ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Program and arguments; not empty.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: PathUri,
    /// How the server's own environment enters. Absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_policy: Option<EnvPolicy>,
    /// The environment, or what is laid over the policy's.
    pub env: BTreeMap<String, String>,
    /// Replays a login shell's state instead of sourcing its profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell_snapshot: Option<ShellSnapshot>,
    /// Runs on a pseudo-terminal.
    pub tty: bool,
    /// Keeps stdin writable for a process that is not on a terminal.
    #[serde(default)]
    pub pipe_stdin: bool,
    /// What the program sees as `argv[0]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
    /// What the process may use. Absent: everything that the server may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
    /// Requires a sandbox with managed network.
    #[serde(default)]
    pub enforce_managed_network: bool,
    /// Settings of the managed network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_network: Option<ManagedNetwork>,
    /// A proxy of the process's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_proxy: Option<NetworkProxy>,
    /// Initial size of the terminal; 24 × 80 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<TerminalSize>,
    /// Whether the caller's policy has already resolved this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ExecMode>,
    /// What the process may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Belongs to the server instead of the session.
    #[serde(default)]
    pub detached: bool,
}

/// Who asked for the process, in the client's terms.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// A UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// How the server's environment enters the child's.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvPolicy {
    /// Which names to begin with.
    pub inherit: EnvInherit,
    /// Keeps names that look like secrets.
    pub ignore_default_excludes: bool,
    /// Patterns of names to drop.
    pub exclude: Vec<String>,
    /// Pairs to set after dropping.
    pub set: BTreeMap<String, String>,
    /// If not empty, patterns of the only names to keep.
    pub include_only: Vec<String>,
}

/// Which names of the server's environment a policy begins with.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EnvInherit {
    /// Every name.
    All,
    /// No name.
    None,
    /// A short list: `PATH`, `HOME`, …
    Core,
}

/// Asks for the state of a login shell.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShellSnapshot {
    /// What the state is kept for; 1 to 256 bytes.
    pub scope_id: String,
    /// The shell.
    pub shell: Shell,
}

/// Rows and columns of a terminal.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Whether the caller resolved approval and sandbox before it asked.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ExecMode {
    /// A raw command of a trusted caller.
    Direct,
    /// A request that the caller's policy has resolved.
    Prepared,
}

/// What a process may use. Absent members are unlimited.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Milliseconds from start to a kill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Milliseconds without output or input to a kill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Milliseconds of processor time, rounded up to a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Bytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Open descriptors of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Bytes of one file that it writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
}

/// The answer to `process/start`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    /// As in the request.
    pub process_id: ProcessId,
    /// What encloses the process. Absent from older peers.
    #[serde(default)]
    pub sandbox_type: Option<SandboxType>,
}

/// What encloses a process.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SandboxType {
    /// Nothing.
    None,
    /// Linux kernel features.
    LinuxSeccomp,
    /// macOS Seatbelt.
    MacosSeatbelt,
    /// A restricted token on Windows.
    WindowsRestrictedToken,
    /// One that a newer peer knows.
    #[serde(other)]
    Unknown,
}

/// `process/write`: queues bytes for the child's stdin.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteProcess {
    /// The process.
    pub process_id: ProcessId,
    /// The bytes. Absent only when they travel raw beside the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Base64>,
    /// Makes repeating the write harmless.
    pub write_id: WriteId,
}

/// `process/closeStdin`: ends the child's input after all earlier writes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CloseStdin {
    /// The process.
    pub process_id: ProcessId,
    /// Makes repeating it harmless on a terminal, where end-of-file is a character.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_id: Option<WriteId>,
}

/// The answer to `process/write` and `process/closeStdin`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WriteResult {
    /// What became of it.
    pub status: WriteStatus,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WriteStatus {
    /// Queued for the child, or accepted earlier under the same id.
    Accepted,
    /// No such process.
    UnknownProcess,
    /// The process was started without a writable stdin, or it was closed.
    StdinClosed,
    /// The process is not running yet.
    Starting,
}

/// `process/resize`: tells a terminal's process its new size.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResizeProcess {
    /// The process.
    pub process_id: ProcessId,
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// `process/signal`: signals the process group.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalProcess {
    /// The process.
    pub process_id: ProcessId,
    /// The signal.
    pub signal: ProcessSignal,
}

/// A signal that a client may send.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
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

/// `process/terminate`: ends the process and its whole tree.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminateProcess {
    /// The process.
    pub process_id: ProcessId,
    /// At once, or after a warning. Absent: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<TerminateMode>,
}

/// How a process is ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum TerminateMode {
    /// SIGKILL, now.
    #[default]
    Force,
    /// SIGTERM, and SIGKILL when the time is up.
    #[serde(rename_all = "camelCase")]
    Graceful {
        /// Milliseconds between the two.
        timeout_ms: u64,
    },
}

/// The answer to `process/terminate`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Terminated {
    /// Whether there was something to end.
    pub running: bool,
}

/// `process/wait`: waits for the end of a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitProcess {
    /// The process.
    pub process_id: ProcessId,
    /// For what.
    #[serde(default)]
    pub until: WaitUntil,
    /// How long at most. Absent: as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// What a wait waits for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitUntil {
    /// The child was reaped.
    Exited,
    /// Its output ended, too.
    #[default]
    Closed,
}

/// The answer to `process/wait`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitResult {
    /// The child was reaped.
    pub exited: bool,
    /// Its code, if so.
    pub exit_code: Option<i32>,
    /// The signal that killed it, if one did.
    pub signal: Option<String>,
    /// The output ended.
    pub closed: bool,
    /// The time was up first.
    pub timed_out: bool,
}
