//! Messages in, frames out.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use exec_wire::{
    limits,
    outgoing::{DataMessage, Outgoing},
};
use tokio::{
    io::AsyncWrite,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use super::{
    Control,
    frame::{Header, Opcode, apply_mask},
    large::Large,
};
use crate::link::{Encoding, MessageWriter, Role};

/// Slices handed to the kernel in one call.
const MAX_SLICES: usize = 64;

pub(super) struct Writer {
    output: Box<dyn AsyncWrite + Send + Unpin>,
    role: Role,
    control: Arc<Control>,
    pings: Option<Interval>,
    /// Frames that are encoded here, one behind the other.
    encoded: Vec<u8>,
    /// What is to be written, in order: parts of `encoded`, data that is not copied into it, and
    /// messages that are not encoded yet.
    parts: VecDeque<Part>,
    /// The block of a large message that is being written.
    block: Vec<u8>,
    buffered: usize,
    closed: bool,
}

enum Part {
    Encoded {
        start: usize,
        end: usize,
    },
    Shared(Bytes),
    /// The rest of `block`, from here on. Always the first.
    Block {
        start: usize,
    },
    Large(Large),
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("buffered", &self.buffered)
            .finish_non_exhaustive()
    }
}

impl Writer {
    pub(super) fn new(
        output: Box<dyn AsyncWrite + Send + Unpin>,
        role: Role,
        control: Arc<Control>,
    ) -> Self {
        let pings = (role == Role::Server).then(|| {
            let first = Instant::now() + limits::PING_INTERVAL;
            let mut pings = interval_at(first, limits::PING_INTERVAL);
            pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
            pings
        });
        Self {
            output,
            role,
            control,
            pings,
            encoded: Vec::new(),
            parts: VecDeque::new(),
            block: Vec::new(),
            buffered: 0,
            closed: false,
        }
    }

    fn frame(&mut self, opcode: Opcode, fin: bool, length: usize) -> Header {
        let mask = (self.role == Role::Client).then(mask);
        let header = Header {
            fin,
            opcode,
            mask,
            length: length as u64,
        };
        header.encode(&mut self.encoded);
        header
    }

    /// A frame that `payload` encodes, whose length is known before.
    fn push_frame(&mut self, opcode: Opcode, length: usize, payload: impl FnOnce(&mut Vec<u8>)) {
        let start = self.encoded.len();
        let header = self.frame(opcode, true, length);
        let payload_start = self.encoded.len();
        payload(&mut self.encoded);
        debug_assert_eq!(
            self.encoded.len() - payload_start,
            length,
            "lengths are exact"
        );
        if let Some(mask) = header.mask {
            apply_mask(mask, &mut self.encoded[payload_start..]);
        }
        self.push_encoded(start);
    }

    fn push_text(&mut self, message: &Outgoing) {
        let length = message.text_len();
        if length > limits::OUTGOING_FRAME_BYTES {
            let mut text = Vec::with_capacity(length);
            message.encode_text(&mut text);
            self.push_fragments(&text.into());
            return;
        }
        self.push_frame(Opcode::Text, length, |out| message.encode_text(out));
    }

    /// A text too long for one frame.
    fn push_fragments(&mut self, message: &Bytes) {
        let pieces = message.len().div_ceil(limits::OUTGOING_FRAME_BYTES);
        for (index, start) in (0..message.len())
            .step_by(limits::OUTGOING_FRAME_BYTES)
            .enumerate()
        {
            let end = (start + limits::OUTGOING_FRAME_BYTES).min(message.len());
            let opcode = if index == 0 {
                Opcode::Text
            } else {
                Opcode::Continuation
            };
            self.push_whole(opcode, index + 1 == pieces, message.slice(start..end));
        }
    }

