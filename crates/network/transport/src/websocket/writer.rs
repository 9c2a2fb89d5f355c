//! Encodes session messages into frames.

use std::{
    fmt, io,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use exec_wire::{
    base64_bytes::encode_append,
    limits,
    outgoing_message::{DataMessage, OutgoingMessage},
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::{
    FrameHeader, FrameOpcode, TextFraming, apply_mask,
    frame_output::{FrameOutput, mask},
};
use crate::link::{DataEncoding, LinkRole, MessageWriter};

pub(super) struct FrameWriter {
    output: FrameOutput,
    /// Frame type of texts.
    text: FrameOpcode,
    pings: Option<Interval>,
}

impl fmt::Debug for FrameWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("buffered", &self.output.buffered())
            .finish_non_exhaustive()
    }
}

impl FrameWriter {
    pub(super) fn new(output: FrameOutput) -> Self {
        let pings = (output.role == LinkRole::Server).then(|| {
            let first = Instant::now() + limits::PING_INTERVAL;
            let mut pings = interval_at(first, limits::PING_INTERVAL);
            pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
            pings
        });
        Self {
            output,
            text: FrameOpcode::Text,
            pings,
        }
    }

    /// Sets the frame type of texts.
    pub(super) fn with_text_framing(mut self, sends: TextFraming) -> Self {
        self.text = match sends {
            TextFraming::Text => FrameOpcode::Text,
            TextFraming::Binary => FrameOpcode::Binary,
        };
        self
    }

    fn push_text(&mut self, message: &OutgoingMessage) {
        let length = message.text_len();
        if length > limits::OUTGOING_FRAME_BYTES {
            let mut text = Vec::with_capacity(length);
            message.encode_text(&mut text);
            self.push_fragments(&text.into());
            return;
        }
        self.output
            .push_frame(self.text, length, |out| message.encode_text(out));
    }

    /// Queues a text that is too long for one frame.
    fn push_fragments(&mut self, message: &Bytes) {
        let pieces = message.len().div_ceil(limits::OUTGOING_FRAME_BYTES);
        for (index, start) in (0..message.len())
            .step_by(limits::OUTGOING_FRAME_BYTES)
            .enumerate()
        {
            let end = (start + limits::OUTGOING_FRAME_BYTES).min(message.len());
            let opcode = if index == 0 {
                self.text
            } else {
                FrameOpcode::Continuation
            };
            self.output
                .push_payload(opcode, index + 1 == pieces, message.slice(start..end));
        }
    }

    /// Queues raw data after its header. It is copied only if it must be masked.
    fn push_binary(&mut self, message: &DataMessage) {
        let mut head = Vec::with_capacity(message.binary_head_len());
        let data = message.encode_binary(&mut head);
        if self.output.role == LinkRole::Client {
            // Small: large data goes through `LargeMessage`.
            head.extend_from_slice(&data);
            self.output
                .push_payload(FrameOpcode::Binary, true, head.into());
            return;
        }
        let available = limits::OUTGOING_FRAME_BYTES.saturating_sub(head.len());
        let first = data.len().min(available);
        let start = self.output.frame_start();
        self.output
            .frame(FrameOpcode::Binary, first == data.len(), head.len() + first);
        self.output.encoded.extend_from_slice(&head);
        self.output.push_encoded(start);
        self.output.push_shared(data.slice(..first));
        for start in (first..data.len()).step_by(limits::OUTGOING_FRAME_BYTES) {
            let end = (start + limits::OUTGOING_FRAME_BYTES).min(data.len());
            self.output.push_payload(
                FrameOpcode::Continuation,
                end == data.len(),
                data.slice(start..end),
            );
        }
    }
}

impl MessageWriter for FrameWriter {
    fn push(&mut self, message: OutgoingMessage, encoding: DataEncoding) {
        if self.output.is_closed() {
            // Nothing may follow a close frame.
            return;
        }
        let must_mask = (self.output.role == LinkRole::Client).then_some(mask as fn() -> [u8; 4]);
        match (message, encoding) {
            (OutgoingMessage::Data(message), DataEncoding::Binary)
                if self.output.role == LinkRole::Server =>
            {
                self.push_binary(&message);
            }
            (OutgoingMessage::Data(message), encoding) => {
                match (LargeMessage::new(message, encoding, must_mask), encoding) {
                    (Ok(large), _) => self.output.push_large_message(large),
                    (Err(message), DataEncoding::Binary) => self.push_binary(&message),
                    (Err(message), DataEncoding::Text) => {
                        self.push_text(&OutgoingMessage::Data(message))
                    }
                }
            }
            (message @ OutgoingMessage::Text(_), _) => self.push_text(&message),
        }
    }

