//! Reads what a server has recorded of a process: the whole journal of a durable one, and the
//! retained end of any other.
//!
//! Invariant: at most one page is in memory, however much was recorded, and every chunk is returned
//! once, in order. Waiting for new output is elsewhere (`process_session`): it may never come.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use exec_client::client::ExecServerClient;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{OutputPage, OutputStream, PageChunk, ReadProcess},
};

use crate::command::{
    detached::{call_failure, output_position},
    failure::CommandFailure,
    process_session::show_outages,
};

/// Bytes requested at once.
const PAGE_BYTES: usize = 1 << 20;
/// Chunks per step of a backward search for lines. Each step doubles the number.
const SEARCH_CHUNKS: std::ops::RangeInclusive<u64> = 64..=4096;

/// Recorded output of a process, up to the event that was the last one on opening. If the process
/// ends meanwhile, everything.
#[derive(Debug)]
pub(crate) struct RecordedOutput {
    client: ExecServerClient,
    id: ProcessId,
    cursor: OutputCursor,
    times: ChunkTimes,
    /// Bytes of the next chunk that are not wanted.
    skipped: usize,
}

/// Whether chunks have times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ChunkTimes {
    /// They do, or reading fails.
    Required,
    /// They do not.
    Omitted,
}

/// Chunk of recorded output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RecordedChunk {
    /// Sequence number.
    pub(crate) seq: OutputSeq,
    /// Stream that produced it.
    pub(crate) stream: OutputStream,
    /// Output.
    pub(crate) data: Bytes,
    /// Milliseconds since the Unix epoch, with [`ChunkTimes::Required`].
    pub(crate) at_ms: u64,
    /// Output that is missing before it.
    pub(crate) missing: Option<MissingOutput>,
}

/// Output that the server no longer has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MissingOutput {
    /// The beginning.
    Earlier,
    /// A part in the middle.
    Between,
}

impl MissingOutput {
    /// Describes it to the user.
    pub(crate) fn notice(self) -> &'static str {
        match self {
            Self::Earlier => "earlier output is no longer retained",
            Self::Between => "some output is missing here: it was written faster than it was read",
        }
    }
}

impl RecordedOutput {
    /// Positions at the beginning.
    pub(crate) async fn open(
        client: &ExecServerClient,
        id: &ProcessId,
        times: ChunkTimes,
    ) -> Result<Self, CommandFailure> {
        let now = show_outages(client, output_position(client, id)).await?;
        Ok(Self {
            client: client.clone(),
            id: id.clone(),
            cursor: OutputCursor::new(now.next_seq),
            times,
            skipped: 0,
        })
    }

    /// Reads the next chunks. `None`: there are no more.
    pub(crate) async fn next_page(&mut self) -> Result<Option<Vec<RecordedChunk>>, CommandFailure> {
        loop {
            if self.cursor.is_over {
                return Ok(None);
            }
            let page = self.read(self.cursor.last, PAGE_BYTES, self.times).await?;
            let mut chunks = self.cursor.handle_page(page);
            if let Some(first) = chunks.first_mut() {
                let skipped = std::mem::take(&mut self.skipped).min(first.data.len());
                drop(first.data.split_to(skipped));
                return Ok(Some(chunks));
            }
        }
    }

    /// Returns the last event that was read or skipped.
    pub(crate) fn last(&self) -> OutputSeq {
        self.cursor.last
    }

    /// Returns whether the process ended and everything was read.
    pub(crate) fn is_closed(&self) -> bool {
        self.cursor.is_closed
    }

    /// Skips output before a time, in milliseconds since the Unix epoch.
    pub(crate) async fn skip_until(&mut self, time_ms: u64) -> Result<(), CommandFailure> {
        let (mut low, mut high) = (self.cursor.last, self.cursor.end);
        // The first chunk after `low` may be too old; the one after `high` is not.
        while low < high {
            let middle = OutputSeq(low.0 + (high.0 - low.0) / 2);
            match self.chunk_after(middle, ChunkTimes::Required).await? {
                Some(chunk) if chunk.at_ms.unwrap_or(0) < time_ms => low = chunk.seq,
                Some(_) | None => high = middle,
            }
        }
        self.cursor.skip_to(low);
        Ok(())
    }

