//! Output and events of processes: pages, snapshots, lists and notifications.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::IgnoredAny};

use crate::{
    base64_bytes::Base64Bytes,
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
    process::TerminalSize,
};

/// Where output came from.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OutputStream {
    /// The child's standard output.
    Stdout,
    /// The child's standard error.
    Stderr,
    /// The child's terminal.
    Pty,
}

impl OutputStream {
    /// Returns the wire name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
        }
    }
}

/// `process/read`: pages through retained output; never consumes it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadProcess {
    /// The process, as the client named it in `process/start`. Not an OS pid.
    pub process_id: ProcessId,
    /// Last sequence number the client has seen. Absent: start at the oldest retained chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<OutputSeq>,
    /// Maximum bytes. At least one whole chunk is returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<usize>,
    /// How long to wait for new output, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Adds the time of each chunk. Only durable processes record times.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub times: bool,
}

/// Response to `process/read`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputPage {
    /// Retained output after the cursor, in ascending order.
    pub chunks: Vec<PageChunk>,
    /// Where to continue: the next `afterSeq` is this minus one.
    pub next_seq: OutputSeq,
    /// The child was reaped.
    pub exited: bool,
    /// Exit code, if reaped.
    pub exit_code: Option<i32>,
    /// The output ended.
    pub closed: bool,
    /// Always null from a server. Clients report their own failures here.
    #[serde(default)]
    pub failure: Option<String>,
    /// The sandbox probably denied an operation.
    #[serde(default)]
    pub sandbox_denied: bool,
    /// Sequence number of `process/exited`, once the child was reaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_seq: Option<OutputSeq>,
    /// POSIX name of the signal that killed the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Reason for the exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<ExitCause>,
    /// Resource usage, once reaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceUsage>,
}

/// Chunk of retained output.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PageChunk {
    /// Sequence number.
    pub seq: OutputSeq,
    /// Stream that produced it.
    pub stream: OutputStream,
    /// Output bytes.
    pub chunk: Base64Bytes,
    /// Time in milliseconds since the Unix epoch, if it was requested and recorded.
    #[serde(rename = "atMs", default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
}

/// `process/snapshot`: returns head and tail of the output.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SnapshotProcess {
    /// Process id.
    pub process_id: ProcessId,
}

/// Response to `process/snapshot`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessSnapshot {
    /// Head and tail of standard output.
    pub stdout: Base64Bytes,
    /// Head and tail of standard error.
    pub stderr: Base64Bytes,
    /// Head and tail of the terminal.
    pub terminal: Base64Bytes,
    /// Output was omitted between head and tail.
    pub truncated: bool,
    /// Omitted bytes of all streams.
    pub omitted_bytes: u64,
    /// Exit code, if reaped.
    pub exit_code: Option<i32>,
    /// The child has not been reaped.
    pub running: bool,
}

/// `process/attach`: follows a detached process from this connection. A process of another session
/// is taken over and becomes detached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttachProcess {
    /// Process id.
    pub process_id: ProcessId,
    /// Replay starts after this sequence number. Absent: at the oldest retained chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<OutputSeq>,
    /// Start time from `process/list`. The call is refused if the id now belongs to another
    /// process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<u64>,
}

/// Response to `process/attach`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttachResult {
    /// Next sequence number to assign.
    pub next_seq: OutputSeq,
    /// The child has not been reaped.
    pub running: bool,
}

/// `process/release`: stops following, and optionally removes a finished process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReleaseProcess {
    /// Process id.
    pub process_id: ProcessId,
    /// Removes a finished process and its output, which frees its id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forget: bool,
}

/// `process/list`: lists the session's processes and the detached ones.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ListProcesses {
    /// Includes processes of other sessions that the client may attach to.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl<'de> Deserialize<'de> for ListProcesses {
    /// Accepts `null`, and so absent `params`, as an empty object.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let params: Option<BTreeMap<String, serde_json::Value>> =
            Option::deserialize(deserializer)?;
        match params.unwrap_or_default().get("all") {
            None => Ok(Self::default()),
            Some(serde_json::Value::Bool(all)) => Ok(Self { all: *all }),
            Some(_) => Err(serde::de::Error::custom("all: expected a boolean")),
        }
    }
}

/// Response to `process/list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessList {
    /// Ordered by id.
    pub processes: Vec<ProcessSummary>,
}

