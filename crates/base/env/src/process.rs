//! A started process: the trait, its events, its status and its errors, and collecting a window of
//! its output: until a deadline, the close, or a byte limit.
//!
//! Invariant: consecutive windows return every chunk once and the exit once, in sequence order.
//! Output that was still in a pipe when the process was reaped follows the exit, so a process is
//! finished at its close. Between two windows the process is not paused: chunks that leave the
//! retained range are counted as missed. Keep an [`OutputHold`] between windows to miss nothing.
//!
//! The submodule communicates with any process until its close.

mod communicate;

use std::{any::Any, fmt, pin::Pin, time::Duration};

use bytes::Bytes;
use exec_core::output_log::{
    BackpressureMode, ExitInfo, FollowOptions, FollowStart, LogEvent, LogPage, OutputChunk,
    OutputSnapshot,
};
use exec_wire::{
    error::RpcError,
    id::{OutputSeq, ProcessId, WriteId},
    limits,
    process::{ProcessSignal, ResourceUsage, TerminalSize, TerminateMode, WaitUntil, WriteStatus},
};
use futures_util::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, ready},
};
use tokio::{task::coop::consume_budget, time};

use crate::environment::DisconnectReason;

pub use self::communicate::{
    CommunicateError, CommunicateOptions, CommunicateOutput, HeadTailBuffer, HeadTailParts,
};

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
    /// the process (backpressure) when more than [`limits::UNACKNOWLEDGED_BYTES`] are
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

    /// Returns the name of the record of a durable process. `None`: the process is ordinary.
    fn record_id(&self) -> Option<String> {
        None
    }

    /// Returns the process for a downcast by the environment that may have started it.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Records that the server owns a durable process from now on.
    fn record_detached(&self) {}

    /// Leaves a durable process that runs to the next server, from the call on: dropping its handle
    /// does not kill the tree then. Resolves to whether it is one, once nothing here reads or
    /// writes it any more.
    fn release(&self) -> BoxFuture<'static, bool> {
        ready(false).boxed()
    }

    /// Reads retained output with the time of each chunk in milliseconds since the Unix epoch. Only
    /// durable processes record times.
    fn read_times(&self, after: OutputSeq, max_bytes: usize) -> Vec<(OutputSeq, u64)> {
        let _ = (after, max_bytes);
        Vec::new()
    }
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
    /// Host: the state directory has no space to record the input.
    #[error("failed to record process stdin: the state directory has no space")]
    StorageFull,
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

/// Limits of a window of output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CollectOptions {
    /// Last sequence number that the caller has.
    pub after: OutputSeq,
    /// How long to collect.
    pub window: Duration,
    /// Byte limit. The window ends before a chunk that would exceed it, but holds at least one
    /// chunk.
    pub max_bytes: usize,
}

impl CollectOptions {
    /// Window after a start. Most commands finish within it.
    pub const AFTER_START: Duration = Duration::from_secs(10);
    /// Window after a write. The response to a keystroke arrives within it.
    pub const AFTER_WRITE: Duration = Duration::from_millis(250);

    /// Collects from the first event on, for [`Self::AFTER_START`].
    pub fn after_start() -> Self {
        Self {
            after: OutputSeq(0),
            window: Self::AFTER_START,
            max_bytes: limits::RETAINED_OUTPUT_BYTES,
        }
    }

    /// Collects the events after `after`, for [`Self::AFTER_WRITE`].
    pub fn after_write(after: OutputSeq) -> Self {
        Self {
            after,
            window: Self::AFTER_WRITE,
            ..Self::after_start()
        }
    }
}

/// Output of one window.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CollectedOutput {
    /// Output in sequence order.
    pub chunks: Vec<OutputChunk>,
    /// Last sequence number that the caller now has: the start of the next window.
    pub last: OutputSeq,
    /// Exit status, if the exit is in this window. Output may follow it until the close.
    pub exit: Option<ExitInfo>,
    /// The output ended. The next window is empty.
    pub closed: bool,
    /// The process had not exited by the end of this window, according to its events.
    pub running: bool,
    /// Chunks that were dropped before this window could return them.
    pub missed_chunks: u64,
}

