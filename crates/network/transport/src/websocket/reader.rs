//! Reads frames off a connection: the driver of a [`MessageDecoder`].
//!
//! Invariant: one connection that sends without end does not keep the thread from others. After a
//! budget of frames or bytes the reader yields, whatever the frames are.

use std::{
    future::Future,
    io,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    task::yield_now,
};

use super::{
    frame_output::{SharedControl, close_payload},
    message_budget::{MessageBudget, MessageReservation},
    message_decoder::{FrameError, FrameEvent, MessageDecoder, MessageKind},
};
use crate::link::{MessageReader, ReadError, Role};

/// Bytes asked for when nothing is known of what comes.
const READ_BYTES: usize = 4 << 10;
/// Bytes asked for of a peer that has filled every read: fewer calls, and frames that lie in one
/// piece of memory.
const BUSY_READ_BYTES: usize = 256 << 10;
/// Most bytes asked for at once: memory is taken as data comes, not as a header promises.
const MAX_READ_BYTES: usize = 1 << 20;
/// Frames that are decoded before others have a turn: a request takes some microseconds.
const FRAME_BUDGET: u32 = 64;
/// Bytes that are read before others have a turn.
const BYTE_BUDGET: usize = 512 << 10;

pub(super) struct FrameReader {
    input: Box<dyn AsyncRead + Send + Unpin>,
    decoder: MessageDecoder,
    /// What the next read asks for, beside what is known to come.
    read_size: usize,
    /// All that was ever read.
    received: u64,
    /// What is left of the budgets until the reader yields.
    frames_left: u32,
    bytes_left: usize,
    /// Where memory for large messages comes from, if it is bounded.
    budget: Option<MessageBudget>,
    reservation: MessageReservation,
    control: Arc<SharedControl>,
    state: ReadState,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ReadState {
    Open,
    /// The peer has closed the connection.
    Closed,
    /// The peer broke a rule. What else it sends is discarded, so that the connection can be closed
    /// without a reset, which could overtake the close frame.
    Failed,
}

impl std::fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("buffered", &self.decoder.buffer.len())
            .finish_non_exhaustive()
    }
}

impl FrameReader {
    pub(super) fn new(
        input: Box<dyn AsyncRead + Send + Unpin>,
        buffer: BytesMut,
        role: Role,
        max_message_bytes: usize,
        control: Arc<SharedControl>,
    ) -> Self {
        Self {
            input,
            decoder: MessageDecoder::new(buffer, role, max_message_bytes),
            read_size: READ_BYTES,
            received: 0,
            frames_left: FRAME_BUDGET,
            bytes_left: BYTE_BUDGET,
            budget: None,
            reservation: MessageReservation::None,
            control,
            state: ReadState::Open,
        }
    }

    /// Takes messages of another length from here on.
    pub(super) fn with_limit(self, max_message_bytes: usize) -> Self {
        Self {
            decoder: self.decoder.with_limit(max_message_bytes),
            ..self
        }
    }

    /// Takes memory for large messages from a budget.
    pub(super) fn with_budget(self, budget: Option<MessageBudget>) -> Self {
        Self { budget, ..self }
    }

