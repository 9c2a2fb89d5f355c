//! Outgoing frames: encoded one after the other and written with as few system calls as possible.
//! Also the control state shared by reader and writer.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use tokio::{io::AsyncWrite, sync::OwnedSemaphorePermit};

use super::{FrameHeader, FrameOpcode, apply_mask, writer::LargeMessage};
use crate::link::LinkRole;

/// Maximum number of slices in one vectored write.
const MAX_SLICES: usize = 64;
/// Written bytes after which the buffer is compacted.
const COMPACT_BYTES: usize = 64 << 10;
/// Buffered bytes above which no pongs are added, so that a peer that pings without reading cannot
/// grow the buffer.
const SLOW_PEER_BYTES: usize = 64 << 10;

pub(super) struct FrameOutput {
    output: Box<dyn AsyncWrite + Send + Unpin>,
    pub(super) role: LinkRole,
    pub(super) control: Arc<SharedControl>,
    /// Encoded frames, one after the other.
    pub(super) encoded: Vec<u8>,
    /// What to write, in order: ranges of `encoded`, shared data, and messages that are not encoded
    /// yet.
    parts: VecDeque<OutputPart>,
    /// The current block of a large message.
    block: Vec<u8>,
    buffered: usize,
    /// Total bytes accepted by the system. Distinguishes a slow peer from a stalled one.
    written: u64,
    closed: bool,
}

enum OutputPart {
    Encoded {
        start: usize,
        end: usize,
    },
    Shared(Bytes),
    /// The rest of `block`, from `start`. Always the first part.
    Block {
        start: usize,
    },
    LargeMessage(LargeMessage),
}

impl fmt::Debug for FrameOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameOutput")
            .field("buffered", &self.buffered)
            .finish_non_exhaustive()
    }
}

impl FrameOutput {
    pub(super) fn new(
        output: Box<dyn AsyncWrite + Send + Unpin>,
        role: LinkRole,
        control: Arc<SharedControl>,
    ) -> Self {
        Self {
            output,
            role,
            control,
            encoded: Vec::new(),
            parts: VecDeque::new(),
            block: Vec::new(),
            buffered: 0,
            written: 0,
            closed: false,
        }
    }

    /// Returns the number of bytes waiting to be written.
    pub(super) fn buffered(&self) -> usize {
        self.buffered
    }

    /// Returns the number of bytes accepted by the system.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the offset of the next frame.
    pub(super) fn frame_start(&mut self) -> usize {
        self.compact();
        self.encoded.len()
    }

    pub(super) fn frame(&mut self, opcode: FrameOpcode, fin: bool, length: usize) -> FrameHeader {
        let mask = (self.role == LinkRole::Client).then(mask);
        let header = FrameHeader {
            fin,
            opcode,
            mask,
            length: length as u64,
        };
        header.encode(&mut self.encoded);
        header
    }

    /// Encodes a frame with a payload of known length.
    pub(super) fn push_frame(
        &mut self,
        opcode: FrameOpcode,
        length: usize,
        payload: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.frame_start();
        let header = self.frame(opcode, true, length);
        let payload_start = self.encoded.len();
        payload(&mut self.encoded);
        debug_assert_eq!(
            self.encoded.len() - payload_start,
            length,
            "declared payload length is wrong"
        );
        if let Some(mask) = header.mask {
            apply_mask(mask, &mut self.encoded[payload_start..]);
        }
        self.push_encoded(start);
    }

    /// Queues a frame. Copies the payload only if it must be masked.
    pub(super) fn push_payload(&mut self, opcode: FrameOpcode, fin: bool, payload: Bytes) {
        let start = self.frame_start();
        let header = self.frame(opcode, fin, payload.len());
        let Some(mask) = header.mask else {
            self.push_encoded(start);
            self.push_shared(payload);
            return;
        };
        let payload_start = self.encoded.len();
        self.encoded.extend_from_slice(&payload);
        apply_mask(mask, &mut self.encoded[payload_start..]);
        self.push_encoded(start);
    }

