//! The file `heads` of a process: the first bytes of each stream with evicted segments.
//!
//! Invariant: the saved head of a stream begins with its first byte and has no gap.

use std::{io, os::fd::OwnedFd, sync::Arc};

use exec_wire::id::OutputSeq;

use crate::{
    event_summary::EvictedRange,
    frame_scanner::{FrameScanner, append_frame},
    index_record::STREAMS,
    limits::HEAD_BYTES,
    private_file::{OpenMode, PrivateFile},
    segment::SegmentNumber,
    segment_reader::SegmentReader,
};

const HEADS_FILE: &str = "heads";
/// Stream, position in the stream, last sequence number.
const PREFIX_BYTES: usize = 17;
/// Maximum file. A head can be there twice if a server was killed during an eviction.
const MAX_HEADS_BYTES: u64 = 8 << 20;

/// First bytes of a stream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeadBytes {
    /// The bytes.
    pub data: Vec<u8>,
    /// Last chunk that is contained completely, or not retained any more.
    pub last: OutputSeq,
    /// Retained chunk that is contained in part, and the number of its bytes that are.
    pub split: Option<(OutputSeq, usize)>,
}

/// Heads of the streams as far as their segments were evicted.
#[derive(Debug, Default)]
pub(crate) struct SavedHeads {
    pub(crate) streams: [HeadBytes; 3],
    end: u64,
}

impl SavedHeads {
    /// Reads the file of a record.
    pub(crate) fn load(directory: &OwnedFd) -> io::Result<Self> {
        match PrivateFile::open_existing(directory, HEADS_FILE, OpenMode::Read)? {
            Some(file) => Self::read(&file),
            None => Ok(Self::default()),
        }
    }

    /// Adds the heads of a segment that is about to be evicted. `evicted` is the range
    /// that was evicted before.
    pub(crate) fn save(
        directory: &Arc<OwnedFd>,
        number: SegmentNumber,
        evicted: &EvictedRange,
    ) -> io::Result<()> {
        if evicted
            .bytes
            .iter()
            .all(|bytes| *bytes >= HEAD_BYTES as u64)
        {
            return Ok(());
        }
        let Some(mut segment) = SegmentReader::open(directory, number)? else {
            return Ok(());
        };
        let mut saved = None;
        let mut frames = Vec::new();
        for stream in STREAMS {
            let position = evicted.bytes[stream as usize];
            let missing = (HEAD_BYTES as u64).saturating_sub(position);
            let missing = usize::try_from(missing).unwrap_or_default();
            let mut part = HeadBytes::default();
            if missing > 0 {
                segment.read_head(stream, missing, &mut part)?;
            }
            let saved = match &saved {
                Some(saved) => saved,
                None => saved.insert(Self::load(directory)?),
            };
            if part.data.is_empty() || saved.streams[stream as usize].data.len() as u64 != position
            {
                continue;
            }
            let last = part.split.map_or(part.last, |(seq, _)| seq);
            let mut payload = Vec::with_capacity(PREFIX_BYTES + part.data.len());
            payload.push(stream as u8);
            payload.extend_from_slice(&position.to_le_bytes());
            payload.extend_from_slice(&last.0.to_le_bytes());
            payload.extend_from_slice(&part.data);
            append_frame(&mut frames, &payload);
        }
        match saved {
            Some(saved) if !frames.is_empty() => {
                let file = PrivateFile::open(directory, HEADS_FILE, OpenMode::Create)?;
                file.truncate(saved.end)?;
                file.write_at(&frames, saved.end)
            }
            _ => Ok(()),
        }
    }

    fn read(file: &PrivateFile) -> io::Result<Self> {
        let mut heads = Self::default();
        let max_payload = PREFIX_BYTES + HEAD_BYTES;
        let mut scanner = FrameScanner::new(file, max_payload, MAX_HEADS_BYTES);
        while let Some(payload) = scanner.next_frame()? {
            heads.add(payload);
        }
        heads.end = scanner.valid_end();
        Ok(heads)
    }

    /// Adds a part if it continues the saved head.
    fn add(&mut self, payload: &[u8]) {
        let Some((prefix, data)) = payload.split_at_checked(PREFIX_BYTES) else {
            return;
        };
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let (position, last) = (number(&prefix[1..9]), number(&prefix[9..17]));
        let Some(head) = self.streams.get_mut(usize::from(prefix[0])) else {
            return;
        };
        if head.data.len() as u64 == position && head.data.len() + data.len() <= HEAD_BYTES {
            head.data.extend_from_slice(data);
            head.last = head.last.max(OutputSeq(last));
        }
    }
}

impl HeadBytes {
    /// Adds a chunk as far as it fits. Returns whether more would fit.
    pub(crate) fn push(&mut self, seq: OutputSeq, data: &[u8], limit: usize) -> bool {
        let room = limit.saturating_sub(self.data.len());
        if room < data.len() {
            if room > 0 {
                self.split = Some((seq, room));
                self.data.extend_from_slice(&data[..room]);
            }
            return false;
        }
        self.data.extend_from_slice(data);
        self.last = seq;
        self.data.len() < limit
    }
}
