//! Circuits: bounded frame queues between one harness websocket and one executor websocket.
//!
//! A circuit has two ends, each of which sends and receives. Both ends may be in one process, or a
//! task may bridge two circuits on different nodes; the ends cannot distinguish this.
//! Invariant: all frames sent before the close arrive unchanged and in order, unless the receiving
//! end itself closed.
//! A [`CircuitDialer`] opens circuits to executors on any node.
//! Elsewhere: assigning frames to circuits (`executor_table`), websockets (`rendezvous`).

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    metrics::ClusterGauges,
    store::{EnvironmentId, NodeName, RegistrationId, Store},
};

/// One end of a circuit. Dropping it closes the circuit.
#[derive(Debug)]
pub struct Circuit {
    /// Frames to the other end.
    pub sender: FrameSender,
    /// Frames from the other end.
    pub receiver: FrameReceiver,
}

impl Circuit {
    /// Creates a circuit and returns the harness's end, which sends into `to_executor`, and the
    /// executor's end, which sends into `to_harness`.
    pub fn pair(to_executor: QueueLimits, to_harness: QueueLimits) -> (Self, Self) {
        use CloseReason::{ExecutorGone, HarnessGone};
        let (to_executor, from_harness) = frame_queue(to_executor, HarnessGone, ExecutorGone);
        let (to_harness, from_executor) = frame_queue(to_harness, ExecutorGone, HarnessGone);
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
    pub fn close(&mut self, close_reason: CloseReason) {
        self.sender.close(close_reason);
        self.receiver.close(close_reason);
    }
}

/// Why a circuit closed. The first reason given is kept.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CloseReason {
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

impl CloseReason {
    /// Returns the metric label, and the close code and reason that the harness's websocket sends.
    pub(crate) const fn describe(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::HarnessGone => ("harness_gone", 1000, "harness is gone"),
            Self::Refused => ("refused", 1008, "harness broke the rules of the relay"),
            Self::Stalled => ("stalled", 1008, "harness took nothing for too long"),
            Self::Moved => ("moved", 1000, "streams moved to another connection"),
            // 1012, service restart: the harness reconnects with a new grant.
            Self::ExecutorGone => ("executor_gone", 1012, "executor is gone"),
            Self::Replaced => ("replaced", 1012, "executor was replaced"),
            Self::Unreachable => ("unreachable", 1012, "connection between nodes was lost"),
            Self::Stopping => ("stopping", 1012, "hub is stopping"),
        }
    }
}

/// Queue capacity kept while empty, in frames: an idle circuit uses almost no memory.
const IDLE_CAPACITY: usize = 32;

/// Limits of one direction of a circuit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueLimits {
    /// Frames.
    pub frames: usize,
    /// Bytes of all frames together.
    pub bytes: usize,
}

impl QueueLimits {
    /// Returns the limits below which a blocked sender resumes.
    const fn resume_threshold(self) -> Self {
        Self {
            frames: self.frames - self.frames / 16,
            bytes: self.bytes - self.bytes / 16,
        }
    }
}

/// Creates one direction, with the close reasons for when either half is dropped.
fn frame_queue(
    capacity: QueueLimits,
    sender_gone: CloseReason,
    receiver_gone: CloseReason,
) -> (FrameSender, FrameReceiver) {
    let frame_queue = Arc::new(FrameQueue {
        capacity,
        state: Mutex::default(),
    });
    let sender = FrameSender {
        frame_queue: Arc::clone(&frame_queue),
        drop_reason: sender_gone,
    };
    let receiver = FrameReceiver {
        frame_queue,
        drop_reason: receiver_gone,
    };
    (sender, receiver)
}

/// Sending half of one direction.
#[derive(Debug)]
pub struct FrameSender {
    frame_queue: Arc<FrameQueue>,
    drop_reason: CloseReason,
}

