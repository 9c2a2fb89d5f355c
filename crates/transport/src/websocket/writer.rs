//! Messages in, frames out.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use exec_wire::{limits, outgoing::Outgoing};
use tokio::{
    io::AsyncWrite,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use super::{
    Control, Role,
    frame::{Header, Opcode, apply_mask},
};
use crate::link::{Encoding, MessageWriter};

/// Slices handed to the kernel in one call.
const MAX_SLICES: usize = 64;

pub(super) struct Writer {
    output: Box<dyn AsyncWrite + Send + Unpin>,
    role: Role,
    control: Arc<Control>,
    pings: Option<Interval>,
    /// Frames that are encoded here, one behind the other.
    encoded: Vec<u8>,
    /// What is to be written, in order: parts of `encoded`, and data that is not copied into it.
    parts: VecDeque<Part>,
    buffered: usize,
    closed: bool,
}

#[derive(Debug)]
enum Part {
    Encoded { start: usize, end: usize },
    Shared(Bytes),
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

    /// A message too long for one frame.
    fn push_fragments(&mut self, opcode: Opcode, message: &Bytes) {
        let pieces = message.len().div_ceil(limits::OUTGOING_FRAME_BYTES);
        for (index, start) in (0..message.len())
            .step_by(limits::OUTGOING_FRAME_BYTES)
            .enumerate()
        {
            let end = (start + limits::OUTGOING_FRAME_BYTES).min(message.len());
            let opcode = if index == 0 {
                opcode
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
            let length = part.len();
            if count < length {
                match part {
                    Part::Encoded { start, .. } => *start += count,
                    Part::Shared(data) => data.advance(count),
                }
                return;
            }
            count -= length;
            self.parts.pop_front();
        }
    }
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Encoded { start, end } => end - start,
            Self::Shared(data) => data.len(),
        }
    }
}

impl MessageWriter for Writer {
    fn push(&mut self, message: Outgoing, encoding: Encoding) {
        match (message, encoding) {
            (Outgoing::Data(message), Encoding::Binary) => {
                let mut head = Vec::with_capacity(message.binary_head_len());
                let data = message.encode_binary(&mut head);
                let length = head.len() + data.len();
                if length > limits::OUTGOING_FRAME_BYTES || self.role == Role::Client {
                    head.extend_from_slice(&data);
                    self.push_fragments(Opcode::Binary, &head.into());
                    return;
                }
                let start = self.encoded.len();
                self.frame(Opcode::Binary, true, length);
                self.encoded.extend_from_slice(&head);
                self.push_encoded(start);
                self.push_shared(data);
            }
            (message, _) => {
                let length = message.text_len();
                if length > limits::OUTGOING_FRAME_BYTES {
                    let mut text = Vec::with_capacity(length);
                    message.encode_text(&mut text);
                    self.push_fragments(Opcode::Text, &text.into());
                    return;
                }
                self.push_frame(Opcode::Text, length, |out| message.encode_text(out));
            }
        }
    }

    fn buffered(&self) -> usize {
        self.buffered
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.push_owed();
        while !self.parts.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let used = self.parts.len().min(MAX_SLICES);
            for (slice, part) in slices.iter_mut().zip(&self.parts) {
                *slice = IoSlice::new(match part {
                    Part::Encoded { start, end } => &self.encoded[*start..*end],
                    Part::Shared(data) => data,
                });
            }
            let output = Pin::new(&mut self.output);
            match ready!(output.poll_write_vectored(cx, &slices[..used]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.advance(count),
            }
        }
        self.encoded.clear();
        self.encoded.shrink_to(limits::OUTBOX_BYTES);
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
