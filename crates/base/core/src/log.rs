//! Retained process output: numbered, bounded, and replayable by a client that comes back.
//! Invariant: a number is given once, so readers can tell *lost* from *late*.
//! Not here: encoding.

mod followed_log;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;
use exec_wire::{
    id::OutputSeq,
    limits,
    process::{ExitCause, OutputStream, Usage},
};

pub use self::followed_log::{Follow, Followed, FollowedLog, FollowerId, From, Pace};

/// How much a log retains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Retention {
    /// Bytes of output.
    pub bytes: usize,
    /// Chunks of output.
    pub chunks: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            bytes: limits::RETAINED_OUTPUT_BYTES,
            chunks: limits::RETAINED_OUTPUT_CHUNKS,
        }
    }
}

/// One read of a process's output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OutputChunk {
    /// Its number.
    pub seq: OutputSeq,
    /// Where it came from.
    pub stream: OutputStream,
    /// What was written.
    pub data: Bytes,
}

/// How a process ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Exit {
    /// The status, or 128 + n after signal n.
    pub code: i32,
    /// The POSIX name of the signal, if one killed it.
    pub signal: Option<&'static str>,
    /// Why.
    pub cause: ExitCause,
    /// What it used, if that is known.
    pub usage: Option<Usage>,
    /// The sandbox seems to have refused something.
    pub sandbox_denied: bool,
}

/// Something that happened to a process, in the order of its numbers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// It wrote.
    Output(OutputChunk),
    /// It was reaped.
    Exited(OutputSeq, Exit),
    /// Its output ended; nothing follows.
    Closed(OutputSeq),
}

impl Event {
    /// Returns the event's number.
    pub fn seq(&self) -> OutputSeq {
        match self {
            Self::Output(chunk) => chunk.seq,
            Self::Exited(seq, _) | Self::Closed(seq) => *seq,
        }
    }
}

/// The events of one process. Output beyond the retention falls out, oldest first.
#[derive(Debug)]
pub struct OutputLog {
    retention: Retention,
    chunks: VecDeque<OutputChunk>,
    retained_bytes: usize,
    appended_bytes: u64,
    next: OutputSeq,
    retain_after: Option<OutputSeq>,
    exit: Option<(OutputSeq, Exit)>,
    closed: Option<OutputSeq>,
    heads: [StreamHead; 3],
}

impl OutputLog {
    /// Begins empty; the first event is number 1.
    pub fn new(retention: Retention) -> Self {
        Self {
            retention,
            chunks: VecDeque::new(),
            retained_bytes: 0,
            appended_bytes: 0,
            next: OutputSeq(1),
            retain_after: None,
            exit: None,
            closed: None,
            heads: std::array::from_fn(|_| StreamHead::new(retention.bytes / 8)),
        }
    }

    /// Records output. After the close nothing is recorded, and nothing is returned.
    pub fn append(&mut self, stream: OutputStream, data: Bytes) -> Option<OutputSeq> {
        if self.closed.is_some() {
            return None;
        }
        let seq = self.take_seq();
        self.retained_bytes += data.len();
        self.appended_bytes += data.len() as u64;
        self.heads[stream as usize].push(seq, &data);
        self.chunks.push_back(OutputChunk { seq, stream, data });
        self.evict();
        Some(seq)
    }

    /// Records that the process was reaped; only the first time counts.
    pub fn record_exit(&mut self, exit: Exit) -> Option<OutputSeq> {
        if self.exit.is_some() || self.closed.is_some() {
            return None;
        }
        let seq = self.take_seq();
        self.exit = Some((seq, exit));
        Some(seq)
    }

    /// Records that the output ended. Before the exit is recorded, nothing happens.
    pub fn record_close(&mut self) -> Option<OutputSeq> {
        if self.exit.is_none() || self.closed.is_some() {
            return None;
        }
        let seq = self.take_seq();
        self.closed = Some(seq);
        Some(seq)
    }

    /// Leaves out the numbers before `next`: what had them will not come. A number that was given
    /// already changes nothing.
    pub fn skip_to(&mut self, next: OutputSeq) {
        self.next = self.next.max(next);
    }

    /// Keeps output after `after` whatever the retention says: somebody is still to be sent it.
    /// `None` exceeds_window nothing.
    pub fn hold_after(&mut self, after: Option<OutputSeq>) {
        self.retain_after = after;
        self.evict();
    }

    /// Returns how many retained bytes come after `after`.
    pub fn bytes_after(&self, after: OutputSeq) -> u64 {
        self.bytes_between(after, self.last_seq())
    }

    /// Returns how many retained bytes come after `after`, up to `last`.
    fn bytes_between(&self, after: OutputSeq, last: OutputSeq) -> u64 {
        let first = self.index_after(after);
        let end = self.index_after(last).max(first);
        let chunks = self.chunks.range(first..end);
        chunks.map(|chunk| chunk.data.len() as u64).sum()
    }

    /// Returns the next number not yet given out.
    pub fn next_seq(&self) -> OutputSeq {
        self.next
    }

    /// Returns the last number given out; 0 before the first.
    fn last_seq(&self) -> OutputSeq {
        OutputSeq(self.next.0 - 1)
    }

    /// Returns the number before the oldest output retained.
    fn before_oldest(&self) -> OutputSeq {
        let oldest = self.chunks.front();
        oldest.map_or(self.last_seq(), |oldest| OutputSeq(oldest.seq.0 - 1))
    }

    /// Returns how many bytes are retained.
    pub fn retained_bytes(&self) -> usize {
        self.retained_bytes
    }