/// Entry of a process list.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessSummary {
    /// Id chosen by the client.
    pub process_id: ProcessId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: PathUri,
    /// Runs on a terminal.
    pub tty: bool,
    /// The child has not been reaped.
    pub running: bool,
    /// Exit code, if reaped.
    pub exit_code: Option<i32>,
    /// Start time in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// OS pid of the child.
    pub os_pid: Option<u32>,
    /// The process is detached.
    pub detached: bool,
    /// Resource usage, once reaped.
    pub usage: Option<ResourceUsage>,
    /// Owner. Absent from older servers, like the following members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ProcessOwner>,
    /// State.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ProcessState>,
    /// Retained output bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// The process outlives its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
    /// End time in milliseconds since the Unix epoch, in `history/list`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
    /// Terminal size at the start, in `history/list`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<TerminalSize>,
}

/// `history/list`: lists recorded processes, oldest first.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ListHistory {}

impl<'de> Deserialize<'de> for ListHistory {
    /// Accepts `null`, and so absent `params`, as an empty object.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<BTreeMap<String, IgnoredAny>>::deserialize(deserializer)?;
        Ok(Self {})
    }
}

/// `history/purge`: removes recorded processes that have ended.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PurgeHistory {
    /// Only processes with this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<ProcessId>,
    /// Only the process that started at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<u64>,
}

/// Response to `history/purge`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PurgedHistory {
    /// Number of removed processes.
    pub purged: usize,
}

/// Owner of a process.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::open_enum))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ProcessOwner {
    /// A session. The process ends with it.
    Session,
    /// The server: the process is detached.
    Server,
    /// Unknown value from a newer peer.
    #[serde(other)]
    Unknown,
}

/// State of a process.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::open_enum))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ProcessState {
    /// The child has not been reaped.
    Running,
    /// The child was reaped.
    Exited,
    /// The exit status is unknown.
    Lost,
    /// Unknown value from a newer peer.
    #[serde(other)]
    Unknown,
}

/// `process/output`: output of a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessOutput {
    /// Process id.
    pub process_id: ProcessId,
    /// Sequence number of the event.
    pub seq: OutputSeq,
    /// Stream that produced it.
    pub stream: OutputStream,
    /// Output bytes. Absent if they are sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Base64Bytes>,
}

/// `process/exited`: the child was reaped. Sent exactly once.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessExited {
    /// Process id.
    pub process_id: ProcessId,
    /// Sequence number of the event.
    pub seq: OutputSeq,
    /// Exit status, or 128 + n if signal n killed the process. Never invented.
    pub exit_code: i32,
    /// The sandbox probably denied an operation.
    #[serde(default)]
    pub sandbox_denied: Option<bool>,
    /// POSIX name of the signal that killed the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Reason for the exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<ExitCause>,
    /// Resource usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceUsage>,
}

/// Reason why a process ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::open_enum))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ExitCause {
    /// The process exited by itself.
    Exit,
    /// A signal of unknown origin killed it.
    Signal,
    /// A client or the end of its session terminated it.
    Terminated,
    /// The `wallMs` limit was exceeded.
    WallLimit,
    /// The `idleMs` limit was exceeded.
    IdleLimit,
    /// Its process tree exceeded `memoryBytes`.
    MemoryLimit,
    /// Its process tree exceeded `processes` where the kernel did not enforce the limit.
    ProcessLimit,
    /// Its supervisor died, so the exit status is lost.
    Lost,
    /// Unknown value from a newer peer.
    #[serde(other)]
    Unknown,
}

/// Resource usage of a process.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceUsage {
    /// Wall-clock time in milliseconds.
    pub wall_ms: u64,
    /// CPU time in user mode, in milliseconds.
    pub user_ms: u64,
    /// CPU time in the kernel, in milliseconds.
    pub system_ms: u64,
    /// Maximum resident memory in bytes.
    pub max_rss_bytes: u64,
}

/// `process/closed`: all output ended. This is the last event, sent exactly once.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessClosed {
    /// Process id.
    pub process_id: ProcessId,
    /// Highest sequence number of the process. Absent from the oldest peers.
    #[serde(default)]
    pub seq: OutputSeq,
}

/// `process/started`: the process runs (extension `lifecycle`).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessStarted {
    /// Process id.
    pub process_id: ProcessId,
    /// OS pid of the child.
    pub os_pid: Option<u32>,
    /// Start time in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
}

/// `process/failed`: the process failed to start (extension `lifecycle`).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessFailed {
    /// Process id.
    pub process_id: ProcessId,
    /// Human-readable reason.
    pub message: String,
}

/// `process/acknowledge`: the client has received the events of a process up to this one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AcknowledgeProcess {
    /// Process id.
    pub process_id: ProcessId,
    /// Last received sequence number.
    pub seq: OutputSeq,
}
