//! State of one stream, shared by the driver of its connection and the reader and writer of its
//! link, which adapt the stream to a [`Link`].
//! Invariant: the lock is held for one step, never across a wait.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker, ready},
    time::Instant,
};

use bytes::Bytes;
use exec_relay::{
    frame::{RelayFrame, StreamId},
    limits::MESSAGE_BYTES,
    stream::{DeliveryMode, RelayStream, RelayStreamError},
};
use exec_wire::{error::RpcError, outgoing_message::OutgoingMessage};
use futures_util::task::AtomicWaker;
use tokio::task::coop;

use super::StreamCloseReason;
use crate::link::{BinarySupport, DataEncoding, Link, LinkReadError, MessageReader, MessageWriter};

/// Buffered bytes below which writers continue. Enough for the driver to fill a socket's buffer at
/// once.
const WRITE_LOW_WATER: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct StreamShared {
    id: StreamId,
    ready_queue: Arc<ReadyQueue>,
    this: Weak<Self>,
    state: Mutex<StreamState>,
}

#[derive(Debug)]
struct StreamState {
    stream: RelayStream,
    /// Set once. Messages received earlier are still delivered.
    close_reason: Option<StreamCloseReason>,
    link_state: LinkState,
    /// Whether the stream is in the ready queue.
    queued: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// State of the link that uses the stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LinkState {
    Open,
    /// The link closes once everything is sent.
    Closing,
    /// The link is dropped. Unsent data is discarded.
    Detached,
}

/// What a driver learns after it has taken a stream's frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SendProgress {
    /// The stream has no more frames for now.
    Idle,
    /// The stream has more frames, but others come first.
    More,
    /// The link is done and its frames are sent: the driver must end the stream.
    Done,
}

