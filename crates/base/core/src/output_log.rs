//! Output log of a process: numbered, bounded, and replayable by a client that reconnects.
//!
//! Invariant: every sequence number is assigned once, so a reader can distinguish a gap from output
//! that is still to come. Encoding is in `exec-wire`; followers and backpressure are in
//! [`FollowedLog`].

mod followed_log;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;
use exec_wire::{
    id::OutputSeq,
    limits,
    process::{ExitCause, OutputStream, ResourceUsage},
};

pub use self::followed_log::{
    BackpressureMode, FollowOptions, FollowStart, FollowedEvent, FollowedLog, FollowerId,
};

/// Upper bounds of the retained output. The oldest chunks are evicted first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RetentionLimits {
    /// Maximum output bytes.
    pub bytes: usize,
    /// Maximum number of chunks.
    pub chunks: usize,
}

impl Default for RetentionLimits {
    fn default() -> Self {
        Self {
            bytes: limits::RETAINED_OUTPUT_BYTES,
            chunks: limits::RETAINED_OUTPUT_CHUNKS,
        }
    }
}

/// Output of one read from a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OutputChunk {
    /// Sequence number.
    pub seq: OutputSeq,
    /// Stream that produced it.
    pub stream: OutputStream,
    /// Output bytes.
    pub data: Bytes,
}

/// Describes how a process ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ExitInfo {
    /// Exit status, or 128 + n if signal n killed the process.
    pub code: i32,
    /// POSIX name of the signal that killed the process, if any.
    pub signal: Option<&'static str>,
    /// Reason for the exit.
    pub cause: ExitCause,
    /// Resource usage, if the platform reported it.
    pub usage: Option<ResourceUsage>,
    /// The sandbox probably denied an operation.
    pub sandbox_denied: bool,
}

/// Event of a process. Events are ordered by sequence number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LogEvent {
    /// The process wrote output.
    Output(OutputChunk),
    /// The process was reaped.
    Exited(OutputSeq, ExitInfo),
    /// All output streams ended. This is the last event.
    Closed(OutputSeq),
}

impl LogEvent {
    /// Returns the sequence number.
    pub fn seq(&self) -> OutputSeq {
        match self {
            Self::Output(chunk) => chunk.seq,
            Self::Exited(seq, _) | Self::Closed(seq) => *seq,
        }
    }
}

/// Retained events of one process. Output above the retention limits is evicted, oldest first.
#[derive(Debug)]
pub struct OutputLog {
    retention: RetentionLimits,
    chunks: VecDeque<OutputChunk>,
    retained_bytes: usize,
    appended_bytes: u64,
    next: OutputSeq,
    retain_after: Option<OutputSeq>,
    exit: Option<(OutputSeq, ExitInfo)>,
    closed: Option<OutputSeq>,
    heads: [StreamHead; 3],
    /// Whether evicted chunks remain readable in an archive outside of this log.
    archived: bool,
    /// Last chunk that was evicted, or 0.
    evicted_through: OutputSeq,
}

/// Known state of an archived log that another server has recorded.
#[derive(Clone, Debug)]
pub struct ArchivedState {
    /// Next sequence number to assign.
    pub next_seq: OutputSeq,
    /// Bytes ever appended, by stream in the order of [`OutputStream`].
    pub stream_bytes: [u64; 3],
    /// Last chunks of the archive, in ascending order. They are retained in memory.
    pub tail: Vec<OutputChunk>,
    /// Exit, if it was recorded.
    pub exit: Option<(OutputSeq, ExitInfo)>,
    /// End of the output, if it was recorded.
    pub closed: Option<OutputSeq>,
}