    /// Returns how many bytes were ever recorded.
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes
    }

    /// Returns how the process ended, once it did.
    pub fn exit(&self) -> Option<&Exit> {
        self.exit.as_ref().map(|(_, exit)| exit)
    }

    /// Tells whether the output ended.
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Returns the first event after `after` that is still there.
    pub fn event_after(&self, after: OutputSeq) -> Option<Event> {
        let index = self.index_after(after);
        let chunk = self.chunks.get(index);
        let exit = self.exit.as_ref().filter(|(seq, _)| *seq > after);
        match (chunk, exit) {
            (Some(chunk), Some((seq, _))) if chunk.seq < *seq => Some(Event::Output(chunk.clone())),
            (_, Some((seq, exit))) => Some(Event::Exited(*seq, exit.clone())),
            (Some(chunk), None) => Some(Event::Output(chunk.clone())),
            (None, None) => self.closed.filter(|seq| *seq > after).map(Event::Closed),
        }
    }

    /// Returns the position of the first retained chunk after `after`.
    fn index_after(&self, after: OutputSeq) -> usize {
        self.chunks.partition_point(|chunk| chunk.seq <= after)
    }

    fn evict(&mut self) {
        let Retention { bytes, chunks } = self.retention;
        while self.retained_bytes > bytes || self.chunks.len() > chunks {
            let evictable = self
                .chunks
                .pop_front_if(|oldest| self.retain_after.is_none_or(|after| oldest.seq <= after));
            let Some(oldest) = evictable else { break };
            self.retained_bytes -= oldest.data.len();
        }
    }

    fn take_seq(&mut self) -> OutputSeq {
        let seq = self.next;
        self.next = seq.next();
        seq
    }
}

/// What a reader gets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Page {
    /// Retained output after the cursor, ascending.
    pub chunks: Vec<OutputChunk>,
    /// Where to go on.
    pub next_seq: OutputSeq,
    /// How the process ended, once it did.
    pub exit: Option<Exit>,
    /// The number of that event, if it is known.
    pub exit_seq: Option<OutputSeq>,
    /// The output ended.
    pub closed: bool,
}

impl OutputLog {
    /// Returns retained output after `after`. The first chunk is always given, whole; the others
    /// as long as the total stays within `max_bytes`.
    pub fn page(&self, after: OutputSeq, max_bytes: Option<usize>) -> Page {
        let mut chunks = Vec::new();
        let mut total = 0;
        for chunk in self.chunks.range(self.index_after(after)..) {
            let new_total = total + chunk.data.len();
            if !chunks.is_empty() && max_bytes.is_some_and(|max| new_total > max) {
                break;
            }
            total = new_total;
            chunks.push(chunk.clone());
            if max_bytes.is_some_and(|max| total >= max) {
                break;
            }
        }
        let next_seq = match (max_bytes, chunks.last()) {
            (Some(_), Some(last)) => last.seq.next(),
            _ => self.next_seq(),
        };
        let exit = self.exit().cloned();
        Page {
            chunks,
            next_seq,
            exit,
            exit_seq: self.exit.as_ref().map(|(seq, _)| *seq),
            closed: self.is_closed(),
        }
    }

    /// Tells whether a waiting reader at `after` has something to look at: output, the close, or
    /// an exit that it has not seen.
    pub fn has_news(&self, after: OutputSeq) -> bool {
        self.index_after(after) < self.chunks.len()
            || self.closed.is_some()
            || (self.exit.is_some() && after.next() < self.next_seq())
    }
}

/// The beginning of one stream, head_bytes while the log's own chunks fall out behind it.
#[derive(Debug)]
struct StreamHead {
    limit: usize,
    parts: Vec<Bytes>,
    head_bytes: usize,
    total: u64,
    /// The last chunk that went in whole.
    last: OutputSeq,
    /// The chunk that went in partly, and how much of it.
    split: Option<(OutputSeq, usize)>,
}

impl StreamHead {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            parts: Vec::new(),
            head_bytes: 0,
            total: 0,
            last: OutputSeq(0),
            split: None,
        }
    }

    fn push(&mut self, seq: OutputSeq, data: &Bytes) {
        self.total += data.len() as u64;
        let available = self.limit - self.head_bytes;
        if available == 0 {
            return;
        }
        let taken = data.slice(..available.min(data.len()));
        self.head_bytes += taken.len();
        if taken.len() == data.len() {
            self.last = seq;
        } else {
            self.split = Some((seq, taken.len()));
        }
        self.parts.push(taken);
    }
}

/// The first and the last bytes of a stream, and how many are missing between them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeadTail {
    /// StreamHead and tail, one after the other.
    pub data: Vec<u8>,
    /// Bytes dropped between them.
    pub omitted: u64,
}

/// StreamHead and tail of every stream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot {
    /// Standard output.
    pub stdout: HeadTail,
    /// Standard error.
    pub stderr: HeadTail,
    /// The terminal.
    pub terminal: HeadTail,
}

impl OutputLog {
    /// Returns the head and the tail of what was written to each stream.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            stdout: self.head_tail(OutputStream::Stdout),
            stderr: self.head_tail(OutputStream::Stderr),
            terminal: self.head_tail(OutputStream::Pty),
        }
    }

    fn head_tail(&self, stream: OutputStream) -> HeadTail {
        let head = &self.heads[stream as usize];
        let mut data = head.parts.concat();
        for chunk in self.chunks.range(self.index_after(head.last)..) {
            if chunk.stream == stream {
                let in_head = head.split.filter(|(seq, _)| *seq == chunk.seq);
                data.extend_from_slice(&chunk.data[in_head.map_or(0, |(_, length)| length)..]);
            }
        }
        let omitted = head.total - data.len() as u64;
        HeadTail { data, omitted }
    }
}
