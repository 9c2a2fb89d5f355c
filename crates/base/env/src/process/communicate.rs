//! Writes all of a process's input and reads all of its output, concurrently. Of output beyond a
//! limit, a [`HeadTailBuffer`] keeps the head and the tail.
//!
//! The concurrency avoids a deadlock with a child that fills its output pipe before it reads its
//! input. Not here: terminating a process that takes too long, which the caller decides.

use std::{collections::VecDeque, pin::pin, time::Duration};

use bytes::Bytes;
use exec_core::output_log::{BackpressureMode, ExitInfo, FollowOptions, FollowStart, HeadTail};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    limits,
    process::{OutputStream, WriteStatus},
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, select_biased};
use tokio::{task::coop::consume_budget, time};

use super::{ExecProcess, ExecProcessEvent, ProcessError};

/// Largest single write. Only one chunk waits for the child at a time, so this also bounds the
/// bytes that are copied ahead.
const INPUT_CHUNK_BYTES: usize = 256 << 10;
/// How long the process may report that it is starting.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay between attempts of a write.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// How long to wait for the close after a failed write: a process that has ended also rejects
/// writes, and its close is then on the way.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// Limits of [`communicate`](ExecProcess#method.communicate).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CommunicateOptions {
    /// Bytes to keep of each stream: half from the head, half from the tail.
    pub max_bytes: usize,
    /// How long to wait for the close. The process is not terminated. Absent: forever.
    pub time_limit: Option<Duration>,
}

impl Default for CommunicateOptions {
    fn default() -> Self {
        Self {
            max_bytes: limits::RETAINED_OUTPUT_BYTES,
            time_limit: None,
        }
    }
}

/// Output of a process, and its exit status.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CommunicateOutput {
    /// Standard output.
    pub stdout: HeadTail,
    /// Standard error.
    pub stderr: HeadTail,
    /// Terminal output.
    pub terminal: HeadTail,
    /// Chunks that were dropped before they could be read.
    pub missed_chunks: u64,
    /// Exit status. Absent only if the time limit expired first.
    pub exit: Option<ExitInfo>,
    /// The output has ended.
    pub closed: bool,
}

impl CommunicateOutput {
    /// Returns whether some output is missing.
    pub fn truncated(&self) -> bool {
        let streams = [&self.stdout, &self.stderr, &self.terminal];
        self.missed_chunks > 0 || streams.iter().any(|stream| stream.omitted > 0)
    }

    /// Returns whether the process had not exited.
    pub fn running(&self) -> bool {
        self.exit.is_none()
    }
}

/// Why the output of a process could not be collected.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommunicateError {
    /// Host: the process did not start in time.
    #[error("process {0} did not start in time")]
    NotStarted(ProcessId),
    /// Peer: the server does not know the process, and has not reported its end.
    #[error("process {0} is unknown to the server")]
    Unknown(ProcessId),
    /// The process failed. The inner error says who must act.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl dyn ExecProcess {
    /// Writes `input`, closes stdin, and reads the output until the close. A process that does not
    /// read all of its input is not an error. Dropping the future leaves the process running with
    /// part of the input written.
    pub async fn communicate(
        &self,
        input: Bytes,
        communicate: CommunicateOptions,
    ) -> Result<CommunicateOutput, CommunicateError> {
        let mut output = OutputCollector::new(communicate.max_bytes);
        let exchange = run_exchange(self, input, &mut output);
        match communicate.time_limit {
            None => exchange.await?,
            Some(limit) => time::timeout(limit, exchange).await.unwrap_or(Ok(()))?,
        }
        Ok(output.into_output())
    }
}

/// Writes input and reads events until the close.
async fn run_exchange(
    process: &dyn ExecProcess,
    input: Bytes,
    output: &mut OutputCollector,
) -> Result<(), CommunicateError> {
    let mut events = process.follow(FollowOptions {
        start: FollowStart::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    });
    let mut writing = pin!(write_input(process, input).fuse());
    while !output.closed {
        select_biased! {
            event = events.next().fuse() => output.add_event(event)?,
            written = writing => written?,
        }
        // Yield to the timer: a process that writes without pause would keep this loop ready
        // forever.
        consume_budget().await;
    }
    Ok(())
}

/// Writes as much input as the process accepts, then closes stdin.
async fn write_input(process: &dyn ExecProcess, mut input: Bytes) -> Result<(), CommunicateError> {
    while !input.is_empty() {
        let chunk = input.split_to(INPUT_CHUNK_BYTES.min(input.len()));
        if !retry_write(process, || process.write(None, chunk.clone())).await? {
            return Ok(());
        }
    }
    retry_write(process, || process.close_stdin(None))
        .await
        .map(|_| ())
}