impl CollectedOutput {
    /// Returns the output of all streams in the order of writing.
    pub fn bytes(&self) -> Vec<u8> {
        let chunks: Vec<&[u8]> = self.chunks.iter().map(|chunk| &chunk.data[..]).collect();
        chunks.concat()
    }
}

impl dyn ExecProcess {
    /// Collects output until the window's time is over, the close, or the byte limit. The window
    /// includes everything that was available at the deadline. If the process fails, this window
    /// returns the output before the failure and the next window returns the error. Dropping the
    /// future loses nothing: the next window may start at the same cursor.
    pub async fn collect(&self, collect: CollectOptions) -> Result<CollectedOutput, ProcessError> {
        let mut window = WindowCollector::new(self, collect);
        match time::timeout(collect.window, window.collect_until_full()).await {
            Ok(collected) => collected?,
            Err(_) => window.collect_available(self.status().next_seq)?,
        }
        Ok(window.finish())
    }
}

/// Builds a window from events.
struct WindowCollector<'a> {
    process: &'a dyn ExecProcess,
    events: EventStream,
    max_bytes: usize,
    collected_bytes: usize,
    collected: CollectedOutput,
}

impl<'a> WindowCollector<'a> {
    fn new(process: &'a dyn ExecProcess, collect: CollectOptions) -> Self {
        let events = process.follow(FollowOptions {
            start: FollowStart::After(collect.after),
            backpressure: BackpressureMode::Pause,
        });
        Self {
            process,
            events,
            max_bytes: collect.max_bytes,
            collected_bytes: 0,
            collected: CollectedOutput {
                chunks: Vec::new(),
                last: collect.after,
                exit: None,
                closed: false,
                running: true,
                missed_chunks: 0,
            },
        }
    }

    /// Adds events until the window is full or the process is closed.
    async fn collect_until_full(&mut self) -> Result<(), ProcessError> {
        loop {
            let event = self.events.next().await;
            if !self.add_event(event)? {
                return Ok(());
            }
            // Yield to the timer: a process that writes without pause would keep this loop ready
            // forever.
            consume_budget().await;
        }
    }

    /// Adds the available events below `end`. The bound is needed because the process may write
    /// forever.
    fn collect_available(&mut self, end: OutputSeq) -> Result<(), ProcessError> {
        while self.collected.last.next() < end {
            let Some(event) = self.events.next().now_or_never() else {
                break;
            };
            if !self.add_event(event)? {
                break;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> CollectedOutput {
        let status = self.process.status();
        // The exit has its own sequence number, so it was reported if all numbers were taken.
        let all_collected = self.collected.last.next() >= status.next_seq;
        self.collected.running =
            self.collected.exit.is_none() && !(all_collected && status.exit.is_some());
        self.collected
    }

    /// Adds an event. Returns whether the window accepts more of them.
    fn add_event(&mut self, event: Option<ExecProcessEvent>) -> Result<bool, ProcessError> {
        let collected = &mut self.collected;
        let failure = match event {
            Some(ExecProcessEvent::Output(chunk)) => {
                let total = self.collected_bytes + chunk.data.len();
                if !collected.chunks.is_empty() && total > self.max_bytes {
                    return Ok(false);
                }
                self.collected_bytes = total;
                collected.advance_to(chunk.seq);
                collected.chunks.push(chunk);
                return Ok(total < self.max_bytes);
            }
            Some(ExecProcessEvent::Exited(seq, exit)) => {
                collected.advance_to(seq);
                collected.exit = Some(exit);
                return Ok(true);
            }
            Some(ExecProcessEvent::Closed(seq)) => {
                collected.advance_to(seq);
                collected.closed = true;
                return Ok(false);
            }
            // An earlier window returned the close.
            None if self.process.status().closed => {
                collected.closed = true;
                return Ok(false);
            }
            None => ProcessError::missing_close(),
            Some(ExecProcessEvent::Failed(error)) => error,
        };
        if collected.chunks.is_empty() && collected.exit.is_none() {
            return Err(failure);
        }
        Ok(false)
    }
}

impl CollectedOutput {
    fn advance_to(&mut self, seq: OutputSeq) {
        self.missed_chunks += seq.0.saturating_sub(self.last.next().0);
        self.last = seq;
    }
}
