//! Opens the journal of a process that was written by another server.
//!
//! Invariant: `recover` repairs what an interrupted write can leave behind and loses no byte;
//! `inspect` writes nothing. Damage in the middle of an index is left as a gap.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use exec_wire::id::OutputSeq;
use rustix::{fs::AtFlags, io::Errno};

use super::{InputState, ProcessJournal};
use crate::{
    event_file::EventFile,
    event_summary::EvictedRange,
    index_record::STREAMS,
    input_file::InputFile,
    journal_error::JournalError,
    journal_head::JournalHead,
    limits::JournalLimits,
    private_file::length,
    record_id::RecordId,
    recovered_process::{RecoveredProcess, SegmentSummary, last_seq},
    segment::{IndexEnd, IndexScan, SegmentIndex, SegmentNumber},
    segment_writer::{FullSegment, SegmentWriter},
};

impl ProcessJournal {
    /// Opens a journal for writing. `input` is the open file description of its input.
    pub(crate) fn recover(
        id: RecordId,
        directory: OwnedFd,
        limits: JournalLimits,
        input: Option<OwnedFd>,
    ) -> Result<(Self, RecoveredProcess), JournalError> {
        let head = JournalHead::load(&directory)?;
        let directory = Arc::new(directory);
        let (events, summary) = EventFile::reopen(directory.clone())?;
        let input = match input {
            Some(input) => {
                let adopted = InputFile::adopt(&directory, input, summary.accepted_input)?;
                InputState::Open(adopted)
            }
            None if InputFile::exists(&directory)? => InputState::PositionLost,
            None => InputState::Unused,
        };
        let damage = JournalError::opening("segment");
        let segments = RecoveredSegments::open(&directory, &summary.evicted).map_err(damage)?;
        let RecoveredSegments {
            full,
            current,
            pending,
            highest,
        } = segments;
        let mut journal = Self {
            id,
            head: head.clone(),
            directory,
            limits,
            events,
            input,
            full,
            current,
            evicted: summary.evicted,
            is_eviction_unrecorded: false,
            pending,
            protected_after: None,
            last_seq: last_seq(&summary, highest),
        };
        let tail = pending_bytes(&journal);
        match summary.closed {
            // Every stream had ended before: these bytes are not output.
            Some(_) => journal.pending.clear(),
            None => journal.commit_tail()?,
        }
        let mut stream_bytes = journal.current.data_len();
        for segment in &journal.full {
            for (total, bytes) in stream_bytes.iter_mut().zip(segment.data_len) {
                *total += bytes;
            }
        }
        for chunk in &journal.pending {
            stream_bytes[chunk.stream as usize] -= u64::from(chunk.length);
        }
        let first = journal.full.iter().find_map(|segment| segment.first);
        let segments = SegmentSummary {
            highest: journal.last_seq,
            first: first.or(journal.current.first()),
            stream_bytes,
            tail_bytes: tail - pending_bytes(&journal),
        };
        let recovered = RecoveredProcess::new(head, summary, segments);
        Ok((journal, recovered))
    }

    /// Reads what a journal says about its process, and changes nothing.
    pub(crate) fn inspect(directory: &OwnedFd) -> Result<RecoveredProcess, JournalError> {
        let head = JournalHead::load(directory)?;
        let events = EventFile::load(directory)?;
        let segments = inspect_segments(directory, &events.evicted);
        let segments = segments.map_err(JournalError::opening("segment"))?;
        Ok(RecoveredProcess::new(head, events, segments))
    }