    /// Skips output before the last `lines` lines, counted across both streams. An unterminated
    /// last line counts.
    pub(crate) async fn skip_to_last_lines(&mut self, lines: usize) -> Result<(), CommandFailure> {
        let start = match self
            .chunk_after(self.cursor.last, ChunkTimes::Omitted)
            .await?
        {
            Some(first) => OutputSeq(first.seq.0 - 1),
            None => return Ok(()),
        };
        let mut search = LastLinesSearch::new(lines);
        let (mut end, mut range) = (self.cursor.end, *SEARCH_CHUNKS.start());
        while end > start && search.found.is_none() {
            let begin = OutputSeq(end.0.saturating_sub(range)).max(start);
            let mut counts = Vec::new();
            let mut after = begin;
            while after < end {
                let page = self.read(after, PAGE_BYTES, ChunkTimes::Omitted).await?;
                let chunks = page.chunks.iter().filter(|chunk| chunk.seq <= end);
                let counted = chunks.map(|chunk| (chunk.seq, LineCount::of(&chunk.chunk.0)));
                let before = counts.len();
                counts.extend(counted);
                let Some((last, _)) = counts.get(before..).and_then(<[_]>::last) else {
                    break;
                };
                after = *last;
            }
            search.handle_chunks(&counts);
            end = begin;
            range = (2 * range).min(*SEARCH_CHUNKS.end());
        }
        match search.found {
            Some((seq, newline)) => {
                self.cursor.skip_to(OutputSeq(seq.0 - 1));
                let chunk = self
                    .chunk_after(self.cursor.last, ChunkTimes::Omitted)
                    .await?;
                // It may be gone by now.
                let chunk = chunk.filter(|chunk| chunk.seq == seq);
                self.skipped = chunk.map_or(0, |chunk| after_newline(&chunk.chunk.0, newline));
            }
            None => self.cursor.skip_to(start),
        }
        Ok(())
    }

    /// Skips all but roughly the last `bytes` bytes. Returns whether anything was skipped.
    pub(crate) async fn skip_to_last_bytes(
        &mut self,
        bytes: usize,
    ) -> Result<bool, CommandFailure> {
        let Some(first) = self
            .chunk_after(self.cursor.last, ChunkTimes::Omitted)
            .await?
        else {
            return Ok(false);
        };
        let start = OutputSeq(first.seq.0 - 1);
        let (mut begin, mut range) = (self.cursor.end, *SEARCH_CHUNKS.start());
        while begin > start {
            begin = OutputSeq(self.cursor.end.0.saturating_sub(range)).max(start);
            let (mut after, mut size) = (begin, 0);
            while size < bytes {
                let page = self.read(after, bytes, ChunkTimes::Omitted).await?;
                let Some(last) = page.chunks.last() else {
                    break;
                };
                after = last.seq;
                let lengths = page.chunks.iter().map(|chunk| chunk.chunk.0.len());
                size += lengths.sum::<usize>();
            }
            if size >= bytes {
                break;
            }
            range = range.saturating_mul(2);
        }
        self.cursor.skip_to(begin);
        Ok(begin > start)
    }

    async fn chunk_after(
        &self,
        after: OutputSeq,
        times: ChunkTimes,
    ) -> Result<Option<PageChunk>, CommandFailure> {
        let page = self.read(after, 1, times).await?;
        let first = page.chunks.into_iter().next();
        Ok(first.filter(|chunk| chunk.seq <= self.cursor.end))
    }

    async fn read(
        &self,
        after: OutputSeq,
        max_bytes: usize,
        times: ChunkTimes,
    ) -> Result<OutputPage, CommandFailure> {
        let read = self.client.call(ReadProcess {
            process_id: self.id.clone(),
            after_seq: Some(after),
            max_bytes: Some(max_bytes),
            wait_ms: None,
            times: times == ChunkTimes::Required,
        });
        let page = show_outages(&self.client, read)
            .await
            .map_err(call_failure)?;
        let untimed = page.chunks.iter().any(|chunk| chunk.at_ms.is_none());
        if times == ChunkTimes::Required && untimed {
            let what = format!("the times of `{}` are not recorded", self.id);
            return Err(CommandFailure::failed(what)
                .next("only durable processes record them; start it with --durable"));
        }
        Ok(page)
    }
}

