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
    collect::{Collect, Collected},
    communicate::{Communicate, CommunicateError, Communicated},
    head_tail_buffer::{Ends, HeadTailBuffer},
    table::{
        Allocated, Ended, OpenError, ProcessNumber, ProcessTable, Removed, Session, TableFull,
        WhenFull, Windowed,
    },
};

use std::{fmt, pin::Pin, time::Duration};

use bytes::Bytes;
use exec_core::log::{Event, Exit, Follow, OutputChunk, Page, Snapshot};
use exec_wire::{
    error::RpcError,
    id::{OutputSeq, ProcessId, WriteId},
    process::{ProcessSignal, TerminalSize, TerminateMode, Usage, WaitUntil, WriteStatus},
};
use futures_util::{Stream, future::BoxFuture};

use crate::environment::Disconnect;

/// A process, here or elsewhere.
pub trait ExecProcess: fmt::Debug + Send + Sync {
    /// Returns the caller's name for it.
    fn id(&self) -> &ProcessId;

    /// Returns what is known of it now.
    fn status(&self) -> Status;

    /// Returns what its tree has used so far, while it runs and where that can be sampled.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// Follows its events, each once and in the order of their numbers, to the close or a failure.
    fn follow(&self, follow: Follow) -> EventStream;

    /// Keeps every event after `after` readable until it is acknowledged, or the hold is dropped. The
    /// process is paused when more than
    /// [`limits::UNACKNOWLEDGED_BYTES`](exec_wire::limits::UNACKNOWLEDGED_BYTES) are kept so.
    fn hold(&self, after: OutputSeq) -> Box<dyn Hold>;

    /// Reads retained output without consuming it.
    fn read(&self, read: Read) -> BoxFuture<'_, Result<Page, ProcessError>>;

    /// Queues bytes for its input. The place in line is taken by calling, not by awaiting; the
    /// future resolves when the bytes are queued, which may wait for the child to read.
    fn write(
        &self,
        id: Option<WriteId>,
        data: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>>;

    /// Ends its input after all earlier writes.
    fn close_stdin(
        &self,
        id: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>>;

    /// Tells it the new size of its terminal.
    fn resize(&self, size: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>>;

    /// Signals its process group. After its end nothing happens.
    fn signal(&self, signal: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>>;

    /// Ends it and its whole tree, also what outlived it. Resolves, when the kill is issued, to
    /// whether it was running itself.
    fn terminate(&self, mode: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>>;

    /// Waits for its end. Resolves to the status then, or when the time is up.
    fn wait(
        &self,
        until: WaitUntil,
        timeout: Option<Duration>,
    ) -> BoxFuture<'static, Result<Status, ProcessError>>;

    /// Returns the head and the tail of what it wrote.
    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, ProcessError>>;
}

/// Which retained output to read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Read {
    /// Last number the reader holds.
    pub after: OutputSeq,
    /// Budget; one whole chunk is always given.
    pub max_bytes: Option<usize>,
    /// How long to wait for something new.
    pub wait: Duration,
}

/// What is known of a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Status {
    /// How it ended, once it did.
    pub exit: Option<Exit>,
    /// Its output ended.
    pub closed: bool,
    /// Something of its tree may still live.
    pub tree_alive: bool,
    /// The next number not yet given out.
    pub next_seq: OutputSeq,
    /// Bytes of output that can be read.
    pub retained_bytes: usize,
    /// The operating system's number for the child, if it is known here.
    pub os_pid: Option<u32>,
    /// Milliseconds since the Unix epoch.
    pub started_at_ms: u64,
}

/// Keeps what was not acknowledged.
pub trait Hold: fmt::Debug + Send + Sync {
    /// Lets go of the events up to `seq`. One that was let go of before changes nothing.
    fn acknowledge(&self, seq: OutputSeq);
}

/// The events of one process.
pub type EventStream = Pin<Box<dyn Stream<Item = ExecProcessEvent> + Send>>;

/// What a process tells.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExecProcessEvent {
    /// It wrote something.
    Output(OutputChunk),
    /// It was reaped.
    Exited(OutputSeq, Exit),
    /// Its output ended; nothing follows.
    Closed(OutputSeq),
    /// Nothing more can be learned of it; nothing follows.
    Failed(ProcessError),
}

impl ExecProcessEvent {
    /// Returns its number. A failure has none: it did not happen to the process.
    pub fn seq(&self) -> Option<OutputSeq> {
        match self {
            Self::Output(chunk) => Some(chunk.seq),
            Self::Exited(seq, _) | Self::Closed(seq) => Some(*seq),
            Self::Failed(_) => None,
        }
    }
}

impl From<Event> for ExecProcessEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::Output(chunk) => Self::Output(chunk),
            Event::Exited(seq, exit) => Self::Exited(seq, exit),
            Event::Closed(seq) => Self::Closed(seq),
        }
    }
}

/// Why something could not be done to a process.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// Caller: it was terminated; nothing can be written.
    #[error("failed to write to process stdin")]
    Terminated,
    /// Caller: too many writes wait for the child to read.
    #[error("too many writes wait for the process to read its stdin")]
    StdinFull,
    /// Caller: it has no terminal.
    #[error("process {0} has no terminal")]
    NoTerminal(ProcessId),
    /// Caller: a size without rows or columns.
    #[error("terminal size must have at least one row and one column")]
    EmptySize,
    /// Peer: the remote end refused.
    #[error(transparent)]
    Remote(#[from] RpcError),
    /// Transport: the remote end is gone.
    #[error(transparent)]
    Disconnected(#[from] Disconnect),
}

impl ProcessError {
    /// Tells that a stream of events ended although the process was not over.
    pub fn ended_before_the_close() -> Self {
        let broken = "events of a process ended before its close".to_owned();
        Self::Disconnected(Disconnect::Protocol(broken))
    }
}