    /// Commits the output that the previous server left uncommitted. On a full disk the rest stays
    /// pending.
    fn commit_tail(&mut self) -> Result<(), JournalError> {
        while let Some(stream) = self.pending_stream() {
            let written = self.current.written_at_ms(stream);
            let time_ms = written.map_err(JournalError::io("read a data file"))?;
            match self.commit(self.last_seq.next(), time_ms) {
                Ok(_) => {}
                Err(error) if error.is_full() => break,
                // The numbers are used up, which only another program can have done.
                Err(JournalError::NotAscending { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the bytes that are not committed.
fn pending_bytes(journal: &ProcessJournal) -> u64 {
    let pending = journal.pending.iter();
    pending.map(|chunk| u64::from(chunk.length)).sum()
}

/// Segments of a journal that was written by another server.
struct RecoveredSegments {
    full: VecDeque<FullSegment>,
    current: SegmentWriter,
    pending: VecDeque<crate::segment_writer::PendingChunk>,
    highest: OutputSeq,
}

impl RecoveredSegments {
    fn open(directory: &Arc<OwnedFd>, evicted: &EvictedRange) -> io::Result<Self> {
        let mut full = VecDeque::new();
        let mut highest = OutputSeq(0);
        let mut numbers = SegmentNumber::list(directory)?;
        // Their removal was interrupted.
        let is_evicted = |number: &mut SegmentNumber| number.0 < evicted.next_segment;
        for number in numbers.extract_if(.., is_evicted) {
            remove_evicted(directory, number)?;
        }
        let last = numbers.pop();
        for number in numbers {
            let scan = scan(directory, number, ScanDepth::Ends)?;
            highest = highest.max(scan.highest);
            full.push_back(full_segment(directory, number, &scan)?);
        }
        let first_number = SegmentNumber(evicted.next_segment);
        let mut current = SegmentWriter::new(directory.clone(), first_number);
        let mut pending = Vec::new();
        if let Some(number) = last {
            let scan = scan(directory, number, ScanDepth::All)?;
            highest = highest.max(scan.highest);
            if scan.end == IndexEnd::Damaged {
                // Bytes behind the damage had sequence numbers that are lost.
                full.push_back(full_segment(directory, number, &scan)?);
                current = SegmentWriter::new(directory.clone(), number.next());
            } else {
                (current, pending) = SegmentWriter::reopen(directory.clone(), number, &scan)?;
            }
        }
        Ok(Self {
            full,
            current,
            pending: pending.into(),
            highest,
        })
    }
}

fn inspect_segments(directory: &OwnedFd, evicted: &EvictedRange) -> io::Result<SegmentSummary> {
    let mut summary = SegmentSummary::default();
    let mut numbers = SegmentNumber::list(directory)?;
    numbers.retain(|number| number.0 >= evicted.next_segment);
    let last = numbers.last().copied();
    for number in numbers {
        let depth = if Some(number) == last {
            ScanDepth::All
        } else {
            ScanDepth::Ends
        };
        let scan = scan(directory, number, depth)?;
        summary.highest = summary.highest.max(scan.highest);
        summary.first = summary.first.or(scan.first);
        let bytes = match depth {
            // What follows is not visible.
            ScanDepth::All => scan.data_ends,
            ScanDepth::Ends => full_segment(directory, number, &scan)?.data_len,
        };
        for (total, bytes) in summary.stream_bytes.iter_mut().zip(bytes) {
            *total = total.saturating_add(bytes);
        }
    }
    Ok(summary)
}

/// How much of an index is read.
#[derive(Clone, Copy, Debug)]
enum ScanDepth {
    All,
    Ends,
}

fn scan(directory: &OwnedFd, number: SegmentNumber, depth: ScanDepth) -> io::Result<IndexScan> {
    match (SegmentIndex::open(directory, number)?, depth) {
        (Some(mut index), ScanDepth::All) => IndexScan::run(&mut index),
        (Some(mut index), ScanDepth::Ends) => IndexScan::run_quick(&mut index),
        (None, _) => Ok(IndexScan::default()),
    }
}

fn full_segment(
    directory: &OwnedFd,
    number: SegmentNumber,
    scan: &IndexScan,
) -> io::Result<FullSegment> {
    let mut data_len = [0; 3];
    for stream in STREAMS {
        let name = number.data_name(stream);
        match rustix::fs::statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => data_len[stream as usize] = length(&stat),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(FullSegment {
        number,
        first: scan.first,
        last: Some(scan.highest).filter(|seq| seq.0 > 0),
        index_len: scan.file_len,
        data_len,
    })
}

fn remove_evicted(directory: &OwnedFd, number: SegmentNumber) -> io::Result<()> {
    FullSegment {
        number,
        first: None,
        last: None,
        index_len: 0,
        data_len: [0; 3],
    }
    .remove(directory)
}
