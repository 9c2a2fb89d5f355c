//! One direction of a circuit: a queue bounded by count and by bytes.
//!
//! Polled rather than awaited, because the task at either end has a socket to look after too. The
//! lock is held for a few instructions and never across a wait.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use super::Ending;

/// Capacity that an empty queue may keep, in frames: an idle circuit holds next to no memory.
const IDLE_CAPACITY: usize = 32;

/// How much may wait in one direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    /// Frames.
    pub frames: usize,
    /// Bytes of all frames together.
    pub bytes: usize,
}

impl Room {
    /// Returns what must be left of it before a sender that found it full goes on.
    const fn reduced(self) -> Self {
        Self {
            frames: self.frames - self.frames / 16,
            bytes: self.bytes - self.bytes / 16,
        }
    }
}

/// Makes one direction, and says what it means when either half is dropped.
pub(super) fn lane(room: Room, sender_gone: Ending, receiver_gone: Ending) -> (Sender, Receiver) {
    let lane = Arc::new(Lane {
        room,
        state: Mutex::default(),
    });
    let sender = Sender {
        lane: Arc::clone(&lane),
        gone: sender_gone,
    };
    let receiver = Receiver {
        lane,
        gone: receiver_gone,
    };
    (sender, receiver)
}

/// Puts frames into one direction.
#[derive(Debug)]
pub struct Sender {
    lane: Arc<Lane>,
    gone: Ending,
}

impl Sender {
    /// Queues a frame behind the others. It is taken even without room, so ask
    /// [`Self::poll_ready`] first: the bound holds only for those who do.
    pub fn push(&mut self, frame: Bytes) -> Result<(), Ending> {
        let mut state = self.lane.lock();
        if let Some(ending) = state.ending {
            return Err(ending);
        }
        state.bytes += frame.len();
        state.queue.push_back(frame);
        state.wake_receiver();
        Ok(())
    }

    /// Resolves when there is room for another frame. Who had to wait waits until a sixteenth of the
    /// room is free: a full lane costs one wake-up for many frames, and a slow receiver does not
    /// keep the sender waiting for long.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ending>> {
        let mut state = self.lane.lock();
        if let Some(ending) = state.ending {
            return Poll::Ready(Err(ending));
        }
        let room = self.lane.room;
        if state.sender.is_none() && state.fits(room) || state.fits(room.reduced()) {
            state.sender = None;
            return Poll::Ready(Ok(()));
        }
        register(&mut state.sender, cx);
        Poll::Pending
    }

    /// Waits for room and queues the frame. Cancelling leaves it unsent.
    pub async fn send(&mut self, frame: Bytes) -> Result<(), Ending> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        self.push(frame)
    }

    /// Ends this direction. The receiver still gets what was sent before.
    pub fn close(&mut self, ending: Ending) {
        self.lane.lock().end(ending);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.close(self.gone);
    }
}

/// Takes frames out of one direction.
#[derive(Debug)]
pub struct Receiver {
    lane: Arc<Lane>,
    gone: Ending,
}

impl Receiver {
    /// Returns the next frame, or why there are no more.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Ending>> {
        let mut state = self.lane.lock();
        if let Some(frame) = state.pop(self.lane.room) {
            return Poll::Ready(Ok(frame));
        }
        if let Some(ending) = state.ending {
            return Poll::Ready(Err(ending));
        }
        register(&mut state.receiver, cx);
        Poll::Pending
    }

    /// Returns the next frame if one waits.
    pub fn try_frame(&mut self) -> Option<Bytes> {
        self.lane.lock().pop(self.lane.room)
    }

    /// Waits for the next frame. Cancelling loses nothing.
    pub async fn frame(&mut self) -> Result<Bytes, Ending> {
        poll_fn(|cx| self.poll_frame(cx)).await
    }

    /// Whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.lane.lock().queue.is_empty()
    }

    /// Waits for the ending of this direction, whatever waits in it still. Cancelling loses nothing.
    pub async fn ended(&mut self) -> Ending {
        poll_fn(|cx| {
            let mut state = self.lane.lock();
            match state.ending {
                Some(ending) => Poll::Ready(ending),
                None => {
                    register(&mut state.receiver, cx);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Ends this direction and drops what waits in it.
    pub fn close(&mut self, ending: Ending) {
        let mut state = self.lane.lock();
        state.end(ending);
        state.queue = VecDeque::new();
        state.bytes = 0;
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.close(self.gone);
    }
}

#[derive(Debug)]
struct Lane {
    room: Room,
    state: Mutex<State>,
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Bytes>,
    bytes: usize,
    ending: Option<Ending>,
    /// Set while the sender waits for room.
    sender: Option<Waker>,
    /// Set while the receiver waits for a frame.
    receiver: Option<Waker>,
}

impl State {
    /// Whether there is room for a frame. An empty lane has room for any.
    fn fits(&self, room: Room) -> bool {
        self.queue.is_empty() || self.queue.len() < room.frames && self.bytes < room.bytes
    }

    fn pop(&mut self, room: Room) -> Option<Bytes> {
        let frame = self.queue.pop_front()?;
        self.bytes -= frame.len();
        if self.queue.is_empty() && self.queue.capacity() > IDLE_CAPACITY {
            self.queue = VecDeque::new();
        }
        if self.fits(room.reduced())
            && let Some(sender) = self.sender.take()
        {
            sender.wake();
        }
        Some(frame)
    }

    fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
        self.wake_receiver();
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    fn wake_receiver(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            receiver.wake();
        }
    }
}

fn register(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}
