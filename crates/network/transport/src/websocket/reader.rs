//! Reads frames from a connection: the driver of a [`MessageDecoder`]. Also the memory budget for
//! incomplete large messages, shared by the connections of a listener.
//!
//! Invariants: a connection that sends without pause does not starve others; the reader yields
//! after a budget of frames or bytes. A message reserves its maximum size before it uses more than
//! a small part of it, so two incomplete messages never wait for each other. A message that holds
//! its reservation too long while others wait fails.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::yield_now,
    time::{Instant, Sleep, sleep_until},
};

use super::{
    frame_output::{SharedControl, close_payload},
    message_decoder::{FrameError, FrameEvent, MessageDecoder, MessageKind},
};
use crate::link::{LinkReadError, LinkRole, MessageReader};

/// Initial read size.
const READ_BYTES: usize = 4 << 10;
/// Read size for a peer that fills every read: fewer calls, and frames that are contiguous in
/// memory.
const BUSY_READ_BYTES: usize = 256 << 10;
/// Maximum read size: memory grows with received data, not with what a header announces.
const MAX_READ_BYTES: usize = 1 << 20;
/// Frames decoded before the reader yields. A request takes some microseconds.
const FRAME_BUDGET: u32 = 64;
/// Bytes read before the reader yields.
const BYTE_BUDGET: usize = 512 << 10;

pub(super) struct FrameReader {
    input: Box<dyn AsyncRead + Send + Unpin>,
    decoder: MessageDecoder,
    /// Adaptive size of the next read, if no more is known to come.
    read_size: usize,
    /// Total bytes read.
    received: u64,
    /// Remaining budget until the reader yields.
    frames_left: u32,
    bytes_left: usize,
    /// Memory budget for large messages.
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
    /// The peer violated the protocol. Further data is discarded, so that closing does not cause a
    /// reset that overtakes the close frame.
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
        role: LinkRole,
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

    /// Replaces the message size limit.
    pub(super) fn with_limit(mut self, max_message_bytes: usize) -> Self {
        self.decoder.max_message_bytes = max_message_bytes;
        self
    }

    /// Sets the memory budget for large messages.
    pub(super) fn with_budget(self, budget: Option<MessageBudget>) -> Self {
        Self { budget, ..self }
    }

    /// Returns the number of bytes read.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Returns the next message and its frame type; `None` when the peer has closed. After an
    /// error, discards data until the peer closes.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<(MessageKind, Bytes)>, LinkReadError>> {
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

    /// Fails the connection. The writer sends the close frame.
    fn fail(&mut self, error: LinkReadError) -> LinkReadError {
        self.state = ReadState::Failed;
        self.reservation = MessageReservation::None;
        self.decoder.clear();
        if let Some(code) = error.close_code() {
            let payload = close_payload(code, &error.to_string());
            self.control.update(|pending| pending.close = Some(payload));
        }
        error
    }

    /// Yields once the budget is used up. The next call starts with a new one.
    fn poll_budget(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.frames_left > 0 && self.bytes_left > 0 {
            return Poll::Ready(());
        }
        self.frames_left = FRAME_BUDGET;
        self.bytes_left = BYTE_BUDGET;
        // Wakes this task after the runtime has polled for IO.
        pin!(yield_now()).poll(cx)
    }

    /// Waits for more bytes.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkReadError>> {
        if let Some(budget) = &self.budget {
            let expected = self.decoder.expected_bytes();
            if expected > MessageDecoder::SMALL_BYTES
                && ready!(self.reservation.poll_reserve(budget, expected, cx)).is_err()
            {
                return Poll::Ready(Err(self.fail(LinkReadError::Stalled)));
            }
        }
        match self.poll_read(cx) {
            Poll::Ready(Ok(0)) => self.state = ReadState::Closed,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
            Poll::Pending => {
                if self.decoder.buffer.is_empty() {
                    // An idle connection keeps no read buffer.
                    self.decoder.buffer = BytesMut::new();
                }
                self.frames_left = FRAME_BUDGET;
                self.bytes_left = BYTE_BUDGET;
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads available bytes into the buffer.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let read_len = self
            .decoder
            .missing_bytes()
            .clamp(self.read_size, MAX_READ_BYTES);
        let buffer = &mut self.decoder.buffer;
        if buffer.is_empty() && buffer.capacity() < read_len {
            // Messages that were handed out keep their memory; do not copy them to make room.
            *buffer = BytesMut::with_capacity(read_len);
        }
        buffer.reserve(read_len);
        // Read at most `wanted` bytes into the spare capacity.
        let mut space = buffer.limit(read_len);
        let read = pin!(self.input.read_buf(&mut space));
        let read = ready!(read.poll(cx))?;
        self.received += read as u64;
        self.bytes_left = self.bytes_left.saturating_sub(read);
        self.read_size = if read == read_len {
            (self.read_size * 4).min(BUSY_READ_BYTES)
        } else {
            READ_BYTES.max(self.read_size / 2)
        };
        Poll::Ready(Ok(read))
    }

    /// Discards available bytes.
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
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, LinkReadError>> {
        let next = ready!(self.poll_next(cx))?;
        Poll::Ready(Ok(next.map(|(_, message)| message)))
    }
}

impl From<FrameError> for LinkReadError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Protocol(what) => Self::Protocol(what),
            FrameError::InvalidUtf8 => Self::InvalidUtf8,
            FrameError::TooLong(max_message_bytes) => Self::TooLong(max_message_bytes),
        }
    }
}

