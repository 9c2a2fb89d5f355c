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

use super::End;

/// What may wait in a stream before whoever writes to it has to. With as much, the driver fills a
/// socket's buffer in one go.
const LOW_WATER: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Cell {
    id: StreamId,
    bell: Arc<Bell>,
    this: Weak<Self>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stream: Stream,
    /// Set once; what was received before is still read.
    end: Option<End>,
    application: Application,
    /// Whether the bell has it.
    rung: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// What whoever uses the link wants of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Application {
    Uses,
    /// Is done when everything is sent.
    Closes,
    /// Is gone. What was not sent will not be.
    Left,
}

/// What a driver learns when it has taken a stream's frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Visit {
    /// It has no more for now.
    Idle,
    /// It has more; others come first.
    More,
    /// The application is done, and so are its frames: the stream is to be ended.
    Done,
}

impl Cell {
    pub(super) fn new(id: StreamId, stream: Stream, bell: Arc<Bell>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            id,
            bell,
            this: this.clone(),
            state: Mutex::new(State {
                stream,
                end: None,
                application: Application::Uses,
                rung: false,
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
        let woken = [state.reader.take(), self.room(&mut state)];
        self.queue(&mut state);
        drop(state);
        wake(woken);
        Ok(())
    }

    /// Hands out frames until there are `most` bytes of them, or no more.
    pub(super) fn take_frames(
        &self,
        now: Instant,
        most: usize,
        mut push: impl FnMut(Bytes),
    ) -> Visit {
        let mut state = self.state();
        state.rung = false;
        if state.application == Application::Left || state.end.is_some() {
            return Visit::Done;
        }
        let mut taken = 0;
        let mut visit = Visit::More;
        while taken < most {
            let Some(frame) = state.stream.poll_frame(now) else {
                visit = Visit::Idle;
                break;
            };
            taken += frame.len();
            push(frame);
        }
        let sent = visit == Visit::Idle && state.stream.buffered() == 0;
        if sent && state.application == Application::Closes {
            visit = Visit::Done;
        }
        let woken = self.room(&mut state);
        if visit == Visit::More {
            self.queue(&mut state);
        }
        drop(state);
        wake([woken]);
        visit
    }

    pub(super) fn handle_timeout(&self, now: Instant) -> Result<(), StreamError> {
        let mut state = self.state();
        state.stream.handle_timeout(now)?;
        self.queue(&mut state);
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
        self.queue(&mut state);
    }

    /// Tells whether no more should be read. The bell rings when that is over.
    pub(super) fn is_crowded(&self) -> bool {
        self.state().stream.is_crowded()
    }

    /// Tells whether nobody waits for the stream any more.
    pub(super) fn is_left(&self) -> bool {
        self.state().application != Application::Uses
    }

    /// Ends the stream, once.
    pub(super) fn end(&self, end: End) {
        let mut state = self.state();
        state.end.get_or_insert(end);
        let woken = [state.reader.take(), state.writer.take()];
        drop(state);
        wake(woken);
    }

    /// Returns the next message for the application; nothing, or why, when there are no more.
    pub(super) fn poll_message(&self, cx: &Context<'_>) -> Poll<Result<Bytes, End>> {
        let mut state = self.state();
        let was_crowded = state.stream.is_crowded();
        if let Some(message) = state.stream.poll_message() {
            if state.stream.delivery() == Delivery::Reliable {
                // That there is room again may be worth an acknowledgement.
                self.ring(&mut state);
            } else if was_crowded && !state.stream.is_crowded() {
                self.bell.ring();
            }
            return Poll::Ready(Ok(message));
        }
        if let Some(end) = &state.end {
            return Poll::Ready(Err(end.clone()));
        }
        keep(&mut state.reader, cx);
        Poll::Pending
    }

    /// Takes a message of the application; returns its length.
    pub(super) fn push(&self, encode: impl FnOnce(&mut Vec<u8>)) -> usize {
        let mut state = self.state();
        if state.end.is_some() {
            return 0;
        }
        let before = state.stream.buffered();
        if let Err(error) = state.stream.push(encode) {
            // Whoever waits for the message would wait forever.
            state.end = Some(error.into());
            let woken = [state.reader.take(), state.writer.take()];
            self.ring(&mut state);
            drop(state);
            wake(woken);
            return 0;
        }
        state.stream.buffered().saturating_sub(before)
    }

    /// Resolves when most of what was pushed is on its way.
    pub(super) fn poll_flush(&self, cx: &Context<'_>) -> Poll<Result<(), End>> {
        let mut state = self.state();
        if let Some(end) = &state.end {
            return Poll::Ready(Err(end.clone()));
        }
        if state.stream.buffered() > 0 {
            self.ring(&mut state);
        }
        if state.stream.buffered() <= LOW_WATER {
            return Poll::Ready(Ok(()));
        }
        keep(&mut state.writer, cx);
        Poll::Pending
    }

    /// Resolves when everything that was pushed is on its way and the stream has ended.
    pub(super) fn poll_close(&self, cx: &Context<'_>) -> Poll<Result<(), End>> {
        let mut state = self.state();
        match &state.end {
            Some(End::Closed) => return Poll::Ready(Ok(())),
            Some(end) => return Poll::Ready(Err(end.clone())),
            None => {}
        }
        if state.application == Application::Uses {
            state.application = Application::Closes;
            self.queue(&mut state);
            // A driver that is without a connection leaves its queue alone, and has to know.
            self.bell.ring();
        }
        keep(&mut state.writer, cx);
        Poll::Pending
    }

    /// The application has dropped its link.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.application = Application::Left;
        self.queue(&mut state);
        self.bell.ring();
    }

    /// Asks the driver for a visit.
    fn ring(&self, state: &mut State) {
        if !state.rung {
            self.queue(state);
            self.bell.ring();
        }
    }

    /// The same by the driver itself, which is awake.
    fn queue(&self, state: &mut State) {
        if !state.rung {
            state.rung = true;
            self.bell.queue_up(self.this.clone());
        }
    }

    /// Returns whom to wake because there is room.
    fn room(&self, state: &mut State) -> Option<Waker> {
        if state.stream.buffered() > LOW_WATER {
            return None;
        }
        // Who closes waits for the end, not for room.
        match state.application {
            Application::Uses => state.writer.take(),
            Application::Closes | Application::Left => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keep(waker: &mut Option<Waker>, cx: &Context<'_>) {
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
pub(super) struct Bell {
    queue: Mutex<VecDeque<Weak<Cell>>>,
    driver: AtomicWaker,
}

impl Bell {
    /// Wakes the driver.
    pub(super) fn ring(&self) {
        self.driver.wake();
    }

    /// Puts a cell at the end of the queue. The cell sees to it that it is in it once.
    pub(super) fn queue_up(&self, cell: Weak<Cell>) {
        self.lock().push_back(cell);
    }

    /// Notes whom to wake.
    pub(super) fn listen(&self, driver: &Waker) {
        self.driver.register(driver);
    }

    /// Returns the cell whose turn it is.
    pub(super) fn next(&self) -> Option<Arc<Cell>> {
        let mut queue = self.lock();
        while let Some(cell) = queue.pop_front() {
            if let Some(cell) = cell.upgrade() {
                return Some(cell);
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Weak<Cell>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
