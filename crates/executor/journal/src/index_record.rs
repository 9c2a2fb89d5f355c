//! Records of a segment's index: position and checksum of each chunk of output.

use exec_wire::{id::OutputSeq, limits::OUTPUT_CHUNK_BYTES, process::OutputStream};

/// First bytes of an index: magic and format version.
pub(crate) const INDEX_HEADER: [u8; 16] = *b"exec-index\0\0\0\0\0\x01";
/// Length of a record.
pub(crate) const RECORD_BYTES: usize = 40;
/// Maximum offset, far above the size of a segment. Sums of a few cannot overflow.
const MAX_OFFSET: u64 = 1 << 32;
/// Streams in the order of their numbers.
pub(crate) const STREAMS: [OutputStream; 3] = [
    OutputStream::Stdout,
    OutputStream::Stderr,
    OutputStream::Pty,
];

/// One chunk of output in a segment.
///
/// On disk, little-endian: sequence number (8 bytes), time (8), offset (8), length (4), stream (1),
/// zeros (3), checksum of the data (4), checksum of the bytes before (4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct IndexRecord {
    pub(crate) seq: OutputSeq,
    /// Milliseconds since the Unix epoch.
    pub(crate) time_ms: u64,
    /// Place in the data file of the stream.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) stream: OutputStream,
    /// CRC-32 of the data.
    pub(crate) checksum: u32,
}

impl IndexRecord {
    /// Encodes the record.
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.seq.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.time_ms.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_le_bytes());
        bytes[28] = self.stream as u8;
        bytes[32..36].copy_from_slice(&self.checksum.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..36]);
        bytes[36..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a record. Returns `None` for a damaged one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let checksum = u32::from_le_bytes(bytes.get(36..RECORD_BYTES)?.try_into().ok()?);
        if crc32fast::hash(&bytes[..36]) != checksum {
            return None;
        }
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let record = Self {
            seq: OutputSeq(long(0)?),
            time_ms: long(8)?,
            offset: long(16)?,
            length: short(24)?,
            stream: *STREAMS.get(usize::from(bytes[28]))?,
            checksum: short(32)?,
        };
        record.is_plausible().then_some(record)
    }

    /// Returns the end of the data in its file.
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    /// Returns the length of the data.
    pub(crate) fn len(&self) -> usize {
        self.length as usize
    }

    /// Returns whether `data` is what the record describes.
    pub(crate) fn matches(&self, data: &[u8]) -> bool {
        data.len() == self.len() && crc32fast::hash(data) == self.checksum
    }

    /// A checksum does not protect from a record that another program wrote.
    fn is_plausible(&self) -> bool {
        (1..u64::MAX).contains(&self.seq.0)
            && (1..=OUTPUT_CHUNK_BYTES).contains(&self.len())
            && self.offset <= MAX_OFFSET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> IndexRecord {
        IndexRecord {
            seq: OutputSeq(7),
            time_ms: 1_700_000_000_000,
            offset: 1 << 31,
            length: 65_536,
            stream: OutputStream::Pty,
            checksum: 0x1234_5678,
        }
    }

    #[test]
    fn record_round_trips() {
        assert_eq!(IndexRecord::decode(&record().encode()), Some(record()));
    }

    #[test]
    fn record_with_a_flipped_bit_is_damaged() {
        let bytes = record().encode();
        for bit in 0..RECORD_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(IndexRecord::decode(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn zeros_and_short_records_are_damaged() {
        assert_eq!(IndexRecord::decode(&[0; RECORD_BYTES]), None);
        assert_eq!(IndexRecord::decode(&record().encode()[..39]), None);
        assert_eq!(IndexRecord::decode(&[]), None);
    }

    #[test]
    fn record_outside_of_the_limits_is_refused() {
        let cases = [
            IndexRecord {
                seq: OutputSeq(0),
                ..record()
            },
            IndexRecord {
                length: 0,
                ..record()
            },
            IndexRecord {
                length: 65_537,
                ..record()
            },
            IndexRecord {
                offset: (1 << 32) + 1,
                ..record()
            },
        ];
        for case in cases {
            assert_eq!(IndexRecord::decode(&case.encode()), None, "{case:?}");
        }
    }
}
