//! A message with much data, encoded block by block as the socket takes it: however large it is, no
//! more than one block of it exists in encoded form.

use bytes::{Buf, Bytes};
use exec_wire::{bytes::encode_append, limits, outgoing::DataMessage};

use super::frame::{Header, Opcode, apply_mask};
use crate::link::Encoding;

/// Raw bytes that are encoded at a time: a multiple of three, so that base64 needs no padding
/// between blocks, and little enough that the text is still in the cache when it is written.
const BLOCK_BYTES: usize = 192 << 10;
/// Blocks of one frame.
const FRAME_BLOCKS: usize = limits::OUTGOING_FRAME_BYTES / (BLOCK_BYTES / 3 * 4) - 1;

/// What is left of a message.
pub(super) struct Large {
    encoding: Encoding,
    /// Comes before the data; taken with the first block.
    prefix: Vec<u8>,
    data: Bytes,
    /// Comes after the data.
    suffix: Vec<u8>,
    /// Makes the mask of a frame, for the side that must mask.
    mask: Option<fn() -> [u8; 4]>,
    opcode: Opcode,
    frame: Option<Frame>,
}

/// The frame that is being sent.
struct Frame {
    blocks: usize,
    mask: Option<[u8; 4]>,
}

impl Large {
    /// Takes a message if it is worth it.
    pub(super) fn new(
        message: DataMessage,
        encoding: Encoding,
        mask: Option<fn() -> [u8; 4]>,
    ) -> Result<Self, DataMessage> {
        if message.data_len() <= BLOCK_BYTES {
            return Err(message);
        }
        let (opcode, (prefix, data, suffix)) = match encoding {
            Encoding::Text => (Opcode::Text, message.into_text_parts()),
            Encoding::Binary => (Opcode::Binary, message.into_binary_parts()),
        };
        Ok(Self {
            encoding,
            prefix,
            data,
            suffix,
            mask,
            opcode,
            frame: None,
        })
    }

    /// Returns how many bytes are left, about.
    pub(super) fn len(&self) -> usize {
        self.data.len()
    }

    /// Appends the next block; returns whether there are more.
    pub(super) fn encode_block(&mut self, out: &mut Vec<u8>) -> bool {
        let mut frame = match self.frame.take() {
            Some(frame) => frame,
            None => self.begin_frame(out),
        };
        let start = out.len();
        out.append(&mut self.prefix);
        let block = self.data.split_to(self.data.len().min(BLOCK_BYTES));
        match self.encoding {
            Encoding::Text => encode_append(&block, out),
            Encoding::Binary => out.extend_from_slice(&block),
        }
        let more = self.data.has_remaining();
        if !more {
            out.append(&mut self.suffix);
        }
        if let Some(mask) = &mut frame.mask {
            apply_mask(*mask, &mut out[start..]);
            // The next block goes on where this one ends.
            mask.rotate_left((out.len() - start) % 4);
        }
        frame.blocks -= 1;
        if frame.blocks > 0 {
            self.frame = Some(frame);
        }
        more
    }

    fn begin_frame(&mut self, out: &mut Vec<u8>) -> Frame {
        let blocks = self.data.len().div_ceil(BLOCK_BYTES).clamp(1, FRAME_BLOCKS);
        let raw = self.data.len().min(blocks * BLOCK_BYTES);
        let fin = raw == self.data.len();
        let text = match self.encoding {
            Encoding::Text => raw.div_ceil(3) * 4,
            Encoding::Binary => raw,
        };
        let length = self.prefix.len() + text + if fin { self.suffix.len() } else { 0 };
        let mask = self.mask.map(|mask| mask());
        let header = Header {
            fin,
            opcode: self.opcode,
            mask,
            length: length as u64,
        };
        header.encode(out);
        self.opcode = Opcode::Continuation;
        Frame { blocks, mask }
    }
}
