//! Circuits: bounded frame queues between one harness websocket and one executor websocket.
//!
//! A circuit has two ends, each of which sends and receives. Both ends may be in one process, or a
//! task may bridge two circuits on different nodes; the ends cannot distinguish this.
//! Invariant: all frames sent before the close arrive unchanged and in order, unless the receiving
//! end itself closed.
//! Elsewhere: assigning frames to circuits (`executor_table`), websockets (`rendezvous`).

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One end of a circuit. Dropping it closes the circuit.
#[derive(Debug)]
pub struct Circuit {
    /// Frames to the other end.
    pub sender: Sender,
    /// Frames from the other end.
    pub receiver: Receiver,
}

impl Circuit {
    /// Creates a circuit and returns the harness's end, which sends into `to_executor`, and the
    /// executor's end, which sends into `to_harness`.
    pub fn pair(to_executor: Room, to_harness: Room) -> (Self, Self) {
        use Ending::{ExecutorGone, HarnessGone};
        let (to_executor, from_harness) = lane(to_executor, HarnessGone, ExecutorGone);
        let (to_harness, from_executor) = lane(to_harness, ExecutorGone, HarnessGone);
        let harness = Self {
            sender: to_executor,
            receiver: from_executor,
        };
        let executor = Self {
            sender: to_harness,
            receiver: from_harness,
        };
        (harness, executor)
    }

    /// Closes both directions. The other end still receives frames sent before.
    pub fn close(&mut self, ending: Ending) {
        self.sender.close(ending);
        self.receiver.close(ending);
    }
}

/// Why a circuit closed. The first reason given is kept.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ending {
    /// The harness's websocket ended.
    HarnessGone,
    /// The executor's websocket ended.
    ExecutorGone,
    /// Another websocket or registration replaced the executor.
    Replaced,
    /// The harness violated the relay protocol.
    Refused,
    /// The harness read nothing for too long while frames were queued.
    Stalled,
    /// The harness resumed its streams on another websocket.
    Moved,
    /// The nodes at the two ends lost contact, or lost a frame.
    Unreachable,
    /// The hub is shutting down.
    Stopping,
}

impl Ending {
    /// Returns the websocket close code sent to the harness.
    pub const fn close_code(self) -> u16 {
        match self {
            // 1012, service restart: the harness reconnects with a new grant.
            Self::ExecutorGone | Self::Replaced | Self::Unreachable | Self::Stopping => 1012,
            Self::Refused | Self::Stalled => 1008,
            Self::HarnessGone | Self::Moved => 1000,
        }
    }
}

impl Ending {
    /// Returns the metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HarnessGone => "harness_gone",
            Self::ExecutorGone => "executor_gone",
            Self::Replaced => "replaced",
            Self::Refused => "refused",
            Self::Stalled => "stalled",
            Self::Moved => "moved",
            Self::Unreachable => "unreachable",
            Self::Stopping => "stopping",
        }
    }

    /// Returns the human-readable reason.
    pub const fn text(self) -> &'static str {
        match self {
            Self::HarnessGone => "harness is gone",
            Self::ExecutorGone => "executor is gone",
            Self::Replaced => "executor was replaced",
            Self::Refused => "harness broke the rules of the relay",
            Self::Stalled => "harness took nothing for too long",
            Self::Moved => "streams moved to another connection",
            Self::Unreachable => "connection between nodes was lost",
            Self::Stopping => "hub is stopping",
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Queue capacity kept while empty, in frames: an idle circuit uses almost no memory.
const IDLE_CAPACITY: usize = 32;

/// Limits of one direction of a circuit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    /// Frames.
    pub frames: usize,
    /// Bytes of all frames together.
    pub bytes: usize,
}

impl Room {
    /// Returns the limits below which a blocked sender resumes.
    const fn reduced(self) -> Self {
        Self {
            frames: self.frames - self.frames / 16,
            bytes: self.bytes - self.bytes / 16,
        }
    }
}

/// Creates one direction, with the close reasons for when either half is dropped.
fn lane(room: Room, sender_gone: Ending, receiver_gone: Ending) -> (Sender, Receiver) {
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

/// Sending half of one direction.
#[derive(Debug)]
pub struct Sender {
    lane: Arc<Lane>,
    gone: Ending,
}

impl Sender {
    /// Enqueues a frame. Accepts it even when the queue is full: the limit holds only if the caller
    /// checks [`Self::poll_ready`] first.
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

    /// Resolves when the queue accepts another frame. After blocking, it waits until a sixteenth of
    /// the queue is free, so that a full queue costs one wake-up for many frames.
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

    /// Waits for capacity and enqueues the frame. Cancelling leaves it unsent.
    pub async fn send(&mut self, frame: Bytes) -> Result<(), Ending> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        self.push(frame)
    }

    /// Closes this direction. The receiver still gets frames sent before.
    pub fn close(&mut self, ending: Ending) {
        self.lane.lock().end(ending);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.close(self.gone);
    }
}

/// Receiving half of one direction.
#[derive(Debug)]
pub struct Receiver {
    lane: Arc<Lane>,
    gone: Ending,
}

impl Receiver {
    /// Returns the next frame, or the close reason once the queue is drained.
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

    /// Returns the next frame if one is queued.
    pub fn try_frame(&mut self) -> Option<Bytes> {
        self.lane.lock().pop(self.lane.room)
    }

    /// Waits for the next frame. Cancel-safe.
    pub async fn frame(&mut self) -> Result<Bytes, Ending> {
        poll_fn(|cx| self.poll_frame(cx)).await
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.lane.lock().queue.is_empty()
    }

    /// Waits until this direction is closed, even with frames still queued. Cancel-safe.
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

    /// Closes this direction and drops queued frames.
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
    /// Set while the sender waits for capacity.
    sender: Option<Waker>,
    /// Set while the receiver waits for a frame.
    receiver: Option<Waker>,
}

impl State {
    /// Returns whether another frame fits. An empty queue accepts any frame.
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
