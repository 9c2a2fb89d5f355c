//! Reads the output of a process from its journal by sequence number.
//!
//! Invariant: only whole chunks with the right checksum are returned, in ascending order. Evicted
//! and damaged chunks are gaps. A writer may append and evict at the same time.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use exec_core::output_log::OutputChunk;
use exec_wire::{id::OutputSeq, process::OutputStream};

use crate::{
    event_file::EventFile,
    index_record::IndexRecord,
    journal_error::JournalError,
    limits::{HEAD_BYTES, MAX_PAGE_BYTES, MAX_PAGE_CHUNKS},
    saved_heads::{HeadBytes, SavedHeads},
    segment::SegmentNumber,
    segment_reader::SegmentReader,
};

/// Chunk of output with the time at which it was committed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TimedChunk {
    /// The chunk.
    pub chunk: OutputChunk,
    /// Milliseconds since the Unix epoch.
    pub time_ms: u64,
}

/// Reads the output of a process from its journal. A clone shares the open segment.
#[derive(Clone, Debug)]
pub struct JournalReader {
    directory: Arc<OwnedFd>,
    /// Segment that was read last.
    segment: Arc<Mutex<Option<SegmentReader>>>,
}

impl JournalReader {
    /// Creates a reader of a record.
    pub(crate) fn new(directory: Arc<OwnedFd>) -> Self {
        Self {
            directory,
            segment: Arc::default(),
        }
    }

    /// Returns output after `after`. The first chunk is always returned whole; further chunks are
    /// added while the total stays within `max_bytes`. An empty page means the end.
    pub fn page(
        &self,
        after: OutputSeq,
        max_bytes: usize,
    ) -> Result<Vec<TimedChunk>, JournalError> {
        self.try_page(after, max_bytes).map_err(read_error)
    }

    /// Returns the oldest retained sequence number of output.
    pub fn oldest(&self) -> Result<Option<OutputSeq>, JournalError> {
        self.end(
            SegmentNumber::list(&self.directory).map_err(read_error)?,
            SegmentReader::first,
        )
    }

    /// Returns the newest sequence number of output.
    pub fn newest(&self) -> Result<Option<OutputSeq>, JournalError> {
        let mut segments = SegmentNumber::list(&self.directory).map_err(read_error)?;
        segments.reverse();
        self.end(segments, SegmentReader::last)
    }

    /// Returns the first bytes of a stream, at most `limit` and [`HEAD_BYTES`]. They stay available
    /// after the eviction of their segment.
    pub fn head_bytes(
        &self,
        stream: OutputStream,
        limit: usize,
    ) -> Result<HeadBytes, JournalError> {
        let limit = limit.min(HEAD_BYTES);
        let evicted = EventFile::load(&self.directory)?.evicted;
        let mut saved = SavedHeads::load(&self.directory).map_err(read_error)?;
        let mut head = std::mem::take(&mut saved.streams[stream as usize]);
        let is_contiguous = head.data.len() as u64 == evicted.bytes[stream as usize];
        head.data.truncate(limit);
        if head.data.len() == limit || !is_contiguous {
            return Ok(head);
        }
        let mut fill = || {
            let mut segments = SegmentNumber::list(&self.directory)?;
            segments.retain(|number| number.0 >= evicted.next_segment);
            // Otherwise more was evicted than is known.
            if segments
                .first()
                .is_none_or(|first| first.0 != evicted.next_segment)
            {
                return Ok(());
            }
            for number in segments {
                let Some(mut segment) = SegmentReader::open(&self.directory, number)? else {
                    continue;
                };
                if !segment.read_head(stream, limit, &mut head)? {
                    break;
                }
            }
            Ok(())
        };
        fill().map_err(read_error)?;
        Ok(head)
    }

    /// Returns the last bytes of a stream, at most `limit`, as far as they are retained.
    pub fn tail_bytes(&self, stream: OutputStream, limit: usize) -> Result<Vec<u8>, JournalError> {
        let mut parts = Vec::new();
        let mut fill = || {
            let mut missing = limit;
            for number in SegmentNumber::list(&self.directory)?.into_iter().rev() {
                if missing == 0 {
                    break;
                }
                if let Some(mut segment) = SegmentReader::open(&self.directory, number)? {
                    missing = segment.read_tail(stream, missing, &mut parts)?;
                }
            }
            Ok(())
        };
        fill().map_err(read_error)?;
        parts.reverse();
        Ok(parts.concat())
    }