impl FrameSender {
    /// Enqueues a frame. Accepts it even when the queue is full: the limit holds only if the caller
    /// checks [`Self::poll_ready`] first.
    pub fn push(&mut self, frame: Bytes) -> Result<(), CloseReason> {
        let mut state = self.frame_queue.lock();
        if let Some(close_reason) = state.close_reason {
            return Err(close_reason);
        }
        state.bytes += frame.len();
        state.queue.push_back(frame);
        state.wake_receiver();
        Ok(())
    }

    /// Resolves when the queue accepts another frame. After blocking, it waits until a sixteenth of
    /// the queue is free, so that a full queue costs one wake-up for many frames.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        let mut state = self.frame_queue.lock();
        if let Some(close_reason) = state.close_reason {
            return Poll::Ready(Err(close_reason));
        }
        let capacity = self.frame_queue.capacity;
        if state.sender.is_none() && state.fits(capacity) || state.fits(capacity.resume_threshold())
        {
            state.sender = None;
            return Poll::Ready(Ok(()));
        }
        register(&mut state.sender, cx);
        Poll::Pending
    }

    /// Waits for capacity and enqueues the frame. Cancelling leaves it unsent.
    pub async fn send(&mut self, frame: Bytes) -> Result<(), CloseReason> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        self.push(frame)
    }

    /// Closes this direction. The receiver still gets frames sent before.
    pub fn close(&mut self, close_reason: CloseReason) {
        self.frame_queue.lock().end(close_reason);
    }
}

impl Drop for FrameSender {
    fn drop(&mut self) {
        self.close(self.drop_reason);
    }
}

/// Receiving half of one direction.
#[derive(Debug)]
pub struct FrameReceiver {
    frame_queue: Arc<FrameQueue>,
    drop_reason: CloseReason,
}

