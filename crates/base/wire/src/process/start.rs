//! `process/start`: what to run, where, and within which limits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    environment::Shell,
    id::ProcessId,
    network::{ManagedNetwork, NetworkProxy},
    path_uri::PathUri,
    sandbox::Sandbox,
};

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