    fn try_page(&self, after: OutputSeq, max_bytes: usize) -> io::Result<Vec<TimedChunk>> {
        let mut page = PageBuilder::new(max_bytes);
        let segments = SegmentNumber::list(&self.directory)?;
        for number in &segments[self.start(&segments, after)?..] {
            let more = self.with_segment(*number, |segment| segment.fill(after, &mut page))?;
            if more == Some(false) {
                break;
            }
        }
        Ok(page.chunks)
    }

    /// Returns the place of the segment in which output after `after` begins, or of one before it.
    fn start(&self, segments: &[SegmentNumber], after: OutputSeq) -> io::Result<usize> {
        let begins_before = |number| {
            let first = self.with_segment(number, SegmentReader::first)?;
            Ok::<_, io::Error>(first.flatten().is_some_and(|first| first <= after.next()))
        };
        let last_read = self.lock().as_ref().map(SegmentReader::number);
        if let Some(number) = last_read
            && let Ok(place) = segments.binary_search(&number)
            && begins_before(number)?
        {
            return Ok(place);
        }
        let (mut low, mut high) = (0, segments.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if begins_before(segments[middle])? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low.saturating_sub(1))
    }

    /// Returns the first result of `read` for `segments`.
    fn end(
        &self,
        segments: Vec<SegmentNumber>,
        read: impl Fn(&mut SegmentReader) -> io::Result<Option<OutputSeq>>,
    ) -> Result<Option<OutputSeq>, JournalError> {
        for number in segments {
            let found = self.with_segment(number, &read).map_err(read_error)?;
            if let Some(seq) = found.flatten() {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }

    /// Reads from a segment. Returns `None` if it has no index.
    fn with_segment<T>(
        &self,
        number: SegmentNumber,
        read: impl FnOnce(&mut SegmentReader) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let mut open = self.lock();
        let segment = match open.take().filter(|segment| segment.number() == number) {
            Some(segment) => segment,
            None => match SegmentReader::open(&self.directory, number)? {
                Some(segment) => segment,
                None => return Ok(None),
            },
        };
        read(open.insert(segment)).map(Some)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<SegmentReader>> {
        self.segment.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_error(error: io::Error) -> JournalError {
    JournalError::opening("segment")(error)
}

/// Page that is being built.
#[derive(Debug)]
pub(crate) struct PageBuilder {
    pub(crate) chunks: Vec<TimedChunk>,
    bytes: usize,
    max_bytes: usize,
}

impl PageBuilder {
    fn new(max_bytes: usize) -> Self {
        Self {
            chunks: Vec::new(),
            bytes: 0,
            max_bytes: max_bytes.min(MAX_PAGE_BYTES),
        }
    }

    /// Adds a chunk.
    pub(crate) fn push(&mut self, chunk: TimedChunk) {
        self.bytes += chunk.chunk.data.len();
        self.chunks.push(chunk);
    }

    /// Starts to select chunks that fit.
    pub(crate) fn selection(&self) -> PageSelection {
        PageSelection {
            records: Vec::new(),
            count: self.chunks.len(),
            bytes: self.bytes,
            max_bytes: self.max_bytes,
        }
    }
}

/// Chunks that fit into a page.
#[derive(Debug)]
pub(crate) struct PageSelection {
    pub(crate) records: Vec<IndexRecord>,
    count: usize,
    bytes: usize,
    max_bytes: usize,
}

impl PageSelection {
    /// Selects a chunk. Returns whether it fits.
    pub(crate) fn add(&mut self, record: &IndexRecord) -> bool {
        let bytes = self.bytes + record.len();
        let fits = bytes <= self.max_bytes && self.count < MAX_PAGE_CHUNKS;
        if !fits && self.count > 0 {
            return false;
        }
        self.count += 1;
        self.bytes = bytes;
        self.records.push(*record);
        true
    }
}