impl StreamShared {
    pub(super) fn new(
        id: StreamId,
        stream: RelayStream,
        ready_queue: Arc<ReadyQueue>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            id,
            ready_queue,
            this: this.clone(),
            state: Mutex::new(StreamState {
                stream,
                close_reason: None,
                link_state: LinkState::Open,
                queued: false,
                reader: None,
                writer: None,
            }),
        })
    }

    pub(super) fn id(&self) -> &StreamId {
        &self.id
    }

    /// Returns the negotiated delivery mode.
    pub(super) fn delivery(&self) -> DeliveryMode {
        self.state().stream.delivery()
    }

    /// Handles a frame from the peer.
    pub(super) fn handle_frame(
        &self,
        frame: RelayFrame,
        now: Instant,
    ) -> Result<(), RelayStreamError> {
        let mut state = self.state();
        state.stream.handle_frame(frame, now)?;
        let wakers = [state.reader.take(), self.take_writer_waker(&mut state)];
        self.enqueue(&mut state);
        drop(state);
        wake(wakers);
        Ok(())
    }

    /// Passes frames to `push`, up to about `max_bytes`.
    pub(super) fn take_frames(
        &self,
        now: Instant,
        max_bytes: usize,
        mut push: impl FnMut(Bytes),
    ) -> SendProgress {
        let mut state = self.state();
        state.queued = false;
        if state.link_state == LinkState::Detached || state.close_reason.is_some() {
            return SendProgress::Done;
        }
        let mut sent_bytes = 0;
        let mut progress = SendProgress::More;
        while sent_bytes < max_bytes {
            let Some(frame) = state.stream.poll_frame(now) else {
                progress = SendProgress::Idle;
                break;
            };
            sent_bytes += frame.len();
            push(frame);
        }
        let all_sent = progress == SendProgress::Idle && state.stream.buffered() == 0;
        if all_sent && state.link_state == LinkState::Closing {
            progress = SendProgress::Done;
        }
        let wakers = self.take_writer_waker(&mut state);
        if progress == SendProgress::More {
            self.enqueue(&mut state);
        }
        drop(state);
        wake([wakers]);
        progress
    }

    pub(super) fn handle_timeout(&self, now: Instant) -> Result<(), RelayStreamError> {
        let mut state = self.state();
        state.stream.handle_timeout(now)?;
        self.enqueue(&mut state);
        Ok(())
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.state().stream.poll_timeout()
    }

    /// Handles the loss of the connection, which may be restored.
    pub(super) fn handle_disconnect(&self, now: Instant) {
        self.state().stream.handle_disconnect(now);
    }

    /// Handles a restored connection.
    pub(super) fn handle_reconnect(&self, now: Instant) {
        let mut state = self.state();
        state.stream.handle_reconnect(now);
        self.enqueue(&mut state);
    }

    /// Returns whether reading should pause. The driver is woken when it may resume.
    pub(super) fn is_receive_buffer_full(&self) -> bool {
        self.state().stream.should_pause_reading()
    }

    /// Returns whether the link is closing or dropped.
    pub(super) fn is_detaching(&self) -> bool {
        self.state().link_state != LinkState::Open
    }

    /// Ends the stream. Only the first reason counts.
    pub(super) fn close(&self, close_reason: StreamCloseReason) {
        let mut state = self.state();
        state.close_reason.get_or_insert(close_reason);
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wake(wakers);
    }

    /// Returns the next message for the link, or the close reason after the last one.
    pub(super) fn poll_message(&self, cx: &Context<'_>) -> Poll<Result<Bytes, StreamCloseReason>> {
        let mut state = self.state();
        let was_paused = state.stream.should_pause_reading();
        if let Some(message) = state.stream.poll_message() {
            if state.stream.delivery() == DeliveryMode::Reliable {
                // The freed space may allow an acknowledgement.
                self.enqueue_and_wake(&mut state);
            } else if was_paused && !state.stream.should_pause_reading() {
                self.ready_queue.wake();
            }
            return Poll::Ready(Ok(message));
        }
        if let Some(end) = &state.close_reason {
            return Poll::Ready(Err(end.clone()));
        }
        store_waker(&mut state.reader, cx);
        Poll::Pending
    }

    /// Queues a message of the link and returns its encoded length.
    pub(super) fn push(&self, encode: impl FnOnce(&mut Vec<u8>)) -> usize {
        let mut state = self.state();
        if state.close_reason.is_some() {
            return 0;
        }
        let before = state.stream.buffered();
        if let Err(error) = state.stream.push(encode) {
            // A peer that waits for this message would wait forever.
            state.close_reason = Some(error.into());
            let wakers = [state.reader.take(), state.writer.take()];
            self.enqueue_and_wake(&mut state);
            drop(state);
            wake(wakers);
            return 0;
        }
        state.stream.buffered().saturating_sub(before)
    }

    /// Resolves when the unsent data is below the low-water mark.
    pub(super) fn poll_flush(&self, cx: &Context<'_>) -> Poll<Result<(), StreamCloseReason>> {
        let mut state = self.state();
        if let Some(end) = &state.close_reason {
            return Poll::Ready(Err(end.clone()));
        }
        if state.stream.buffered() > 0 {
            self.enqueue_and_wake(&mut state);
        }
        if state.stream.buffered() <= WRITE_LOW_WATER {
            return Poll::Ready(Ok(()));
        }
        store_waker(&mut state.writer, cx);
        Poll::Pending
    }

    /// Resolves when all data is sent and the stream has ended.
    pub(super) fn poll_close(&self, cx: &Context<'_>) -> Poll<Result<(), StreamCloseReason>> {
        let mut state = self.state();
        match &state.close_reason {
            Some(StreamCloseReason::Closed) => return Poll::Ready(Ok(())),
            Some(end) => return Poll::Ready(Err(end.clone())),
            None => {}
        }
        if state.link_state == LinkState::Open {
            state.link_state = LinkState::Closing;
            self.enqueue(&mut state);
            // A driver without a connection does not look at its queue, so wake it.
            self.ready_queue.wake();
        }
        store_waker(&mut state.writer, cx);
        Poll::Pending
    }

    /// Handles the drop of the link.
    fn detach(&self) {
        let mut state = self.state();
        state.link_state = LinkState::Detached;
        self.enqueue(&mut state);
        self.ready_queue.wake();
    }

    /// Enqueues the stream and wakes the driver.
    fn enqueue_and_wake(&self, state: &mut StreamState) {
        if !state.queued {
            self.enqueue(state);
            self.ready_queue.wake();
        }
    }

    /// Enqueues the stream. Used by the driver itself, which is awake.
    fn enqueue(&self, state: &mut StreamState) {
        if !state.queued {
            state.queued = true;
            self.ready_queue.push_back_stream(self.this.clone());
        }
    }

    /// Takes the writer's waker if there is room to write.
    fn take_writer_waker(&self, state: &mut StreamState) -> Option<Waker> {
        if state.stream.buffered() > WRITE_LOW_WATER {
            return None;
        }
        // A closing writer waits for the end, not for room.
        match state.link_state {
            LinkState::Open => state.writer.take(),
            LinkState::Closing | LinkState::Detached => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn store_waker(waker: &mut Option<Waker>, cx: &Context<'_>) {
    let stored = waker.get_or_insert_with(|| cx.waker().clone());
    stored.clone_from(cx.waker());
}

/// Wakes tasks. The lock must not be held.
fn wake<const N: usize>(wakers: [Option<Waker>; N]) {
    wakers.into_iter().flatten().for_each(Waker::wake);
}

/// Streams that need service by their driver, in FIFO order. Each stream is queued at most once, so
/// the queue is bounded by the number of streams.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    queue: Mutex<VecDeque<Weak<StreamShared>>>,
    driver_waker: AtomicWaker,
}

impl ReadyQueue {
    /// Wakes the driver.
    pub(super) fn wake(&self) {
        self.driver_waker.wake();
    }

    /// Appends a stream. The stream ensures that it is queued once.
    fn push_back_stream(&self, shared: Weak<StreamShared>) {
        self.lock().push_back(shared);
    }

    /// Registers the driver's waker.
    pub(super) fn register(&self, driver_waker: &Waker) {
        self.driver_waker.register(driver_waker);
    }

    /// Returns the next ready stream.
    pub(super) fn pop(&self) -> Option<Arc<StreamShared>> {
        let mut queue = self.lock();
        while let Some(shared) = queue.pop_front() {
            if let Some(shared) = shared.upgrade() {
                return Some(shared);
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Weak<StreamShared>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the link of a stream.
pub(super) fn stream_link(shared: Arc<StreamShared>, peer: String) -> Link {
    let max_in_flight = match shared.delivery() {
        DeliveryMode::Plain => PLAIN_MAX_IN_FLIGHT,
        DeliveryMode::Reliable => usize::MAX,
    };
    let reader = StreamReader(Arc::clone(&shared));
    let writer = StreamWriter {
        shared,
        unflushed: 0,
    };
    Link {
        max_in_flight,
        ..Link::new(reader, writer, peer, BinarySupport::Supported)
    }
}

/// Maximum number of requests in flight to a stock executor. It handles one at a time and ends a
/// stream with more than 128 queued messages; notifications come on top.
const PLAIN_MAX_IN_FLIGHT: usize = 16;

#[derive(Debug)]
struct StreamReader(Arc<StreamShared>);

impl MessageReader for StreamReader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, LinkReadError>> {
        // This reads no socket, so it must use tokio's cooperative budget explicitly.
        let budget = ready!(coop::poll_proceed(cx));
        let message = ready!(self.0.poll_message(cx));
        budget.made_progress();
        Poll::Ready(match message {
            Ok(message) => Ok(Some(message)),
            Err(end) => end.read_error().map(|()| None),
        })
    }
}

#[derive(Debug)]
struct StreamWriter {
    shared: Arc<StreamShared>,
    /// Bytes pushed since the last flush.
    unflushed: usize,
}

impl MessageWriter for StreamWriter {
    fn push(&mut self, message: OutgoingMessage, encoding: DataEncoding) {
        let message = fit_to_limit(message, encoding);
        self.unflushed += self.shared.push(|out| encoding.encode(&message, out));
    }

    fn buffered(&self) -> usize {
        self.unflushed
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.shared.poll_flush(cx));
        self.unflushed = 0;
        Poll::Ready(flushed.map_err(|end: StreamCloseReason| end.io_error()))
    }

    fn poll_keepalive(&mut self, _: &mut Context<'_>) -> Poll<()> {
        // The driver runs the keepalive, whether or not the link is polled.
        Poll::Pending
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = ready!(self.shared.poll_close(cx));
        Poll::Ready(closed.map_err(|end| end.io_error()))
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.shared.detach();
    }
}

/// Replaces a response that exceeds the message limit by an error. Any other oversized message ends
/// the stream, as it would at the peer.
fn fit_to_limit(message: OutgoingMessage, encoding: DataEncoding) -> OutgoingMessage {
    let length = match (&message, encoding) {
        (OutgoingMessage::Data(message), DataEncoding::Binary) => {
            message.binary_head_len() + message.data_len()
        }
        (message, _) => message.text_len(),
    };
    if length <= MESSAGE_BYTES {
        return message;
    }
    let text = format!("answer of {length} bytes exceeds the relay's limit of {MESSAGE_BYTES}");
    message
        .error_response(&RpcError::invalid_request(text))
        .unwrap_or(message)
}