impl OutputLog {
    /// Creates an empty log. The first event gets sequence number 1.
    pub fn new(retention: RetentionLimits) -> Self {
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
            archived: false,
            evicted_through: OutputSeq(0),
        }
    }

    /// Creates an empty log with an archive, in which evicted chunks remain readable.
    pub fn with_archive(retention: RetentionLimits) -> Self {
        Self {
            archived: true,
            ..Self::new(retention)
        }
    }

    /// Continues an archived log. Heads of its streams are not restored, so a snapshot of it has
    /// tails only.
    pub fn restored(retention: RetentionLimits, state: ArchivedState) -> Self {
        let mut log = Self::with_archive(retention);
        for (head, bytes) in log.heads.iter_mut().zip(state.stream_bytes) {
            *head = StreamHead::skipped(bytes);
        }
        let first = state.tail.first().map_or(state.next_seq, |chunk| chunk.seq);
        log.evicted_through = OutputSeq(first.0.saturating_sub(1));
        log.retained_bytes = state.tail.iter().map(|chunk| chunk.data.len()).sum();
        log.chunks = state.tail.into();
        log.appended_bytes = state.stream_bytes.iter().sum();
        log.next = state.next_seq;
        log.exit = state.exit;
        log.closed = state.closed;
        log.evict();
        log
    }

    /// Appends output. Returns `None` after the close.
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

    /// Records the exit. Later calls have no effect.
    pub fn record_exit(&mut self, exit: ExitInfo) -> Option<OutputSeq> {
        if self.exit.is_some() || self.closed.is_some() {
            return None;
        }
        let seq = self.take_seq();
        self.exit = Some((seq, exit));
        Some(seq)
    }

    /// Records the end of the output. Has no effect before the exit is recorded.
    pub fn record_close(&mut self) -> Option<OutputSeq> {
        if self.exit.is_none() || self.closed.is_some() {
            return None;
        }
        let seq = self.take_seq();
        self.closed = Some(seq);
        Some(seq)
    }

    /// Leaves a gap before `next`: the skipped events are lost. Has no effect if `next` was already
    /// assigned.
    pub fn skip_to(&mut self, next: OutputSeq) {
        self.next = self.next.max(next);
    }

    /// Exempts output after `after` from eviction because a follower still needs it. `None` removes
    /// the exemption.
    pub fn retain_after(&mut self, after: Option<OutputSeq>) {
        self.retain_after = after;
        self.evict();
    }

    /// Returns the number of retained bytes after `after`.
    pub fn bytes_after(&self, after: OutputSeq) -> u64 {
        self.bytes_between(after, self.last_seq())
    }

    /// Returns the number of retained bytes after `after`, up to and including `last`.
    fn bytes_between(&self, after: OutputSeq, last: OutputSeq) -> u64 {
        let first = self.index_after(after);
        let end = self.index_after(last).max(first);
        let chunks = self.chunks.range(first..end);
        chunks.map(|chunk| chunk.data.len() as u64).sum()
    }

    /// Returns the next sequence number to assign.
    pub fn next_seq(&self) -> OutputSeq {
        self.next
    }

    /// Returns the last assigned sequence number, or 0 before the first event.
    fn last_seq(&self) -> OutputSeq {
        OutputSeq(self.next.0 - 1)
    }

    /// Returns the sequence number before the oldest retained chunk.
    fn before_oldest(&self) -> OutputSeq {
        let oldest = self.chunks.front();
        oldest.map_or(self.last_seq(), |oldest| OutputSeq(oldest.seq.0 - 1))
    }

    /// Returns the number of retained bytes.
    pub fn retained_bytes(&self) -> usize {
        self.retained_bytes
    }

    /// Returns the number of bytes ever appended.
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes
    }

    /// Returns the number of bytes ever appended of each stream, in the order of [`OutputStream`].
    pub fn stream_bytes(&self) -> [u64; 3] {
        std::array::from_fn(|index| self.heads[index].total)
    }

    /// Returns the exit, once recorded.
    pub fn exit(&self) -> Option<&ExitInfo> {
        self.exit.as_ref().map(|(_, exit)| exit)
    }

    /// Returns whether the output ended.
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Returns whether evicted chunks remain readable in an archive.
    pub fn is_archived(&self) -> bool {
        self.archived
    }

    /// Returns whether the archive holds chunks after `after` that this log has evicted.
    pub fn needs_archive(&self, after: OutputSeq) -> bool {
        self.archived && after < self.evicted_through
    }

    /// Returns the event after `after`, given the first chunk of the archive after it. The exit may
    /// precede that chunk. `None`: the archive has lost everything that this log has evicted.
    fn archived_event(&self, after: OutputSeq, chunk: Option<OutputChunk>) -> Option<LogEvent> {
        let exit = self.exit.as_ref().filter(|(seq, _)| *seq > after);
        match (chunk, exit) {
            (Some(chunk), Some((seq, exit))) if *seq < chunk.seq => {
                Some(LogEvent::Exited(*seq, exit.clone()))
            }
            (Some(chunk), _) => Some(LogEvent::Output(chunk)),
            (None, _) => self.event_after(after.max(self.evicted_through)),
        }
    }

    /// Returns the first retained event after `after`.
    pub fn event_after(&self, after: OutputSeq) -> Option<LogEvent> {
        let index = self.index_after(after);
        let chunk = self.chunks.get(index);
        let exit = self.exit.as_ref().filter(|(seq, _)| *seq > after);
        match (chunk, exit) {
            (Some(chunk), Some((seq, _))) if chunk.seq < *seq => {
                Some(LogEvent::Output(chunk.clone()))
            }
            (_, Some((seq, exit))) => Some(LogEvent::Exited(*seq, exit.clone())),
            (Some(chunk), None) => Some(LogEvent::Output(chunk.clone())),
            (None, None) => self.closed.filter(|seq| *seq > after).map(LogEvent::Closed),
        }
    }

    /// Returns the index of the first retained chunk after `after`.
    fn index_after(&self, after: OutputSeq) -> usize {
        self.chunks.partition_point(|chunk| chunk.seq <= after)
    }

    fn evict(&mut self) {
        let RetentionLimits { bytes, chunks } = self.retention;
        while self.retained_bytes > bytes || self.chunks.len() > chunks {
            let evictable = self
                .chunks
                .pop_front_if(|oldest| self.retain_after.is_none_or(|after| oldest.seq <= after));
            let Some(oldest) = evictable else { break };
            self.retained_bytes -= oldest.data.len();
            self.evicted_through = oldest.seq;
        }
    }

    fn take_seq(&mut self) -> OutputSeq {
        let seq = self.next;
        self.next = seq.next();
        seq
    }
}

