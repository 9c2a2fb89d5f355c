//! A started process: the trait, its events, its status and its errors.
//!
//! The submodules hold helpers that work with any process: collecting a window of output,
//! communicating until the close, and a table of the processes of a harness.

mod collect;
mod communicate;
mod head_tail_buffer;
mod table;

#[cfg(test)]
mod fake_process;
#[cfg(test)]
mod tests;

pub use self::{
    collect::{CollectOptions, CollectedOutput},
    communicate::{CommunicateError, CommunicateOptions, CommunicateOutput},
    head_tail_buffer::{HeadTailBuffer, HeadTailParts},
    table::{
        CheckoutError, EvictedProcess, EvictionPolicy, OutputWindow, ProcessAllocation,
        ProcessCheckout, ProcessEnd, ProcessNumber, ProcessTable, TableFull,
    },
};

use std::{fmt, pin::Pin, time::Duration};

use bytes::Bytes;
use exec_core::output_log::{
    ExitInfo, FollowOptions, LogEvent, LogPage, OutputChunk, OutputSnapshot,
};
use exec_wire::{
    error::RpcError,
    id::{OutputSeq, ProcessId, WriteId},
    process::{ProcessSignal, ResourceUsage, TerminalSize, TerminateMode, WaitUntil, WriteStatus},
};
use futures_util::{Stream, future::BoxFuture};

use crate::environment::DisconnectReason;

/// A process on a local or remote host.
pub trait ExecProcess: fmt::Debug + Send + Sync {
    /// Returns the id that the caller chose.
    fn id(&self) -> &ProcessId;

    /// Returns the current status.
    fn status(&self) -> ProcessStatus;

    /// Returns the resource usage of the process tree so far, if the process runs and can be
    /// sampled.
    fn usage(&self) -> Option<ResourceUsage> {
        None
    }

    /// Follows the events, each once and in sequence order, to the close or a failure.
    fn follow(&self, follow: FollowOptions) -> EventStream;

    /// Retains every event after `after` until it is acknowledged or the hold is dropped. Pauses
    /// the process (backpressure) when more than
    /// [`limits::UNACKNOWLEDGED_BYTES`](exec_wire::limits::UNACKNOWLEDGED_BYTES) are
    /// unacknowledged.
    fn hold(&self, after: OutputSeq) -> Box<dyn OutputHold>;

    /// Reads retained output without consuming it.
    fn read(&self, read: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>>;

    /// Queues bytes for stdin. Writes are ordered by their calls, not by when the futures are
    /// awaited. The future resolves when the bytes are queued, which may wait for the child to
    /// read.
    fn write(
        &self,
        id: Option<WriteId>,
        data: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>>;

    /// Closes stdin after all earlier writes.
    fn close_stdin(
        &self,
        id: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>>;

    /// Resizes the terminal.
    fn resize(&self, size: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>>;

    /// Signals the process group. Does nothing after the process has ended.
    fn signal(&self, signal: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>>;

    /// Terminates the whole process tree, including descendants of an exited root. Resolves once
    /// the kill is issued, to whether the root was still running.
    fn terminate(&self, mode: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>>;

    /// Waits for the exit or the close. Resolves to the status at that time, or when the timeout
    /// expires.
    fn wait(
        &self,
        until: WaitUntil,
        timeout: Option<Duration>,
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>>;

    /// Returns the head and the tail of the output.
    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>>;
}

/// Selects retained output to read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OutputReadRequest {
    /// Last sequence number that the reader has.
    pub after: OutputSeq,
    /// Byte limit. At least one whole chunk is returned.
    pub max_bytes: Option<usize>,
    /// How long to wait for new events.
    pub wait: Duration,
}

/// Status of a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessStatus {
    /// Exit status, once the process has exited.
    pub exit: Option<ExitInfo>,
    /// The output has ended.
    pub closed: bool,
    /// Descendants may still be running.
    pub tree_alive: bool,
    /// The next sequence number.
    pub next_seq: OutputSeq,
    /// Bytes of retained output.
    pub retained_bytes: usize,
    /// Process id on the host, if known.
    pub os_pid: Option<u32>,
    /// Start time in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
}

/// Retains unacknowledged output.
pub trait OutputHold: fmt::Debug + Send + Sync {
    /// Acknowledges the events up to `seq`. Repeated acknowledgements have no effect.
    fn acknowledge(&self, seq: OutputSeq);
}

/// Stream of the events of one process.
pub type EventStream = Pin<Box<dyn Stream<Item = ExecProcessEvent> + Send>>;

/// An event of a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExecProcessEvent {
    /// Output.
    Output(OutputChunk),
    /// The process was reaped.
    Exited(OutputSeq, ExitInfo),
    /// The output ended. This is the last event.
    Closed(OutputSeq),
    /// Following failed. This is the last event.
    Failed(ProcessError),
}

impl ExecProcessEvent {
    /// Returns the sequence number. `Failed` has none, because it is not an event of the process.
    pub fn seq(&self) -> Option<OutputSeq> {
        match self {
            Self::Output(chunk) => Some(chunk.seq),
            Self::Exited(seq, _) | Self::Closed(seq) => Some(*seq),
            Self::Failed(_) => None,
        }
    }
}

impl From<LogEvent> for ExecProcessEvent {
    fn from(event: LogEvent) -> Self {
        match event {
            LogEvent::Output(chunk) => Self::Output(chunk),
            LogEvent::Exited(seq, exit) => Self::Exited(seq, exit),
            LogEvent::Closed(seq) => Self::Closed(seq),
        }
    }
}

/// Why an operation on a process failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// Caller: the process was terminated, so its stdin is closed.
    #[error("failed to write to process stdin")]
    Terminated,
    /// Caller: too many writes are queued for the child.
    #[error("too many queued writes: the process is not reading its stdin")]
    StdinFull,
    /// Caller: the process has no terminal.
    #[error("process {0} has no terminal")]
    NoTerminal(ProcessId),
    /// Caller: the terminal size has no rows or no columns.
    #[error("terminal size must have at least one row and one column")]
    EmptySize,
    /// Peer: the server returned an error.
    #[error(transparent)]
    Remote(#[from] RpcError),
    /// Transport: the session is lost.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
}

impl ProcessError {
    /// Reports an event stream that ended before the close.
    pub fn missing_close() -> Self {
        let broken = "events of a process ended before its close".to_owned();
        Self::Disconnected(DisconnectReason::Protocol(broken))
    }
}