/// Retries a write until the process has started and has room in its queue. Returns whether the
/// process accepts more input.
async fn retry_write(
    process: &dyn ExecProcess,
    attempt: impl Fn() -> BoxFuture<'static, Result<WriteStatus, ProcessError>>,
) -> Result<bool, CommunicateError> {
    let mut started_by = None;
    loop {
        let failure = match attempt().await {
            Ok(WriteStatus::Accepted) => return Ok(true),
            Ok(WriteStatus::StdinClosed) | Err(ProcessError::Terminated) => {
                return Ok(false);
            }
            Ok(WriteStatus::Starting) => {
                let now = time::Instant::now();
                if now > *started_by.get_or_insert(now + START_TIMEOUT) {
                    return Err(CommunicateError::NotStarted(process.id().clone()));
                }
                time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            // Other writers share the queue. It drains when the child reads.
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

/// Output received so far.
struct OutputCollector {
    last: OutputSeq,
    streams: [HeadTailBuffer; 3],
    missed_chunks: u64,
    exit: Option<ExitInfo>,
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
        let event = event.ok_or_else(ProcessError::missing_close)?;
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

    fn into_output(self) -> CommunicateOutput {
        let mut streams = self.streams.map(HeadTailBuffer::into_head_tail);
        let mut stream = |stream: OutputStream| std::mem::take(&mut streams[stream as usize]);
        CommunicateOutput {
            stdout: stream(OutputStream::Stdout),
            stderr: stream(OutputStream::Stderr),
            terminal: stream(OutputStream::Pty),
            missed_chunks: self.missed_chunks,
            exit: self.exit,
            closed: self.closed,
        }
    }
}

/// Keeps the first and the last bytes of a stream, half of the limit each.
#[derive(Debug)]
pub struct HeadTailBuffer {
    head: Vec<u8>,
    head_limit: usize,
    tail: VecDeque<u8>,
    tail_limit: usize,
    omitted: u64,
}

/// Contents of a buffer: everything, or its head and tail.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeadTailParts {
    /// The head.
    pub head: Vec<u8>,
    /// The bytes after the head, or the tail if bytes were omitted in between.
    pub tail: Vec<u8>,
    /// Number of omitted bytes between head and tail.
    pub omitted: u64,
}

impl HeadTailBuffer {
    /// Creates an empty buffer that keeps at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        let head_limit = max_bytes / 2;
        Self {
            head: Vec::new(),
            head_limit,
            tail: VecDeque::new(),
            tail_limit: max_bytes - head_limit,
            omitted: 0,
        }
    }

    /// Appends `data` and drops bytes from the middle if the limit is exceeded.
    pub fn push(&mut self, data: &[u8]) {
        let available = self.head_limit - self.head.len();
        let (head, rest) = data.split_at(available.min(data.len()));
        self.head.extend_from_slice(head);
        // Skip bytes that would be dropped again immediately.
        let retained = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let excess = (self.tail.len() + retained.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(retained);
        self.omitted += (rest.len() - retained.len() + excess) as u64;
    }

    /// Empties the buffer and returns its contents.
    pub fn take(&mut self) -> HeadTailParts {
        HeadTailParts {
            head: std::mem::take(&mut self.head),
            tail: std::mem::take(&mut self.tail).into(),
            omitted: std::mem::take(&mut self.omitted),
        }
    }

    /// Returns the head.
    pub fn first(&self) -> &[u8] {
        &self.head
    }

    /// Returns how many bytes were dropped from the middle.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Returns the last `count` bytes, or as many as were kept.
    pub fn last(&self, count: usize) -> Vec<u8> {
        let from_tail = count.min(self.tail.len());
        let mut last = Vec::new();
        if self.omitted == 0 {
            let from_head = (count - from_tail).min(self.head.len());
            last.extend_from_slice(&self.head[self.head.len() - from_head..]);
        }
        last.extend(self.tail.range(self.tail.len() - from_tail..));
        last
    }

    /// Returns head and tail joined, and the number of bytes omitted between them.
    fn into_head_tail(mut self) -> HeadTail {
        let HeadTailParts {
            head: mut data,
            tail,
            omitted,
        } = self.take();
        data.extend(tail);
        HeadTail { data, omitted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retained(max_bytes: usize, pieces: &[&str]) -> (String, u64) {
        let mut buffer = HeadTailBuffer::new(max_bytes);
        for piece in pieces {
            buffer.push(piece.as_bytes());
        }
        let HeadTail { data, omitted } = buffer.into_head_tail();
        (String::from_utf8(data).unwrap(), omitted)
    }

    #[test]
    fn output_within_the_limit_is_kept_whole() {
        assert_eq!(retained(6, &["ab", "", "cdef"]), ("abcdef".to_owned(), 0));
    }

    #[test]
    fn dropped_middle_is_counted_for_any_chunking() {
        let alphabet = "abcdefghijklmnopqrstuvwxyz";
        let letters: Vec<&str> = alphabet.split("").collect();
        let expected = ("abcxyz".to_owned(), 20);
        for pieces in [&[alphabet][..], &letters, &[&alphabet[..2], &alphabet[2..]]] {
            assert_eq!(retained(6, pieces), expected);
        }
        assert_eq!(retained(5, &[alphabet]), ("abxyz".to_owned(), 21));
    }

    #[test]
    fn zero_limit_keeps_nothing() {
        assert_eq!(retained(0, &["abc", "d"]), (String::new(), 4));
    }

    #[test]
    fn last_bytes_come_from_behind_the_gap() {
        let mut buffer = HeadTailBuffer::new(6);
        buffer.push(b"abcd");
        assert_eq!(buffer.last(2), b"cd");
        assert_eq!(buffer.last(9), b"abcd");
        buffer.push(b"efgh");
        assert_eq!(buffer.last(9), b"fgh");
        let ends = HeadTailParts {
            head: b"abc".to_vec(),
            tail: b"fgh".to_vec(),
            omitted: 2,
        };
        assert_eq!(buffer.take(), ends);
        assert_eq!(buffer.take(), HeadTailParts::default());
    }
}
