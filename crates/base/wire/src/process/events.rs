//! What a server tells about a process without being asked.

use serde::{Deserialize, Serialize};

use crate::id::{OutputSeq, ProcessId};

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
