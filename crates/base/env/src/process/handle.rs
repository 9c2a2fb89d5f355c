//! The trait of a process, and what its calls take and give.

use std::{fmt, time::Duration};

use bytes::Bytes;
use exec_core::log::{Exit, Follow, Page, Snapshot};
use exec_wire::{
    id::{OutputSeq, ProcessId, WriteId},
    process::{ProcessSignal, TerminalSize, TerminateMode, Usage, WaitUntil, WriteStatus},
};
use futures_util::future::BoxFuture;

use super::{error::ProcessError, event::EventStream, hold::Hold};

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