/// How often an overdue message checks whether others wait.
const OVERDUE_CHECK: Duration = Duration::from_secs(1);

/// Limits for incomplete large messages of all connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MessageBudgetLimits {
    /// Maximum reserved bytes. A larger message reserves all of them.
    pub total_bytes: usize,
    /// Minimum time that a message may take while others wait.
    pub base_timeout: Duration,
    /// Required throughput beyond that time.
    pub bytes_per_second: usize,
}

impl Default for MessageBudgetLimits {
    /// Allows two messages of maximum size, at 2 Mbit/s.
    fn default() -> Self {
        Self {
            total_bytes: 128 << 20,
            base_timeout: Duration::from_secs(10),
            bytes_per_second: 256 << 10,
        }
    }
}

/// The budget shared by the connections of a listener.
#[derive(Clone, Debug)]
pub struct MessageBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    limits: MessageBudgetLimits,
    free: Arc<Semaphore>,
    /// Number of messages waiting for a reservation.
    waiting: AtomicUsize,
}

impl MessageBudget {
    /// Creates a budget.
    pub fn new(limits: MessageBudgetLimits) -> Self {
        Self(Arc::new(BudgetState {
            limits,
            free: Arc::new(Semaphore::new(limits.total_bytes)),
            waiting: AtomicUsize::new(0),
        }))
    }
}

/// Reservation of one connection.
#[derive(Default)]
enum MessageReservation {
    #[default]
    None,
    Waiting {
        permit: BoxFuture<'static, Option<OwnedSemaphorePermit>>,
        bytes: usize,
        _waiting: WaitingGuard,
    },
    Held {
        _permit: Option<OwnedSemaphorePermit>,
        bytes: usize,
        overdue: Pin<Box<Sleep>>,
    },
}

/// The message blocks others and takes too long.
#[derive(Debug)]
struct ReservationOverdue;

impl MessageReservation {
    /// Reserves `bytes` for the incoming message. Pending while other messages hold the budget.
    fn poll_reserve(
        &mut self,
        budget: &MessageBudget,
        bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ReservationOverdue>> {
        loop {
            match self {
                Self::Held {
                    bytes: reserved,
                    overdue,
                    ..
                } if *reserved >= bytes => {
                    while overdue.as_mut().poll(cx).is_ready() {
                        if budget.0.waiting.load(Ordering::Relaxed) > 0 {
                            return Poll::Ready(Err(ReservationOverdue));
                        }
                        overdue.as_mut().reset(Instant::now() + OVERDUE_CHECK);
                    }
                    return Poll::Ready(Ok(()));
                }
                Self::Waiting {
                    permit,
                    bytes: requested,
                    ..
                } if *requested >= bytes => {
                    let permit = ready!(permit.as_mut().poll(cx));
                    let (bytes, limits) = (*requested, &budget.0.limits);
                    let arriving = bytes.div_ceil(limits.bytes_per_second.max(1));
                    let timeout = limits.base_timeout + Duration::from_secs(arriving as u64);
                    *self = Self::Held {
                        _permit: permit,
                        bytes,
                        overdue: Box::pin(sleep_until(Instant::now() + timeout)),
                    };
                }
                Self::None | Self::Held { .. } | Self::Waiting { .. } => {
                    // Release first: memory held while waiting for more could be what another
                    // message waits for.
                    *self = Self::None;
                    let shared = &budget.0;
                    let amount = bytes.min(shared.limits.total_bytes);
                    let amount = u32::try_from(amount).unwrap_or(u32::MAX);
                    let free = Arc::clone(&shared.free);
                    *self = Self::Waiting {
                        // The semaphore is never closed.
                        permit: Box::pin(async move { free.acquire_many_owned(amount).await.ok() }),
                        bytes,
                        _waiting: WaitingGuard::new(shared),
                    };
                }
            }
        }
    }
}

/// Counts a waiting message.
struct WaitingGuard(Arc<BudgetState>);

impl WaitingGuard {
    fn new(shared: &Arc<BudgetState>) -> Self {
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
