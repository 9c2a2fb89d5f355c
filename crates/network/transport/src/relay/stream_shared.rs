//! One stream, between the driver that owns its connection and the halves of its link.
//! Invariant: the lock is held for a step, never while anybody waits.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
    time::Instant,
};

use bytes::Bytes;
use exec_relay::{
    frame::{Frame, StreamId},
    stream::{Delivery, Stream, StreamError},
};
use futures_util::task::AtomicWaker;

use super::StreamCloseReason;

/// What may wait in a stream before whoever writes to it has to. With as much, the driver fills a
/// socket's buffer in one go.
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
    stream: Stream,
    /// Set once; what was received before is still read.
    close_reason: Option<StreamCloseReason>,
    link_state: LinkState,
    /// Whether the bell has it.
    queued: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// What whoever uses the link wants of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LinkState {
    Open,
    /// Is done when everything is sent.
    Closing,
    /// Is gone. What was not sent will not be.
    Detached,
}

/// What a driver learns when it has taken a stream's frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SendProgress {
    /// It has no more for now.
    Idle,
    /// It has more; others come first.
    More,
    /// The application is done, and so are its frames: the stream is to be ended.
    Done,
}

impl StreamShared {
    pub(super) fn new(id: StreamId, stream: Stream, ready_queue: Arc<ReadyQueue>) -> Arc<Self> {
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

    /// Returns what the endpoints have agreed on.
    pub(super) fn delivery(&self) -> Delivery {
        self.state().stream.delivery()
    }

    /// Takes in a frame of the peer.
    pub(super) fn handle_frame(&self, frame: Frame, now: Instant) -> Result<(), StreamError> {
        let mut state = self.state();
        state.stream.handle_frame(frame, now)?;
        let wakers = [state.reader.take(), self.take_writer_waker(&mut state)];
        self.enqueue(&mut state);
        drop(state);
        wake(wakers);
        Ok(())
    }

    /// Hands out frames until there are `most` bytes of them, or no more.
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
        let mut taken = 0;
        let mut progress = SendProgress::More;
        while taken < max_bytes {
            let Some(frame) = state.stream.poll_frame(now) else {
                progress = SendProgress::Idle;
                break;
            };
            taken += frame.len();
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

    pub(super) fn handle_timeout(&self, now: Instant) -> Result<(), StreamError> {
        let mut state = self.state();
        state.stream.handle_timeout(now)?;
        self.enqueue(&mut state);
        Ok(())
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.state().stream.poll_timeout()
    }

    /// The connection is lost, and may come back.
    pub(super) fn handle_disconnect(&self, now: Instant) {
        self.state().stream.handle_disconnect(now);
    }

    /// There is a connection again.
    pub(super) fn handle_reconnect(&self, now: Instant) {
        let mut state = self.state();
        state.stream.handle_reconnect(now);
        self.enqueue(&mut state);
    }

    /// Tells whether no more should be read. The bell rings when that is over.
    pub(super) fn is_receive_buffer_full(&self) -> bool {
        self.state().stream.is_crowded()
    }

    /// Tells whether nobody waits for the stream any more.
    pub(super) fn is_detaching(&self) -> bool {
        self.state().link_state != LinkState::Open
    }

    /// Ends the stream, once.
    pub(super) fn close(&self, close_reason: StreamCloseReason) {
        let mut state = self.state();
        state.close_reason.get_or_insert(close_reason);
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wake(wakers);
    }

    /// Returns the next message for the application; nothing, or why, when there are no more.
    pub(super) fn poll_message(&self, cx: &Context<'_>) -> Poll<Result<Bytes, StreamCloseReason>> {
        let mut state = self.state();
        let was_crowded = state.stream.is_crowded();
        if let Some(message) = state.stream.poll_message() {
            if state.stream.delivery() == Delivery::Reliable {
                // That there is room again may be worth an acknowledgement.
                self.enqueue_and_wake(&mut state);
            } else if was_crowded && !state.stream.is_crowded() {
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

    /// Takes a message of the application; returns its length.
    pub(super) fn push(&self, encode: impl FnOnce(&mut Vec<u8>)) -> usize {
        let mut state = self.state();
        if state.close_reason.is_some() {
            return 0;
        }
        let before = state.stream.buffered();
        if let Err(error) = state.stream.push(encode) {
            // Whoever waits for the message would wait forever.
            state.close_reason = Some(error.into());
            let wakers = [state.reader.take(), state.writer.take()];
            self.enqueue_and_wake(&mut state);
            drop(state);
            wake(wakers);
            return 0;
        }
        state.stream.buffered().saturating_sub(before)
    }

    /// Resolves when most of what was pushed is on its way.
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

    /// Resolves when everything that was pushed is on its way and the stream has ended.
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
            // A driver that is without a connection leaves its queue alone, and has to know.
            self.ready_queue.wake();
        }
        store_waker(&mut state.writer, cx);
        Poll::Pending
    }

    /// The application has dropped its link.
    pub(super) fn detach(&self) {
        let mut state = self.state();
        state.link_state = LinkState::Detached;
        self.enqueue(&mut state);
        self.ready_queue.wake();
    }

    /// Asks the driver for a visit.
    fn enqueue_and_wake(&self, state: &mut StreamState) {
        if !state.queued {
            self.enqueue(state);
            self.ready_queue.wake();
        }
    }

    /// The same by the driver itself, which is awake.
    fn enqueue(&self, state: &mut StreamState) {
        if !state.queued {
            state.queued = true;
            self.ready_queue.push_back_stream(self.this.clone());
        }
    }

    /// Returns whom to wake because there is room.
    fn take_writer_waker(&self, state: &mut StreamState) -> Option<Waker> {
        if state.stream.buffered() > WRITE_LOW_WATER {
            return None;
        }
        // Who closes waits for the end, not for room.
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
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}

/// Wakes without a lock held.
fn wake<const N: usize>(wakers: [Option<Waker>; N]) {
    wakers.into_iter().flatten().for_each(Waker::wake);
}

/// Cells that their driver has to visit, in the order in which they asked. Each is in it once, so
/// there are no more entries than streams.
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

    /// Puts a cell at the end of the queue. The cell sees to it that it is in it once.
    pub(super) fn push_back_stream(&self, shared: Weak<StreamShared>) {
        self.lock().push_back(shared);
    }

    /// Notes whom to wake.
    pub(super) fn register(&self, driver_waker: &Waker) {
        self.driver_waker.register(driver_waker);
    }

    /// Returns the cell whose turn it is.
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