/// Position in recorded output.
#[derive(Clone, Debug)]
struct OutputCursor {
    /// Last event that was read.
    last: OutputSeq,
    /// Last event on opening.
    end: OutputSeq,
    /// Whether the missing beginning would be worth mentioning.
    is_at_beginning: bool,
    is_over: bool,
    is_closed: bool,
}

impl OutputCursor {
    /// `next_seq` is the number of the next event.
    fn new(next_seq: OutputSeq) -> Self {
        Self {
            last: OutputSeq(0),
            end: OutputSeq(next_seq.0.saturating_sub(1)),
            is_at_beginning: true,
            is_over: false,
            is_closed: false,
        }
    }

    /// Continues after an event.
    fn skip_to(&mut self, last: OutputSeq) {
        self.last = self.last.max(last);
        self.is_at_beginning = false;
    }

    /// Takes the page after `last`.
    fn handle_page(&mut self, page: OutputPage) -> Vec<RecordedChunk> {
        let exit_seq = page.exit_seq;
        let (before, is_empty) = (self.last, page.chunks.is_empty());
        let chunks = page.chunks.into_iter().map(|chunk| {
            let mut expected = self.last.next();
            // The exit has a number, too.
            if exit_seq == Some(expected) {
                expected = expected.next();
            }
            let missing = (chunk.seq > expected).then_some(match self.is_at_beginning {
                true => MissingOutput::Earlier,
                false => MissingOutput::Between,
            });
            self.last = chunk.seq;
            self.is_at_beginning = false;
            RecordedChunk {
                seq: chunk.seq,
                stream: chunk.stream,
                data: chunk.chunk.0,
                at_ms: chunk.at_ms.unwrap_or(0),
                missing,
            }
        });
        let chunks = chunks.collect();
        self.last = self.last.max(OutputSeq(page.next_seq.0.saturating_sub(1)));
        // `closed` does not describe this page, but then the end no longer moves.
        let is_enough = !page.closed && self.last >= self.end;
        if is_empty || self.last <= before || is_enough {
            self.is_over = true;
            self.is_closed = page.closed;
        }
        chunks
    }
}

/// Lines in a chunk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct LineCount {
    newlines: usize,
    /// Whether the last byte is a newline.
    is_terminated: bool,
    is_empty: bool,
}

impl LineCount {
    fn of(data: &[u8]) -> Self {
        Self {
            newlines: data.iter().filter(|byte| **byte == b'\n').count(),
            is_terminated: data.last() == Some(&b'\n'),
            is_empty: data.is_empty(),
        }
    }
}

/// Searches backwards for the newline before the last lines.
#[derive(Clone, Debug)]
struct LastLinesSearch {
    /// Lines still to find.
    lines: usize,
    /// Nothing was seen yet: a newline at the very end starts no new line.
    is_at_end: bool,
    /// Chunk, and the number of the newline in it, counted from 1.
    found: Option<(OutputSeq, usize)>,
}

impl LastLinesSearch {
    fn new(lines: usize) -> Self {
        Self {
            lines,
            is_at_end: true,
            found: None,
        }
    }

    /// Takes chunks in ascending order that precede those of the previous call.
    fn handle_chunks(&mut self, chunks: &[(OutputSeq, LineCount)]) {
        for (seq, count) in chunks.iter().rev() {
            if self.found.is_some() || count.is_empty {
                continue;
            }
            let mut newlines = count.newlines;
            if std::mem::take(&mut self.is_at_end) {
                if self.lines == 0 {
                    self.found = Some((*seq, usize::MAX));
                    return;
                }
                newlines -= usize::from(count.is_terminated);
            }
            match newlines.checked_sub(self.lines) {
                Some(before) => self.found = Some((*seq, before + 1)),
                None => self.lines -= newlines,
            }
        }
    }
}

/// Returns the offset behind the newline with this number, counted from 1.
fn after_newline(data: &[u8], number: usize) -> usize {
    let newlines = data.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let mut ends = newlines.map(|(at, _)| at + 1);
    ends.nth(number.saturating_sub(1)).unwrap_or(data.len())
}
