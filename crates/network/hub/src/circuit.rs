//! Circuits: the bounded way of frames between one harness socket and one executor socket.
//!
//! A circuit has two ends, and each end sends and receives. The ends may sit in one process, or a
//! task may carry frames between two circuits on different machines; neither end can tell.
//! Invariant: frames arrive unchanged, in order, and all of those sent before the ending, unless
//! the receiving end itself gave up.
//! Not here: which frame belongs to which circuit (`switch`), sockets (`rendezvous`).

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

/// One end of a circuit. Dropping it ends the circuit.
#[derive(Debug)]
pub struct Circuit {
    /// Frames to the other end.
    pub sender: Sender,
    /// Frames from the other end.
    pub receiver: Receiver,
}

impl Circuit {
    /// Makes a circuit: the harness's end, which sends into `to_executor`, and the executor's,
    /// which sends into `to_harness`.
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

    /// Ends the circuit both ways. The other end still receives what was sent before.
    pub fn close(&mut self, ending: Ending) {
        self.sender.close(ending);
        self.receiver.close(ending);
    }
}

/// Why a circuit ended. The first reason given stays.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ending {
    /// The harness's socket ended.
    HarnessGone,
    /// The executor's socket ended.
    ExecutorGone,
    /// Another socket or another registration took the executor's place.
    Replaced,
    /// The harness broke a rule of the relay.
    Refused,
    /// The harness took nothing for too long while frames waited for it.
    Stalled,
    /// The harness continued its streams on another socket.
    Moved,
    /// The nodes at the two ends have lost each other, or a frame between them.
    Unreachable,
    /// The hub stops.
    Stopping,
}

impl Ending {
    /// Returns the websocket close code that a harness is given.
    pub const fn close_code(self) -> u16 {
        match self {
            // 1012, service restart: come back, with a new ticket.
            Self::ExecutorGone | Self::Replaced | Self::Unreachable | Self::Stopping => 1012,
            Self::Refused | Self::Stalled => 1008,
            Self::HarnessGone | Self::Moved => 1000,
        }
    }
}

impl Ending {
    /// Returns a short name, for metrics.
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

    /// Returns the reason, for people.
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