    pub(super) fn push_large_message(&mut self, large: LargeMessage) {
        self.buffered += large.len();
        self.parts.push_back(OutputPart::LargeMessage(large));
    }

    /// Encodes the next block if a large message is first in the queue.
    fn encode_block(&mut self) {
        let Some(OutputPart::LargeMessage(large)) = self.parts.front_mut() else {
            return;
        };
        self.block.clear();
        self.buffered -= large.len();
        if large.encode_block(&mut self.block) {
            self.buffered += large.len();
        } else {
            self.parts.pop_front();
        }
        self.buffered += self.block.len();
        self.parts.push_front(OutputPart::Block { start: 0 });
    }

    pub(super) fn push_encoded(&mut self, start: usize) {
        let end = self.encoded.len();
        self.buffered += end - start;
        if let Some(OutputPart::Encoded { end: last, .. }) = self.parts.back_mut()
            && *last == start
        {
            *last = end;
            return;
        }
        self.parts.push_back(OutputPart::Encoded { start, end });
    }

    pub(super) fn push_shared(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.buffered += data.len();
            self.parts.push_back(OutputPart::Shared(data));
        }
    }

    pub(super) fn push_control(&mut self, opcode: FrameOpcode, payload: &[u8]) {
        if self.closed {
            return;
        }
        self.push_frame(opcode, payload.len(), |out| out.extend_from_slice(payload));
    }

    /// Encodes pending control frames and returns them.
    pub(super) fn push_pending_control(&mut self) -> PendingControl {
        let reads = match self.buffered > SLOW_PEER_BYTES {
            true => PeerReadRate::Slow,
            false => PeerReadRate::Normal,
        };
        let pending = self.control.take(reads);
        for payload in &pending.pongs {
            self.push_control(FrameOpcode::Pong, payload);
        }
        if let Some(payload) = &pending.close {
            self.push_close_with(payload);
        }
        pending
    }

    /// Encodes the close frame. Only the first one is sent.
    pub(super) fn push_close_with(&mut self, payload: &[u8]) {
        self.push_control(FrameOpcode::Close, payload);
        self.closed = true;
    }

    /// Returns whether the close frame was encoded. Nothing may follow it.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Writes the encoded frames. Keeps up to `keep` bytes of buffer memory.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>, keep: usize) -> Poll<io::Result<()>> {
        while !self.parts.is_empty() {
            self.encode_block();
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let mut used = 0;
            for (slice, part) in slices.iter_mut().zip(&self.parts) {
                *slice = IoSlice::new(match part {
                    OutputPart::Encoded { start, end } => &self.encoded[*start..*end],
                    OutputPart::Shared(data) => data,
                    OutputPart::Block { start } => &self.block[*start..],
                    OutputPart::LargeMessage(_) => break,
                });
                used += 1;
            }
            let output = Pin::new(&mut self.output);
            match ready!(output.poll_write_vectored(cx, &slices[..used]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.advance(count),
            }
        }
        self.encoded.clear();
        self.encoded.shrink_to(keep);
        self.block = Vec::new();
        Pin::new(&mut self.output).poll_flush(cx)
    }

    /// Drops written bytes if they are most of the buffer, so that it stays bounded even if the
    /// peer never drains it.
    fn compact(&mut self) {
        let first = self.parts.iter().find_map(|part| match part {
            OutputPart::Encoded { start, .. } => Some(*start),
            OutputPart::Shared(_) | OutputPart::Block { .. } | OutputPart::LargeMessage(_) => None,
        });
        let written = first.unwrap_or(self.encoded.len());
        if written < COMPACT_BYTES || written * 2 < self.encoded.len() {
            return;
        }
        self.encoded.drain(..written);
        for part in &mut self.parts {
            if let OutputPart::Encoded { start, end } = part {
                *start -= written;
                *end -= written;
            }
        }
    }

    /// Releases the memory of an idle connection.
    pub(super) fn release(&mut self) {
        if self.parts.is_empty() {
            self.encoded = Vec::new();
            self.parts = VecDeque::new();
        }
    }

    /// Flushes and closes the connection. The close frame carries the reason of a failed reader or
    /// of the peer's close.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.push_pending_control();
        self.push_close_with(&[]);
        ready!(self.poll_flush(cx, 0))?;
        Pin::new(&mut self.output).poll_shutdown(cx)
    }

    fn advance(&mut self, mut count: usize) {
        self.buffered -= count;
        self.written += count as u64;
        while count > 0 {
            let Some(part) = self.parts.front_mut() else {
                break;
            };
            let length = match part {
                OutputPart::Encoded { start, end } => *end - *start,
                OutputPart::Shared(data) => data.len(),
                OutputPart::Block { start } => self.block.len() - *start,
                OutputPart::LargeMessage(_) => break,
            };
            if count < length {
                match part {
                    OutputPart::Encoded { start, .. } | OutputPart::Block { start } => {
                        *start += count
                    }
                    OutputPart::Shared(data) => data.advance(count),
                    OutputPart::LargeMessage(_) => {}
                }
                return;
            }
            count -= length;
            self.parts.pop_front();
        }
    }
}

