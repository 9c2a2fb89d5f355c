//! Reads the chunks of one segment, which may have a writer.
//!
//! Invariant: bytes are returned only if their checksum is right. A damaged chunk is skipped, and
//! so is a gap to the reader.

use std::{io, os::fd::OwnedFd, sync::Arc};

use bytes::Bytes;
use exec_core::output_log::OutputChunk;
use exec_wire::{id::OutputSeq, process::OutputStream};

use crate::{
    index_record::{IndexRecord, STREAMS},
    journal_reader::{PageBuilder, TimedChunk},
    private_file::{OpenMode, PrivateFile},
    saved_heads::HeadBytes,
    segment::{BLOCK_RECORDS, SegmentIndex, SegmentNumber},
};

/// Segment that is open for reading.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    directory: Arc<OwnedFd>,
    number: SegmentNumber,
    index: SegmentIndex,
    data: [Option<PrivateFile>; 3],
}

impl SegmentReader {
    /// Opens a segment. Returns `None` if it has no index: it has no chunks, or was evicted.
    pub(crate) fn open(
        directory: &Arc<OwnedFd>,
        number: SegmentNumber,
    ) -> io::Result<Option<Self>> {
        let index = SegmentIndex::open(directory, number)?;
        let directory = directory.clone();
        Ok(index.map(|index| Self {
            directory,
            number,
            index,
            data: [const { None }; 3],
        }))
    }

    /// Returns the number.
    pub(crate) fn number(&self) -> SegmentNumber {
        self.number
    }

    /// Returns the first sequence number.
    pub(crate) fn first(&mut self) -> io::Result<Option<OutputSeq>> {
        if self.index.record_count()? == 0 {
            return Ok(None);
        }
        Ok(self.index.record(0)?.map(|record| record.seq))
    }

    /// Returns the last sequence number.
    pub(crate) fn last(&mut self) -> io::Result<Option<OutputSeq>> {
        let count = self.index.record_count()?;
        Ok(self.index.last_valid(count)?.map(|record| record.seq))
    }

    /// Adds chunks after `after` to a page. Returns whether the page takes more.
    pub(crate) fn fill(&mut self, after: OutputSeq, page: &mut PageBuilder) -> io::Result<bool> {
        let count = self.readable()?;
        let mut next = self.index.first_after(after, count)?;
        let mut seen = after;
        while next < count {
            let block = self.index.block(next, (count - next).min(BLOCK_RECORDS))?;
            let mut selected = page.selection();
            let mut taken = 0;
            for record in &block {
                match record {
                    Some(record) if record.seq > seen => {
                        if !selected.add(record) {
                            break;
                        }
                        seen = record.seq;
                    }
                    _ => {}
                }
                taken += 1;
            }
            let is_full = taken < block.len() as u64;
            for chunk in self.read_chunks(&selected.records)? {
                page.push(chunk);
            }
            next += taken;
            // A page that dropped damaged chunks has room again.
            if block.is_empty() || is_full && !page.chunks.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Appends the first bytes of a stream to `head`, until it has `limit`. Ends at the first
    /// damaged chunk. Returns whether more would fit.
    pub(crate) fn read_head(
        &mut self,
        stream: OutputStream,
        limit: usize,
        head: &mut HeadBytes,
    ) -> io::Result<bool> {
        let count = self.readable()?;
        let mut expected = 0;
        let mut start = 0;
        while start < count {
            let block = self.index.block(start, count - start)?;
            start += (block.len() as u64).max(1);
            for record in block {
                let Some(record) = record else {
                    return Ok(false);
                };
                if record.stream != stream {
                    continue;
                }
                let data = self.read_chunk(&record)?;
                let Some(data) = data.filter(|_| record.offset == expected) else {
                    return Ok(false);
                };
                expected = record.end();
                if !head.push(record.seq, &data, limit) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Prepends the last bytes of a stream to `parts`, last part first, until there are `limit`.
    /// Returns the bytes that are still missing, 0 at a damaged chunk.
    pub(crate) fn read_tail(
        &mut self,
        stream: OutputStream,
        limit: usize,
        parts: &mut Vec<Vec<u8>>,
    ) -> io::Result<usize> {
        let mut missing = limit;
        let mut end = self.readable()?;
        while end > 0 {
            let start = end.saturating_sub(BLOCK_RECORDS);
            let block = self.index.block(start, end - start)?;
            end = start;
            for record in block.into_iter().rev() {
                let Some(record) = record else {
                    return Ok(0);
                };
                if record.stream != stream {
                    continue;
                }
                let Some(mut data) = self.read_chunk(&record)? else {
                    return Ok(0);
                };
                data.drain(..data.len().saturating_sub(missing));
                missing -= data.len();
                parts.push(data);
                if missing == 0 {
                    return Ok(0);
                }
            }
        }
        Ok(missing)
    }

    /// Returns the number of records. Their data files are open, because the writer creates them
    /// before the records, and they are opened after the records were counted.
    fn readable(&mut self) -> io::Result<u64> {
        let count = self.index.record_count()?;
        for stream in STREAMS {
            let file = &mut self.data[stream as usize];
            if file.is_none() {
                let name = self.number.data_name(stream);
                *file = PrivateFile::open_existing(&self.directory, &name, OpenMode::Read)?;
            }
        }
        Ok(count)
    }

    /// Reads the valid ones of some chunks.
    fn read_chunks(&self, records: &[IndexRecord]) -> io::Result<Vec<TimedChunk>> {
        let mut extents = [const { None }; 3];
        for stream in STREAMS {
            extents[stream as usize] = self.read_extent(stream, records)?;
        }
        let mut chunks = Vec::with_capacity(records.len());
        for record in records {
            let data = match &extents[record.stream as usize] {
                Some((start, bytes)) => slice(bytes, *start, record),
                None => self.read_chunk(record)?.map(Bytes::from),
            };
            if let Some(data) = data.filter(|data| record.matches(data)) {
                let chunk = OutputChunk {
                    seq: record.seq,
                    stream: record.stream,
                    data,
                };
                chunks.push(TimedChunk {
                    chunk,
                    time_ms: record.time_ms,
                });
            }
        }
        Ok(chunks)
    }

    /// Reads all bytes of a stream in one call, if they are adjacent.
    fn read_extent(
        &self,
        stream: OutputStream,
        records: &[IndexRecord],
    ) -> io::Result<Option<(u64, Bytes)>> {
        let mut own = records.iter().filter(|record| record.stream == stream);
        let (Some(first), Some(file)) = (own.next(), &self.data[stream as usize]) else {
            return Ok(None);
        };
        let mut end = first.end();
        for record in own {
            if record.offset != end {
                return Ok(None);
            }
            end = record.end();
        }
        let end = end.min(file.len()?);
        let length = usize::try_from(end.saturating_sub(first.offset)).unwrap_or_default();
        let bytes = file.read_at(first.offset, length)?;
        Ok(Some((first.offset, bytes.into())))
    }

    /// Reads a chunk. Returns `None` if it is damaged.
    fn read_chunk(&self, record: &IndexRecord) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = &self.data[record.stream as usize] else {
            return Ok(None);
        };
        let data = file.read_at(record.offset, record.len())?;
        Ok(record.matches(&data).then_some(data))
    }
}

/// Returns the bytes of a record in an extent that begins at `start`.
fn slice(extent: &Bytes, start: u64, record: &IndexRecord) -> Option<Bytes> {
    let from = usize::try_from(record.offset.checked_sub(start)?).ok()?;
    let to = from.checked_add(record.len())?;
    (to <= extent.len()).then(|| extent.slice(from..to))
}