/// Result of reading retained output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogPage {
    /// Retained output after the cursor, in ascending order.
    pub chunks: Vec<OutputChunk>,
    /// Sequence number at which the next read continues.
    pub next_seq: OutputSeq,
    /// Exit, once recorded.
    pub exit: Option<ExitInfo>,
    /// Sequence number of the exit event.
    pub exit_seq: Option<OutputSeq>,
    /// The output ended.
    pub closed: bool,
}

impl OutputLog {
    /// Returns retained output after `after` without consuming it. The first chunk is always
    /// returned whole; further chunks are added while the total stays within `max_bytes`.
    pub fn page(&self, after: OutputSeq, max_bytes: Option<usize>) -> LogPage {
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
        LogPage {
            chunks,
            next_seq,
            exit,
            exit_seq: self.exit.as_ref().map(|(seq, _)| *seq),
            closed: self.is_closed(),
        }
    }

    /// Returns whether a waiting reader at `after` should wake: there is output after `after`, an
    /// exit it has not seen, or the close.
    pub fn is_readable_after(&self, after: OutputSeq) -> bool {
        self.index_after(after) < self.chunks.len()
            || self.closed.is_some()
            || (self.exit.is_some() && after.next() < self.next_seq())
    }
}

/// First bytes of one stream. They stay available after the log evicts its oldest chunks.
#[derive(Debug)]
struct StreamHead {
    limit: usize,
    parts: Vec<Bytes>,
    head_bytes: usize,
    total: u64,
    /// Last chunk that is contained completely.
    last: OutputSeq,
    /// Chunk that is contained in part, and the number of its bytes that are.
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

    /// Creates the head of a stream that has skipped its first bytes.
    fn skipped(total: u64) -> Self {
        Self {
            total,
            ..Self::new(0)
        }
    }

    fn push(&mut self, seq: OutputSeq, data: &Bytes) {
        self.total += data.len() as u64;
        let available = self.limit - self.head_bytes;
        if available == 0 {
            return;
        }
        let part = data.slice(..available.min(data.len()));
        self.head_bytes += part.len();
        if part.len() == data.len() {
            self.last = seq;
        } else {
            self.split = Some((seq, part.len()));
        }
        self.parts.push(part);
    }
}

/// First and last bytes of a stream, with the number of bytes omitted between them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeadTail {
    /// Head followed by tail.
    pub data: Vec<u8>,
    /// Bytes omitted between them.
    pub omitted: u64,
}

/// Head and tail of every stream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OutputSnapshot {
    /// Standard output.
    pub stdout: HeadTail,
    /// Standard error.
    pub stderr: HeadTail,
    /// The terminal.
    pub terminal: HeadTail,
}

impl OutputLog {
    /// Returns head and tail of each stream.
    pub fn snapshot(&self) -> OutputSnapshot {
        OutputSnapshot {
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