    /// Returns how many bytes were read.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Returns the next message and what it was sent as; `None` when the peer is done. After an error
    /// it discards what the peer sends, until the peer is done.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<(MessageKind, Bytes)>, ReadError>> {
        loop {
            match self.state {
                ReadState::Closed => return Poll::Ready(Ok(None)),
                ReadState::Failed => {
                    ready!(self.poll_discard(cx))?;
                    continue;
                }
                ReadState::Open => {}
            }
            ready!(self.poll_budget(cx));
            let event = match self.decoder.next() {
                Ok(event) => event,
                Err(error) => return Poll::Ready(Err(self.fail(error.into()))),
            };
            let Some(event) = event else {
                ready!(self.poll_fill(cx))?;
                continue;
            };
            self.frames_left -= 1;
            match event {
                FrameEvent::Message(kind, message) => {
                    self.reservation = MessageReservation::None;
                    return Poll::Ready(Ok(Some((kind, message))));
                }
                FrameEvent::Fragment => {}
                FrameEvent::Ping(payload) => self.control.queue_pong(payload),
                FrameEvent::Pong => self.control.update(|pending| pending.pong_received = true),
                FrameEvent::Close(code) => {
                    let payload = code.map(|code| close_payload(code, "")).unwrap_or_default();
                    self.control.update(|pending| pending.close = Some(payload));
                    self.state = ReadState::Closed;
                }
            }
        }
    }

    /// Fails the connection: the writer tells the peer why.
    fn fail(&mut self, error: ReadError) -> ReadError {
        self.state = ReadState::Failed;
        self.reservation = MessageReservation::None;
        self.decoder.clear();
        if let Some(code) = error.close_code() {
            let payload = close_payload(code, &error.to_string());
            self.control.update(|pending| pending.close = Some(payload));
        }
        error
    }

    /// Pending once the budget is used up. The next call has a new one: by then others had a turn.
    fn poll_budget(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.frames_left > 0 && self.bytes_left > 0 {
            return Poll::Ready(());
        }
        self.frames_left = FRAME_BUDGET;
        self.bytes_left = BYTE_BUDGET;
        // Wakes this task once the runtime has looked for what others have received.
        pin!(yield_now()).poll(cx)
    }

    /// Waits for more bytes.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        if let Some(budget) = &self.budget {
            let expected = self.decoder.expected_bytes();
            if expected > MessageDecoder::SMALL_BYTES
                && ready!(self.reservation.poll_reserve(budget, expected, cx)).is_err()
            {
                return Poll::Ready(Err(self.fail(ReadError::Stalled)));
            }
        }
        match self.poll_read(cx) {
            Poll::Ready(Ok(0)) => self.state = ReadState::Closed,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
            Poll::Pending => {
                if self.decoder.buffer.is_empty() {
                    // Nobody knows when the next byte comes: an idle connection keeps nothing.
                    self.decoder.buffer = BytesMut::new();
                }
                self.frames_left = FRAME_BUDGET;
                self.bytes_left = BYTE_BUDGET;
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads what has come into the buffer.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let wanted = self
            .decoder
            .missing_bytes()
            .clamp(self.read_size, MAX_READ_BYTES);
        let buffer = &mut self.decoder.buffer;
        if buffer.is_empty() && buffer.capacity() < wanted {
            // What was handed out keeps its memory, and is not copied to make room.
            *buffer = BytesMut::with_capacity(wanted);
        }
        buffer.reserve(wanted);
        // Reads into the spare part of the buffer, at most as much as is wanted.
        let mut space = buffer.limit(wanted);
        let read = pin!(self.input.read_buf(&mut space));
        let read = ready!(read.poll(cx))?;
        self.received += read as u64;
        self.bytes_left = self.bytes_left.saturating_sub(read);
        self.read_size = if read == wanted {
            (self.read_size * 4).min(BUSY_READ_BYTES)
        } else {
            READ_BYTES.max(self.read_size / 2)
        };
        Poll::Ready(Ok(read))
    }

    /// Discards what has come.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_budget(cx));
        let mut space = [0; READ_BYTES];
        let read = pin!(self.input.read(&mut space));
        let read = ready!(read.poll(cx))?;
        self.bytes_left = self.bytes_left.saturating_sub(read);
        if read == 0 {
            self.state = ReadState::Closed;
        }
        Poll::Ready(Ok(()))
    }
}

impl MessageReader for FrameReader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ReadError>> {
        let next = ready!(self.poll_next(cx))?;
        Poll::Ready(Ok(next.map(|(_, message)| message)))
    }
}

impl From<FrameError> for ReadError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Protocol(what) => Self::Protocol(what),
            FrameError::InvalidUtf8 => Self::InvalidUtf8,
            FrameError::TooLong(max_message_bytes) => Self::TooLong(max_message_bytes),
        }
    }
}
