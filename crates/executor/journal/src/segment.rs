//! Segments of a journal on disk: their files, and what their index holds.

use std::{collections::BTreeSet, io, os::fd::OwnedFd};

use exec_wire::{id::OutputSeq, process::OutputStream};
use rustix::fs::Dir;

use crate::{
    index_record::{INDEX_HEADER, IndexRecord, RECORD_BYTES, STREAMS},
    journal_event::stream_name,
    limits::MAX_RECORD_FILES,
    private_file::{OpenMode, PrivateFile},
};

/// Records that one read of an index returns.
pub(crate) const BLOCK_RECORDS: u64 = 256;
const INDEX_SUFFIX: &str = "index";

/// Number of a segment. Later output is in a segment with a larger number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct SegmentNumber(pub(crate) u64);

impl SegmentNumber {
    /// Returns the name of the index.
    pub(crate) fn index_name(self) -> String {
        format!("{}.{INDEX_SUFFIX}", self.0)
    }

    /// Returns the name of a data file.
    pub(crate) fn data_name(self, stream: OutputStream) -> String {
        format!("{}.{}", self.0, stream_name(stream))
    }

    /// Returns the following number.
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the segment that a file belongs to.
    fn of_file(name: &[u8]) -> Option<Self> {
        let (number, suffix) = std::str::from_utf8(name).ok()?.split_once('.')?;
        let is_suffix =
            suffix == INDEX_SUFFIX || STREAMS.iter().any(|stream| stream_name(*stream) == suffix);
        let parsed: u64 = number.parse().ok()?;
        (is_suffix && parsed < u64::MAX && parsed.to_string() == number).then_some(Self(parsed))
    }

    /// Returns the segments in the directory of a record, in order.
    pub(crate) fn list(directory: &OwnedFd) -> io::Result<Vec<Self>> {
        let mut numbers = BTreeSet::new();
        for entry in Dir::read_from(directory)?.take(MAX_RECORD_FILES) {
            numbers.extend(Self::of_file(entry?.file_name().to_bytes()));
        }
        Ok(numbers.into_iter().collect())
    }
}

/// Index of a segment, open for reading. It may have a writer.
#[derive(Debug)]
pub(crate) struct SegmentIndex {
    file: PrivateFile,
    /// The header was read and is valid.
    is_index: bool,
}

impl SegmentIndex {
    /// Opens the index of a segment, or returns `None` if it does not exist.
    pub(crate) fn open(directory: &OwnedFd, number: SegmentNumber) -> io::Result<Option<Self>> {
        let name = number.index_name();
        let file = PrivateFile::open_existing(directory, &name, OpenMode::Read)?;
        Ok(file.map(|file| Self {
            file,
            is_index: false,
        }))
    }

    /// Returns the number of whole records, valid or not. An index with another header has none.
    pub(crate) fn record_count(&mut self) -> io::Result<u64> {
        let header = INDEX_HEADER.len();
        if !self.is_index {
            self.is_index = self.file.read_at(0, header)? == INDEX_HEADER;
        }
        let len = self.file.len()?;
        let records = len.saturating_sub(header as u64) / RECORD_BYTES as u64;
        Ok(if self.is_index { records } else { 0 })
    }

    /// Returns a record, or `None` if it is damaged or behind the end.
    pub(crate) fn record(&self, number: u64) -> io::Result<Option<IndexRecord>> {
        Ok(self.block(number, 1)?.pop().flatten())
    }

    /// Returns up to `count` records from number `start`; `None` for a damaged one.
    pub(crate) fn block(&self, start: u64, count: u64) -> io::Result<Vec<Option<IndexRecord>>> {
        let count = usize::try_from(count.min(BLOCK_RECORDS)).unwrap_or_default();
        let offset = start.saturating_mul(RECORD_BYTES as u64);
        let offset = offset.saturating_add(INDEX_HEADER.len() as u64);
        let bytes = self.file.read_at(offset, count * RECORD_BYTES)?;
        Ok(bytes
            .chunks_exact(RECORD_BYTES)
            .map(IndexRecord::decode)
            .collect())
    }

