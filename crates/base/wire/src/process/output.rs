//! Reading what a process wrote: pages, snapshots, lists, and what a server tells without being asked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    bytes::Base64,
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
};

/// Where output came from.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
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
    /// Returns the name on the wire.
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
#[serde(rename_all = "camelCase")]
pub struct ReadProcess {
    /// The process, as the client named it in `process/start`. Not an OS pid.
    pub process_id: ProcessId,
    /// Last number the client holds. Absent: start at the oldest chunk retained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<OutputSeq>,
    /// Budget for the answer; one whole chunk is always given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<usize>,
    /// How long to wait for something new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// The answer to `process/read`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputPage {
    /// Retained output after the cursor, ascending.
    pub chunks: Vec<PageChunk>,
    /// Where to go on: `afterSeq` is this less one.
    pub next_seq: OutputSeq,
    /// The child was reaped.
    pub exited: bool,
    /// Its code, if so.
    pub exit_code: Option<i32>,
    /// The output ended.
    pub closed: bool,
    /// Always null from a server; clients put their own failures here.
    #[serde(default)]
    pub failure: Option<String>,
    /// The sandbox seems to have refused something.
    #[serde(default)]
    pub sandbox_denied: bool,
    /// The number of `process/exited`, once the child was reaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_seq: Option<OutputSeq>,
    /// The POSIX name of the signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Why it ended, once it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<ExitCause>,
    /// What it used, once it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One chunk of retained output.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PageChunk {
    /// Its number.
    pub seq: OutputSeq,
    /// Where it came from.
    pub stream: OutputStream,
    /// What was written.
    pub chunk: Base64,
}

/// `process/snapshot`: the head and the tail of what a process wrote.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotProcess {
    /// The process.
    pub process_id: ProcessId,
}

/// The answer to `process/snapshot`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSnapshot {
    /// Head and tail of standard output.
    pub stdout: Base64,
    /// Head and tail of standard error.
    pub stderr: Base64,
    /// Head and tail of the terminal.
    pub terminal: Base64,
    /// Something was dropped between head and tail.
    pub truncated: bool,
    /// How much, all streams together.
    pub omitted_bytes: u64,
    /// The code, if the child was reaped.
    pub exit_code: Option<i32>,
    /// The child was not reaped yet.
    pub running: bool,
}

/// `process/attach`: follows a detached process from this connection. One of another session is taken
/// over: from then on it is detached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachProcess {
    /// The process.
    pub process_id: ProcessId,
    /// Replay begins after this number. Absent: at the oldest chunk retained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<OutputSeq>,
    /// When the process started, as `process/list` has it: if the id names another one by now, the
    /// call is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<u64>,
}

/// The answer to `process/attach`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attached {
    /// The next number not yet given out.
    pub next_seq: OutputSeq,
    /// The child was not reaped yet.
    pub running: bool,
}

/// `process/release`: stops following, and on request forgets a finished process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseProcess {
    /// The process.
    pub process_id: ProcessId,
    /// Forgets a finished process and what it wrote; its id is free again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forget: bool,
}

/// `process/list`: the session's processes and the detached ones.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ListProcesses {
    /// Lists processes of other sessions, too, if the client may attach to them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl<'de> Deserialize<'de> for ListProcesses {
    /// Takes `null`, which is also an absent `params`, for an empty object.
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

/// The answer to `process/list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProcessList {
    /// Ordered by id.
    pub processes: Vec<ProcessSummary>,
}

/// One process of a list.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSummary {
    /// The client's name for it.
    pub process_id: ProcessId,
    /// What was started.
    pub argv: Vec<String>,
    /// Where.
    pub cwd: PathUri,
    /// On a terminal.
    pub tty: bool,
    /// The child was not reaped yet.
    pub running: bool,
    /// Its code, if it was.
    pub exit_code: Option<i32>,
    /// Milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// The operating system's number for the child.
    pub os_pid: Option<u32>,
    /// Belongs to the server.
    pub detached: bool,
    /// What it used, once it was reaped.
    pub usage: Option<Usage>,
    /// Whom it belongs to. Absent from older servers, as what follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ProcessOwner>,
    /// What became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ProcessState>,
    /// Bytes of its output that can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}

/// Whom a process belongs to.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ProcessOwner {
    /// A session: it ends with that.
    Session,
    /// The server: it is detached.
    Server,
    /// One that a newer peer knows.
    #[serde(other)]
    Unknown,
}

/// What became of a process.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ProcessState {
    /// The child was not reaped yet.
    Running,
    /// It was.
    Exited,
    /// How it ended is not known.
    Lost,
    /// One that a newer peer knows.
    #[serde(other)]
    Unknown,
}

/// `process/exited`: the child was reaped. Sent exactly once.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exited {
    /// The process.
    pub process_id: ProcessId,
    /// Its number among the events of the process.
    pub seq: OutputSeq,
    /// The status, or 128 + n after signal n. Never invented.
    pub exit_code: i32,
    /// The sandbox seems to have refused something.
    #[serde(default)]
    pub sandbox_denied: Option<bool>,
    /// The POSIX name of the signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<ExitCause>,
    /// What it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Why a process ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ExitCause {
    /// It exited by itself.
    Exit,
    /// A signal of unknown origin.
    Signal,
    /// A client or the end of its session.
    Terminated,
    /// `wallMs` was up.
    WallLimit,
    /// `idleMs` was up.
    IdleLimit,
    /// Its tree held more than `memoryBytes`.
    MemoryLimit,
    /// Its tree had more than `processes`, and the kernel did not keep that limit.
    ProcessLimit,
    /// Its supervisor is gone, and the status with it.
    Lost,
    /// One that a newer peer knows.
    #[serde(other)]
    Unknown,
}

/// What a process used.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Milliseconds from start to end.
    pub wall_ms: u64,
    /// Milliseconds in user mode.
    pub user_ms: u64,
    /// Milliseconds in the kernel.
    pub system_ms: u64,
    /// Most memory resident at once.
    pub max_rss_bytes: u64,
}

/// `process/closed`: the output ended; nothing follows. Sent exactly once.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessClosed {
    /// The process.
    pub process_id: ProcessId,
    /// The highest number of the process. Absent from the oldest peers.
    #[serde(default)]
    pub seq: OutputSeq,
}

/// `process/started`: the process runs (grant `lifecycle`).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessStarted {
    /// The process.
    pub process_id: ProcessId,
    /// The operating system's number for the child.
    pub os_pid: Option<u32>,
    /// Milliseconds since the Unix epoch.
    pub started_at_ms: u64,
}

/// `process/failed`: the process did not start (grant `lifecycle`).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessFailed {
    /// The process.
    pub process_id: ProcessId,
    /// Why.
    pub message: String,
}

/// `process/acknowledge`: the client has taken the events of a process up to this one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledged {
    /// The process.
    pub process_id: ProcessId,
    /// The last event taken.
    pub seq: OutputSeq,
}