    fn buffered(&self) -> usize {
        self.output.buffered()
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.push_pending_control();
        self.output.poll_flush(cx, limits::SEND_BUFFER_BYTES)
    }

    fn poll_keepalive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.output.control.waker.register(cx.waker());
        if let Some(pings) = &mut self.pings
            && pings.poll_tick(cx).is_ready()
        {
            self.output.push_control(FrameOpcode::Ping, &[]);
        }
        self.output.push_pending_control();
        if self.output.buffered() > 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.poll_close(cx)
    }
}

/// Raw bytes encoded at a time: a multiple of three, so that base64 needs no padding between
/// blocks, and small enough that the text is still cached when it is written.
const BLOCK_BYTES: usize = 192 << 10;
/// Blocks per frame.
const FRAME_BLOCKS: usize = limits::OUTGOING_FRAME_BYTES / (BLOCK_BYTES / 3 * 4) - 1;

/// A message with much data, encoded block by block while the socket accepts it. At most one block
/// exists in encoded form.
pub(super) struct LargeMessage {
    encoding: DataEncoding,
    /// Bytes before the data; sent with the first block.
    prefix: Vec<u8>,
    data: Bytes,
    /// Bytes after the data.
    suffix: Vec<u8>,
    /// Creates the mask of a frame, for the masking side.
    mask: Option<fn() -> [u8; 4]>,
    opcode: FrameOpcode,
    frame: Option<PartialFrame>,
}

/// The frame in progress.
struct PartialFrame {
    blocks: usize,
    mask: Option<[u8; 4]>,
}

impl LargeMessage {
    /// Takes over a message if its data exceeds one block.
    pub(super) fn new(
        message: DataMessage,
        encoding: DataEncoding,
        mask: Option<fn() -> [u8; 4]>,
    ) -> Result<Self, DataMessage> {
        if message.data_len() <= BLOCK_BYTES {
            return Err(message);
        }
        let (opcode, (prefix, data, suffix)) = match encoding {
            DataEncoding::Text => (FrameOpcode::Text, message.into_text_parts()),
            DataEncoding::Binary => (FrameOpcode::Binary, message.into_binary_parts()),
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

    /// Returns the approximate number of remaining bytes.
    pub(super) fn len(&self) -> usize {
        self.data.len()
    }

    /// Appends the next block and returns whether more follow.
    pub(super) fn encode_block(&mut self, out: &mut Vec<u8>) -> bool {
        let mut frame = match self.frame.take() {
            Some(frame) => frame,
            None => self.begin_frame(out),
        };
        let start = out.len();
        out.append(&mut self.prefix);
        let block = self.data.split_to(self.data.len().min(BLOCK_BYTES));
        match self.encoding {
            DataEncoding::Text => encode_append(&block, out),
            DataEncoding::Binary => out.extend_from_slice(&block),
        }
        let more = self.data.has_remaining();
        if !more {
            out.append(&mut self.suffix);
        }
        if let Some(mask) = &mut frame.mask {
            apply_mask(*mask, &mut out[start..]);
            // The mask of the next block continues where this one ends.
            mask.rotate_left((out.len() - start) % 4);
        }
        frame.blocks -= 1;
        if frame.blocks > 0 {
            self.frame = Some(frame);
        }
        more
    }

    fn begin_frame(&mut self, out: &mut Vec<u8>) -> PartialFrame {
        let blocks = self.data.len().div_ceil(BLOCK_BYTES).clamp(1, FRAME_BLOCKS);
        let raw = self.data.len().min(blocks * BLOCK_BYTES);
        let fin = raw == self.data.len();
        let text = match self.encoding {
            DataEncoding::Text => raw.div_ceil(3) * 4,
            DataEncoding::Binary => raw,
        };
        let length = self.prefix.len() + text + if fin { self.suffix.len() } else { 0 };
        let mask = self.mask.map(|mask| mask());
        let header = FrameHeader {
            fin,
            opcode: self.opcode,
            mask,
            length: length as u64,
        };
        header.encode(out);
        self.opcode = FrameOpcode::Continuation;
        PartialFrame { blocks, mask }
    }
}
