//! Frames in a file: payloads with length and checksum.
//!
//! Invariant: scanning ends before the first frame that is cut or damaged.

use std::io;

use crate::private_file::PrivateFile;

/// Length and checksum before each payload, little-endian.
pub(crate) const FRAME_HEADER_BYTES: usize = 8;
/// Minimum bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Appends a frame to `out`. A payload must not be empty, because zeros would be a valid frame.
pub(crate) fn append_frame(out: &mut Vec<u8>, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    out.extend_from_slice(payload);
}

/// Reads the frames of a file without holding it in memory.
#[derive(Debug)]
pub(crate) struct FrameScanner<'a> {
    file: &'a PrivateFile,
    max_payload: usize,
    max_end: u64,
    /// Bytes at `offset`.
    buffer: Vec<u8>,
    offset: u64,
    /// Start of the next frame in `buffer`.
    start: usize,
}

impl<'a> FrameScanner<'a> {
    /// Starts at the beginning of `file`. Longer payloads and frames behind `max_end` end the scan.
    pub(crate) fn new(file: &'a PrivateFile, max_payload: usize, max_end: u64) -> Self {
        Self {
            file,
            max_payload,
            max_end,
            buffer: Vec::new(),
            offset: 0,
            start: 0,
        }
    }

    /// Returns the payload of the next frame, or `None` after the last valid one.
    pub(crate) fn next_frame(&mut self) -> io::Result<Option<&[u8]>> {
        let Some(header) = self.bytes(FRAME_HEADER_BYTES)? else {
            return Ok(None);
        };
        let (length, checksum) = header.split_at(4);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        let (length, checksum) = (number(length) as usize, number(checksum));
        if length == 0 || length > self.max_payload {
            return Ok(None);
        }
        let frame_bytes = FRAME_HEADER_BYTES + length;
        let is_valid = match self.bytes(frame_bytes)? {
            Some(frame) => crc32fast::hash(&frame[FRAME_HEADER_BYTES..]) == checksum,
            None => false,
        };
        if !is_valid {
            return Ok(None);
        }
        let payload = self.start + FRAME_HEADER_BYTES..self.start + frame_bytes;
        self.start = payload.end;
        Ok(Some(&self.buffer[payload]))
    }

    /// Returns the end of the last frame that was returned.
    pub(crate) fn valid_end(&self) -> u64 {
        self.offset + self.start as u64
    }

    /// Returns the next `count` bytes, or `None` if the file ends before.
    fn bytes(&mut self, count: usize) -> io::Result<Option<&[u8]>> {
        if self.buffer.len() - self.start < count {
            self.offset += self.start as u64;
            self.buffer.drain(..self.start);
            self.start = 0;
            let end = self.offset + self.buffer.len() as u64;
            let room = usize::try_from(self.max_end.saturating_sub(end)).unwrap_or(usize::MAX);
            let wanted = (count - self.buffer.len()).max(READ_BYTES).min(room);
            if wanted > 0 {
                self.buffer.extend(self.file.read_at(end, wanted)?);
            }
        }
        Ok(self.buffer.get(self.start..self.start + count))
    }
}