impl FrameReceiver {
    /// Returns the next frame, or the close reason once the queue is drained.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, CloseReason>> {
        let mut state = self.frame_queue.lock();
        if let Some(frame) = state.pop(self.frame_queue.capacity) {
            return Poll::Ready(Ok(frame));
        }
        if let Some(close_reason) = state.close_reason {
            return Poll::Ready(Err(close_reason));
        }
        register(&mut state.receiver, cx);
        Poll::Pending
    }

    /// Returns the next frame if one is queued.
    pub fn try_frame(&mut self) -> Option<Bytes> {
        self.frame_queue.lock().pop(self.frame_queue.capacity)
    }

    /// Waits for the next frame. Cancel-safe.
    pub async fn frame(&mut self) -> Result<Bytes, CloseReason> {
        poll_fn(|cx| self.poll_frame(cx)).await
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.frame_queue.lock().queue.is_empty()
    }

    /// Waits until this direction is closed, even with frames still queued. Cancel-safe.
    pub async fn closed(&mut self) -> CloseReason {
        poll_fn(|cx| {
            let mut state = self.frame_queue.lock();
            match state.close_reason {
                Some(close_reason) => Poll::Ready(close_reason),
                None => {
                    register(&mut state.receiver, cx);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Closes this direction and drops queued frames.
    pub fn close(&mut self, close_reason: CloseReason) {
        let mut state = self.frame_queue.lock();
        state.end(close_reason);
        state.queue = VecDeque::new();
        state.bytes = 0;
    }
}

impl Drop for FrameReceiver {
    fn drop(&mut self) {
        self.close(self.drop_reason);
    }
}

#[derive(Debug)]
struct FrameQueue {
    capacity: QueueLimits,
    state: Mutex<FrameQueueState>,
}

impl FrameQueue {
    fn lock(&self) -> MutexGuard<'_, FrameQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct FrameQueueState {
    queue: VecDeque<Bytes>,
    bytes: usize,
    close_reason: Option<CloseReason>,
    /// Set while the sender waits for capacity.
    sender: Option<Waker>,
    /// Set while the receiver waits for a frame.
    receiver: Option<Waker>,
}

impl FrameQueueState {
    /// Returns whether another frame fits. An empty queue accepts any frame.
    fn fits(&self, capacity: QueueLimits) -> bool {
        self.queue.is_empty() || self.queue.len() < capacity.frames && self.bytes < capacity.bytes
    }

    fn pop(&mut self, capacity: QueueLimits) -> Option<Bytes> {
        let frame = self.queue.pop_front()?;
        self.bytes -= frame.len();
        if self.queue.is_empty() && self.queue.capacity() > IDLE_CAPACITY {
            self.queue = VecDeque::new();
        }
        if self.fits(capacity.resume_threshold())
            && let Some(sender) = self.sender.take()
        {
            sender.wake();
        }
        Some(frame)
    }

    fn end(&mut self, close_reason: CloseReason) {
        self.close_reason.get_or_insert(close_reason);
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

/// Opens circuits to executors.
///
/// The [`ExecutorTable`](crate::executor_table::ExecutorTable) does so for this process; in a
/// cluster, a [`ClusterNode`] wraps it and also reaches other nodes.
pub trait CircuitDialer: fmt::Debug + Send + Sync {
    /// Opens a circuit to the executor of a registration and returns the harness's end. Dropping
    /// the future leaves no circuit behind.
    fn dial(&self, dial: DialRequest) -> BoxFuture<'_, Result<Circuit, DialError>>;

    /// Closes executor websockets of an environment, on any node, with a registration other than
    /// the current one in `store`. Their harnesses reconnect.
    ///
    /// A late call is harmless: it does not touch newer registrations.
    fn supersede<'a>(
        &'a self,
        environment: EnvironmentId,
        store: &'a dyn Store,
    ) -> BoxFuture<'a, ()>;
}

/// Membership of a hub in a cluster.
pub trait ClusterNode: CircuitDialer {
    /// Returns the store that the nodes share.
    fn store(&self) -> Arc<dyn Store>;

    /// Returns the name of this process in the cluster, as used in presence records.
    fn name(&self) -> &NodeName;

    /// Returns whether this node can serve new connections.
    fn is_connected(&self) -> bool;

    /// Returns the numbers for the metrics.
    fn gauges(&self) -> ClusterGauges;

    /// Closes the circuits to other nodes and announces the shutdown.
    fn leave(&self) -> BoxFuture<'_, ()>;
}

/// A request to connect a harness. Its URL has been verified.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DialRequest {
    /// The environment.
    pub environment: EnvironmentId,
    /// The registration in the harness's URL.
    pub registration: RegistrationId,
    /// Identifies the harness.
    pub harness: HarnessTag,
}

/// Why no circuit was opened.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// Peer: no executor of that registration is connected. The harness asks the registry again.
    #[error("executor is not connected")]
    Offline,
    /// Peer: the executor has its maximum number of harnesses.
    #[error("too many harnesses are connected to this executor")]
    Busy,
    /// Host: the executor's node is unreachable at the moment.
    #[error("node of the executor is unreachable")]
    Unreachable,
}

/// Distinguishes the websockets of one harness key from those of another.
///
/// Derived from the key and a secret of the hub, so it reveals nothing about the key. Only the same
/// harness may resume a stream on another websocket.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct HarnessTag([u8; Self::LEN]);

impl HarnessTag {
    /// Bytes in a tag, enough to make collisions improbable.
    pub const LEN: usize = 16;

    /// Creates a tag from bytes that depend on the harness key.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for HarnessTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for HarnessTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HarnessTag({self})")
    }
}

/// Caller: the text is not a tag of 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected {} hexadecimal digits", HarnessTag::LEN * 2)]
pub struct HarnessTagError;

impl FromStr for HarnessTag {
    type Err = HarnessTagError;

    fn from_str(text: &str) -> Result<Self, HarnessTagError> {
        let bytes = HEXLOWER.decode(text.as_bytes());
        let bytes = bytes.map_err(|_| HarnessTagError)?;
        bytes.try_into().map(Self).map_err(|_| HarnessTagError)
    }
}

impl Serialize for HarnessTag {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HarnessTag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}