/// Returns a mask for one frame. It protects proxies from attacker-chosen content and is not
/// secret.
pub(super) fn mask() -> [u8; 4] {
    use std::hash::{BuildHasher, RandomState};

    let [a, b, c, d, ..] = RandomState::new().hash_one(0).to_ne_bytes();
    [a, b, c, d]
}

/// Control state shared by reader and writer: frames that the reader queues and the writer sends.
#[derive(Debug, Default)]
pub(super) struct SharedControl {
    pending: Mutex<PendingControl>,
    /// Wakes the writer for pending control frames.
    pub(super) waker: AtomicWaker,
    /// Connection slot of a listener, released when both halves are dropped.
    pub(super) slot: OnceLock<OwnedSemaphorePermit>,
}

/// Maximum number of queued pongs. The RFC allows skipping older pings.
const MAX_PONGS: usize = 64;

/// Control frames to send. Bounded: at most one close and `MAX_PONGS` pongs.
#[derive(Debug, Default)]
pub(super) struct PendingControl {
    pub(super) pongs: VecDeque<Bytes>,
    /// Payload of the close frame: empty, or a status code and a reason.
    pub(super) close: Option<ClosePayload>,
    /// Whether a pong arrived since the last call.
    pub(super) pong_received: bool,
}

/// Payload of a close frame: empty, or a status code and a reason.
pub(super) type ClosePayload = Vec<u8>;

/// Maximum length of a close reason (RFC 6455 section 5.5).
const MAX_REASON_BYTES: usize = 123;

/// Encodes a status code and a reason, truncated to fit into a control frame.
pub(super) fn close_payload(code: u16, reason: &str) -> ClosePayload {
    let mut payload = code.to_be_bytes().to_vec();
    let end = reason.floor_char_boundary(MAX_REASON_BYTES);
    payload.extend_from_slice(&reason.as_bytes()[..end]);
    payload
}

/// Whether the peer keeps up with the sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PeerReadRate {
    Normal,
    Slow,
}

impl SharedControl {
    pub(super) fn update(&self, change: impl FnOnce(&mut PendingControl)) {
        change(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        self.waker.wake();
    }

    /// Queues the answer to a ping. When full, the oldest is dropped, because the newest must be
    /// answered.
    pub(super) fn queue_pong(&self, payload: Bytes) {
        self.update(|pending| {
            if pending.pongs.len() == MAX_PONGS {
                pending.pongs.pop_front();
            }
            pending.pongs.push_back(payload);
        });
    }

    /// Takes the pending control frames. Pongs stay queued while the peer reads slowly.
    pub(super) fn take(&self, reads: PeerReadRate) -> PendingControl {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pongs = match reads {
            PeerReadRate::Slow => std::mem::take(&mut pending.pongs),
            PeerReadRate::Normal => VecDeque::new(),
        };
        let control = std::mem::take(&mut *pending);
        pending.pongs = pongs;
        control
    }
}