    /// Returns the number of the first of `count` records after `after`.
    pub(crate) fn first_after(&self, after: OutputSeq, count: u64) -> io::Result<u64> {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.record(middle)? {
                Some(record) if record.seq <= after => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Returns the last valid one of `count` records.
    pub(crate) fn last_valid(&self, count: u64) -> io::Result<Option<IndexRecord>> {
        let mut end = count;
        while end > 0 {
            let start = end.saturating_sub(BLOCK_RECORDS);
            let block = self.block(start, end - start)?;
            if let Some(record) = block.into_iter().flatten().next_back() {
                return Ok(Some(record));
            }
            end = start;
        }
        Ok(None)
    }
}

/// How an index ends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum IndexEnd {
    /// With a whole record.
    #[default]
    Whole,
    /// With a part of a record, or one damaged record: its write was interrupted.
    Torn,
    /// More than one record follows the first damaged one.
    Damaged,
}

/// What the index of a segment holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct IndexScan {
    /// Valid records from the start.
    pub(crate) records: u64,
    pub(crate) first: Option<OutputSeq>,
    pub(crate) last: Option<OutputSeq>,
    /// End of the indexed data of each stream.
    pub(crate) data_ends: [u64; 3],
    pub(crate) end: IndexEnd,
    /// Highest sequence number of the segment, behind damaged records, too.
    pub(crate) highest: OutputSeq,
    /// Length of the file.
    pub(crate) file_len: u64,
}

impl IndexScan {
    /// Reads all records.
    pub(crate) fn run(index: &mut SegmentIndex) -> io::Result<Self> {
        let count = index.record_count()?;
        let file_len = index.file.len()?;
        let mut scan = Self {
            file_len,
            ..Self::default()
        };
        // Without a valid header, look for the highest sequence number only.
        let mut is_valid = index.is_index;
        let mut start = 0;
        loop {
            let block = index.block(start, BLOCK_RECORDS)?;
            if block.is_empty() {
                break;
            }
            start += block.len() as u64;
            for record in block {
                is_valid = is_valid && record.is_some_and(|record| scan.follows(&record));
                match record {
                    Some(record) if is_valid => scan.add(&record),
                    Some(record) => scan.highest = scan.highest.max(record.seq),
                    None => {}
                }
            }
        }
        let header = INDEX_HEADER.len() as u64;
        let valid_end = header + scan.records * RECORD_BYTES as u64;
        let rest = file_len.saturating_sub(valid_end);
        scan.end = if rest == 0 && (count > 0 || index.is_index || file_len == 0) {
            IndexEnd::Whole
        } else if rest <= RECORD_BYTES as u64 && (index.is_index || file_len < header) {
            IndexEnd::Torn
        } else {
            IndexEnd::Damaged
        };
        Ok(scan)
    }

    /// Reads the first and the last record of a segment that has no writer. Reads all records if
    /// one of the two is damaged.
    pub(crate) fn run_quick(index: &mut SegmentIndex) -> io::Result<Self> {
        let records = index.record_count()?;
        let file_len = index.file.len()?;
        let ends = (index.record(0)?, index.record(records.saturating_sub(1))?);
        let valid_end = INDEX_HEADER.len() as u64 + records * RECORD_BYTES as u64;
        let (Some(first), Some(last), true) = (ends.0, ends.1, valid_end == file_len) else {
            return Self::run(index);
        };
        Ok(Self {
            records,
            first: Some(first.seq),
            last: Some(last.seq),
            highest: last.seq,
            file_len,
            ..Self::default()
        })
    }

    /// Returns the length of the index up to its last valid record.
    pub(crate) fn valid_len(&self) -> u64 {
        if self.records == 0 {
            return 0;
        }
        INDEX_HEADER.len() as u64 + self.records * RECORD_BYTES as u64
    }

    fn follows(&self, record: &IndexRecord) -> bool {
        self.last.is_none_or(|last| record.seq > last)
            && record.offset >= self.data_ends[record.stream as usize]
    }

    fn add(&mut self, record: &IndexRecord) {
        self.records += 1;
        self.first.get_or_insert(record.seq);
        self.last = Some(record.seq);
        self.highest = record.seq;
        self.data_ends[record.stream as usize] = record.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_segments_have_a_number() {
        let number = |name: &str| SegmentNumber::of_file(name.as_bytes()).map(|number| number.0);
        assert_eq!(number("0.index"), Some(0));
        assert_eq!(number("12.stdout"), Some(12));
        assert_eq!(number("12.terminal"), Some(12));
        for name in [
            "",
            ".",
            "head.json",
            "1.",
            ".index",
            "01.index",
            "+1.index",
            "1.index.new",
        ] {
            assert_eq!(number(name), None, "{name}");
        }
        assert_eq!(number(&format!("{}.index", u64::MAX)), None);
    }
}