    /// A frame whose payload is not copied, unless it must be masked.
    fn push_whole(&mut self, opcode: Opcode, fin: bool, payload: Bytes) {
        let start = self.encoded.len();
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

    /// Raw data behind its head. Nothing of it is copied, unless it must be masked.
    fn push_binary(&mut self, message: &DataMessage) {
        let mut head = Vec::with_capacity(message.binary_head_len());
        let data = message.encode_binary(&mut head);
        if self.role == Role::Client {
            // Little: `Large` takes what is much.
            head.extend_from_slice(&data);
            self.push_whole(Opcode::Binary, true, head.into());
            return;
        }
        let room = limits::OUTGOING_FRAME_BYTES.saturating_sub(head.len());
        let first = data.len().min(room);
        let start = self.encoded.len();
        self.frame(Opcode::Binary, first == data.len(), head.len() + first);
        self.encoded.extend_from_slice(&head);
        self.push_encoded(start);
        self.push_shared(data.slice(..first));
        for start in (first..data.len()).step_by(limits::OUTGOING_FRAME_BYTES) {
            let end = (start + limits::OUTGOING_FRAME_BYTES).min(data.len());
            self.push_whole(
                Opcode::Continuation,
                end == data.len(),
                data.slice(start..end),
            );
        }
    }

    fn push_large(&mut self, large: Large) {
        self.buffered += large.len();
        self.parts.push_back(Part::Large(large));
    }

    /// Encodes the next block of a large message whose turn it is.
    fn encode_block(&mut self) {
        let Some(Part::Large(large)) = self.parts.front_mut() else {
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
        self.parts.push_front(Part::Block { start: 0 });
    }

    fn push_encoded(&mut self, start: usize) {
        let end = self.encoded.len();
        self.buffered += end - start;
        if let Some(Part::Encoded { end: last, .. }) = self.parts.back_mut()
            && *last == start
        {
            *last = end;
            return;
        }
        self.parts.push_back(Part::Encoded { start, end });
    }

    fn push_shared(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.buffered += data.len();
            self.parts.push_back(Part::Shared(data));
        }
    }

    fn push_control(&mut self, opcode: Opcode, payload: &[u8]) {
        self.push_frame(opcode, payload.len(), |out| out.extend_from_slice(payload));
    }

    /// Encodes what the reader owes the peer.
    fn push_owed(&mut self) {
        let owed = self.control.take();
        if let Some(payload) = owed.pong {
            self.push_control(Opcode::Pong, &payload);
        }
        if owed.close && !self.closed {
            self.closed = true;
            self.push_control(Opcode::Close, &[]);
        }
    }

    fn advance(&mut self, mut count: usize) {
        self.buffered -= count;
        while count > 0 {
            let Some(part) = self.parts.front_mut() else {
                break;
            };
            let length = match part {
                Part::Encoded { start, end } => *end - *start,
                Part::Shared(data) => data.len(),
                Part::Block { start } => self.block.len() - *start,
                Part::Large(_) => break,
            };
            if count < length {
                match part {
                    Part::Encoded { start, .. } | Part::Block { start } => *start += count,
                    Part::Shared(data) => data.advance(count),
                    Part::Large(_) => {}
                }
                return;
            }
            count -= length;
            self.parts.pop_front();
        }
    }
}

impl MessageWriter for Writer {
    fn push(&mut self, message: Outgoing, encoding: Encoding) {
        let must_mask = (self.role == Role::Client).then_some(mask as fn() -> [u8; 4]);
        match (message, encoding) {
            (Outgoing::Data(message), Encoding::Binary) if self.role == Role::Server => {
                self.push_binary(&message);
            }
            (Outgoing::Data(message), encoding) => {
                match (Large::new(message, encoding, must_mask), encoding) {
                    (Ok(large), _) => self.push_large(large),
                    (Err(message), Encoding::Binary) => self.push_binary(&message),
                    (Err(message), Encoding::Text) => self.push_text(&Outgoing::Data(message)),
                }
            }
            (message @ Outgoing::Text(_), _) => self.push_text(&message),
        }
    }

    fn buffered(&self) -> usize {
        self.buffered
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.push_owed();
        while !self.parts.is_empty() {
            self.encode_block();
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let mut used = 0;
            for (slice, part) in slices.iter_mut().zip(&self.parts) {
                *slice = IoSlice::new(match part {
                    Part::Encoded { start, end } => &self.encoded[*start..*end],
                    Part::Shared(data) => data,
                    Part::Block { start } => &self.block[*start..],
                    Part::Large(_) => break,
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
        self.encoded.shrink_to(limits::OUTBOX_BYTES);
        self.block = Vec::new();
        Pin::new(&mut self.output).poll_flush(cx)
    }

    fn poll_upkeep(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.control.waker.register(cx.waker());
        if let Some(pings) = &mut self.pings
            && pings.poll_tick(cx).is_ready()
        {
            self.push_control(Opcode::Ping, &[]);
        }
        self.push_owed();
        if self.buffered > 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closed {
            self.closed = true;
            self.push_control(Opcode::Close, &[]);
        }
        ready!(self.poll_flush(cx))?;
        Pin::new(&mut self.output).poll_shutdown(cx)
    }
}

/// A mask for one frame. It protects proxies from content chosen by an attacker; it is no secret.
fn mask() -> [u8; 4] {
    use std::hash::{BuildHasher, RandomState};

    let [a, b, c, d, ..] = RandomState::new().hash_one(0).to_ne_bytes();
    [a, b, c, d]
}
