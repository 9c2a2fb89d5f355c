//! Writing to processes, signalling and ending them.

use serde::{Deserialize, Serialize};

use crate::{
    bytes::Base64,
    id::{ProcessId, WriteId},
};

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
