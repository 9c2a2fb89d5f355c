//! All of a process's input in, all of its output out.
//!
//! Input and output move at the same time: a child that fills its output before it reads its input
//! is not waited for with the input in hand. Not here: ending a process that takes too long, which
//! is the caller's choice.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use exec_core::log::{Exit, Follow, From, HeadTail, Pace};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    limits,
    process::{OutputStream, WriteStatus},
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, select_biased};
use tokio::{task::coop::consume_budget, time};

use super::{ExecProcess, ExecProcessEvent, ProcessError, head_tail_buffer::HeadTailBuffer};

/// Input that is handed over at once. One piece waits for the child at a time, so this is also what
/// is copied ahead of it.
const INPUT_CHUNK_BYTES: usize = 256 << 10;
/// How long a process may be said to be starting.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait before a write is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// How long the close may come after a write that failed. A process that has ended refuses writes,
/// too, and its close is then under way.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// How much output `communicate` keeps, and how long it takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Communicate {
    /// Most bytes kept of each stream: half of it from the beginning, half from the end.
    pub max_bytes: usize,
    /// When to stop waiting for the close. The process is left as it is. Absent: never.
    pub time_limit: Option<Duration>,
}

impl Default for Communicate {
    fn default() -> Self {
        Self {
            max_bytes: limits::RETAINED_OUTPUT_BYTES,
            time_limit: None,
        }
    }
}

/// What a process wrote, and how it ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Communicated {
    /// Standard output.
    pub stdout: HeadTail,
    /// Standard error.
    pub stderr: HeadTail,
    /// The terminal.
    pub terminal: HeadTail,
    /// Chunks of output that had been dropped before they could be taken.
    pub missed_chunks: u64,
    /// How the process ended. Absent only if the time was up first.
    pub exit: Option<Exit>,
    /// The output ended.
    pub closed: bool,
}

impl Communicated {
    /// Tells whether something was written that is not here.
    pub fn truncated(&self) -> bool {
        let streams = [&self.stdout, &self.stderr, &self.terminal];
        self.missed_chunks > 0 || streams.iter().any(|stream| stream.omitted > 0)
    }

    /// Tells whether the process was not reaped yet.
    pub fn running(&self) -> bool {
        self.exit.is_none()
    }
}

/// Why nothing can be said about all of a process's output.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommunicateError {
    /// Host: it is still starting after a long time.
    #[error("process {0} does not get started")]
    NotStarted(ProcessId),
    /// Peer: it does not know the process, and has not told its end.
    #[error("process {0} is unknown where it ought to run")]
    Unknown(ProcessId),
    /// Whoever the inner error blames.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl dyn ExecProcess {
    /// Writes `input` to the process, ends its input, and takes its output until the close. A process
    /// that does not read all of its input is no error. Dropping the future leaves the process as it
    /// is, with some of the input written.
    pub async fn communicate(
        &self,
        input: Bytes,
        communicate: Communicate,
    ) -> Result<Communicated, CommunicateError> {
        let mut output = OutputCollector::new(communicate.max_bytes);
        let exchange = run_exchange(self, input, &mut output);
        match communicate.time_limit {
            None => exchange.await?,
            Some(limit) => time::timeout(limit, exchange).await.unwrap_or(Ok(()))?,
        }
        Ok(output.into_output())
    }
}

/// Feeds the process and takes what it tells, until the close.
async fn run_exchange(
    process: &dyn ExecProcess,
    input: Bytes,
    output: &mut OutputCollector,
) -> Result<(), CommunicateError> {
    let mut events = process.follow(Follow {
        from: From::After(OutputSeq(0)),
        pace: Pace::Held,
    });
    let mut writing = pin!(write_input(process, input).fuse());
    while !output.closed {
        select_biased! {
            event = events.next().fuse() => output.add_event(event)?,
            written = writing => written?,
        }
        // A process that never pauses leaves no moment to look at the time otherwise.
        consume_budget().await;
    }
    Ok(())
}

/// Writes all input that the process takes, and ends its input.
async fn write_input(process: &dyn ExecProcess, mut input: Bytes) -> Result<(), CommunicateError> {
    while !input.is_empty() {
        let chunk = input.split_to(INPUT_CHUNK_BYTES.min(input.len()));
        match retry_write(process, || process.write(None, chunk.clone())).await? {
            InputState::Open => {}
            InputState::Closed => return Ok(()),
        }
    }
    retry_write(process, || process.close_stdin(None))
        .await
        .map(|_| ())
}

/// Whether a process takes more input.
enum InputState {
    Open,
    Closed,
}

/// Tries until the process has started and has room.
async fn retry_write(
    process: &dyn ExecProcess,
    attempt: impl Fn() -> BoxFuture<'static, Result<WriteStatus, ProcessError>>,
) -> Result<InputState, CommunicateError> {
    let mut started_by = None;
    loop {
        let failure = match attempt().await {
            Ok(WriteStatus::Accepted) => return Ok(InputState::Open),
            Ok(WriteStatus::StdinClosed) | Err(ProcessError::Terminated) => {
                return Ok(InputState::Closed);
            }
            Ok(WriteStatus::Starting) => {
                let now = time::Instant::now();
                if now > *started_by.get_or_insert(now + START_TIMEOUT) {
                    return Err(CommunicateError::NotStarted(process.id().clone()));
                }
                time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            // Others write, too; there is room when the child has read.
            Err(ProcessError::StdinFull) => {
                time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            Err(error @ ProcessError::Disconnected(_)) => return Err(error.into()),
            Ok(WriteStatus::UnknownProcess) => CommunicateError::Unknown(process.id().clone()),
            Err(error) => error.into(),
        };
        time::sleep(CLOSE_GRACE).await;
        return Err(failure);
    }
}

/// What a process has told so far.
struct OutputCollector {
    last: OutputSeq,
    streams: [HeadTailBuffer; 3],
    missed_chunks: u64,
    exit: Option<Exit>,
    closed: bool,
}

impl OutputCollector {
    fn new(max_bytes: usize) -> Self {
        Self {
            last: OutputSeq(0),
            streams: std::array::from_fn(|_| HeadTailBuffer::new(max_bytes)),
            missed_chunks: 0,
            exit: None,
            closed: false,
        }
    }

    fn add_event(&mut self, event: Option<ExecProcessEvent>) -> Result<(), ProcessError> {
        let event = event.ok_or_else(ProcessError::ended_before_the_close)?;
        if let Some(seq) = event.seq() {
            self.missed_chunks += seq.0.saturating_sub(self.last.next().0);
            self.last = seq;
        }
        match event {
            ExecProcessEvent::Output(chunk) => {
                self.streams[chunk.stream as usize].push(&chunk.data);
            }
            ExecProcessEvent::Exited(_, exit) => self.exit = Some(exit),
            ExecProcessEvent::Closed(_) => self.closed = true,
            ExecProcessEvent::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn into_output(self) -> Communicated {
        let mut streams = self.streams.map(HeadTailBuffer::into_head_tail);
        let mut stream = |stream: OutputStream| std::mem::take(&mut streams[stream as usize]);
        Communicated {
            stdout: stream(OutputStream::Stdout),
            stderr: stream(OutputStream::Stderr),
            terminal: stream(OutputStream::Pty),
            missed_chunks: self.missed_chunks,
            exit: self.exit,
            closed: self.closed,
        }
    }
}
