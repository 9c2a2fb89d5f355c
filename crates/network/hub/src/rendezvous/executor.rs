//! Task of an executor websocket: forwards its frames to circuits, and frames of circuits to it.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use bytes::Bytes;
use exec_relay::frame::{FrameBody, FrameRoute, RelayFrame, StreamId};
use exec_transport::websocket::socket::{BinarySocket, RawMessage};
use futures_util::task::AtomicWaker;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep_until},
};

use super::{WebSocketClose, flush};
use crate::{
    circuit::{Circuit, CloseReason},
    executor_table::{
        CircuitId, ExecutorFrameAction, HarnessFrameAction, NewCircuit, StreamDemux,
        TableAttachment,
    },
    limits,
    metrics::{FrameBatch, HubMetrics},
};

/// Reset reason sent to an executor when the harness of a stream disconnects.
const DISCONNECTED: &str = "harness_disconnected";
/// Reset reason sent to a harness when the hub refuses its stream.
const REFUSED: &str = "relay_limit";

/// Forwards frames until the websocket ends or is evicted from the table, and returns why. All its
/// circuits close with it.
pub(super) async fn relay(
    socket: &mut BinarySocket,
    attachment: &mut TableAttachment,
    metrics: &HubMetrics,
) -> WebSocketClose {
    let mut relay = ExecutorRelay {
        socket,
        attachment,
        demux: StreamDemux::default(),
        circuits: HashMap::new(),
        ready: Arc::default(),
        blocked: None,
        stall: None,
        metrics,
    };
    let close_cause = poll_fn(|cx| relay.poll(cx)).await;
    relay.end(close_cause);
    close_cause
}

struct ExecutorRelay<'a> {
    socket: &'a mut BinarySocket,
    attachment: &'a mut TableAttachment,
    demux: StreamDemux,
    circuits: HashMap<CircuitId, RelayCircuit>,
    ready: Arc<CircuitReadyQueue>,
    blocked: Option<BlockedFrame>,
    stall: Option<StallTracker>,
    metrics: &'a HubMetrics,
}

/// A circuit.
struct RelayCircuit {
    circuit: Circuit,
    wake_flag: Arc<CircuitWaker>,
    /// Waker form of `wake_flag`, for polling the receiver.
    waker: Waker,
    _slot: OwnedSemaphorePermit,
}

/// A frame that its circuit cannot accept yet. Backpressure: the executor is not read until it can.
struct BlockedFrame {
    to: ExecutorFrameAction,
    id: CircuitId,
    frame: Bytes,
    /// When to check the progress.
    deadline: Pin<Box<Sleep>>,
}

impl ExecutorRelay<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WebSocketClose> {
        if let Poll::Ready(evicted) = Pin::new(&mut self.attachment.evicted).poll(cx) {
            return Poll::Ready(evicted.unwrap_or(CloseReason::Stopping).into());
        }
        match self.make_progress(cx) {
            Ok(()) => Poll::Pending,
            Err(close_cause) => Poll::Ready(close_cause),
        }
    }

    /// Makes all possible progress; everything blocked has registered `cx`.
    fn make_progress(&mut self, cx: &mut Context<'_>) -> Result<(), WebSocketClose> {
        for _ in 0..limits::ROUNDS {
            self.accept_circuits(cx);
            let more_to_read = self.read(cx)?;
            let more_to_write = self.write_frames(cx);
            // If the socket's buffer was full, continue once it has been flushed.
            let flushed = flush(&mut self.socket.writer, cx)?;
            if !(more_to_read || more_to_write && flushed) {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Accepts new circuits.
    fn accept_circuits(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(arrival)) = self.attachment.arrivals.poll_recv(cx) {
            let NewCircuit {
                circuit,
                harness,
                slot,
            } = arrival;
            let id = self.demux.admit(harness);
            let (wake_flag, waker) = CircuitWaker::new(id, &self.ready);
            let circuit = RelayCircuit {
                circuit,
                wake_flag,
                waker,
                _slot: slot,
            };
            self.circuits.insert(id, circuit);
        }
    }

    /// Reads from the websocket. Returns whether there may be more.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, WebSocketClose> {
        for _ in 0..limits::ROUND_FRAMES {
            if !self.unblock(cx) {
                return Ok(false);
            }
            let Poll::Ready(message) = self.socket.reader.poll_message(cx) else {
                return Ok(false);
            };
            match message.map_err(|error| WebSocketClose::from_read_error(&error))? {
                None => return Err(WebSocketClose::Peer),
                Some(RawMessage::Text) => self.metrics.garbage.increment(),
                Some(RawMessage::Binary(frame)) => self.deliver(frame, cx),
            }
        }
        Ok(true)
    }

    /// Forwards a frame of the executor to its circuit, or holds it until the circuit accepts it.
    fn deliver(&mut self, frame: Bytes, cx: &mut Context<'_>) {
        let Ok(route) = FrameRoute::peek(&frame) else {
            self.metrics.garbage.increment();
            return;
        };
        if let Some(stall) = &mut self.stall {
            stall.add(frame.len());
        }
        let to = self.demux.route_from_executor(&route, Instant::now());
        let (ExecutorFrameAction::Forward(id) | ExecutorFrameAction::ForwardAndRefuse(id)) = to
        else {
            self.metrics.unknown.increment();
            return;
        };
        let Some(circuit) = self.circuits.get_mut(&id) else {
            return;
        };
        match circuit.circuit.sender.poll_ready(cx) {
            Poll::Ready(_) => self.push(to, id, frame),
            Poll::Pending => {
                let stall = self.stall.get_or_insert_with(StallTracker::start);
                stall.block_again();
                self.blocked = Some(BlockedFrame {
                    to,
                    id,
                    frame,
                    deadline: Box::pin(sleep_until(stall.deadline())),
                });
            }
        }
    }

    fn push(&mut self, to: ExecutorFrameAction, id: CircuitId, frame: Bytes) {
        if let Some(circuit) = self.circuits.get_mut(&id) {
            // A closed circuit is noticed when it is read.
            let _ended = circuit.circuit.sender.push(frame);
        }
        if matches!(to, ExecutorFrameAction::ForwardAndRefuse(_)) {
            self.close(id, CloseReason::Refused);
        }
    }

    /// Retries the held frame. Returns whether the executor may be read.
    fn unblock(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(blocked) = &mut self.blocked else {
            return true;
        };
        let id = blocked.id;
        if let Some(circuit) = self.circuits.get_mut(&id)
            && circuit.circuit.sender.poll_ready(cx).is_pending()
        {
            while blocked.deadline.as_mut().poll(cx).is_ready() {
                if self.stall.take().is_none_or(|stall| stall.is_too_slow()) {
                    self.blocked = None;
                    self.close(id, CloseReason::Stalled);
                    return true;
                }
                let stall = self.stall.insert(StallTracker::start());
                blocked.deadline.as_mut().reset(stall.deadline());
            }
            return false;
        }
        if let Some(BlockedFrame { to, frame, .. }) = self.blocked.take() {
            self.push(to, id, frame);
        }
        if let Some(stall) = &mut self.stall {
            stall.resume();
        }
        true
    }

    /// Takes frames from the circuits. Returns whether there may be more.
    fn write_frames(&mut self, cx: &mut Context<'_>) -> bool {
        let mut forwarded = FrameBatch::default();
        let mut remaining = limits::ROUND_FRAMES;
        let more = loop {
            if remaining == 0 || self.socket.writer.buffered() >= limits::WRITE_AHEAD_BYTES {
                break true;
            }
            let Some(id) = self.ready.poll_next(cx) else {
                break false;
            };
            remaining = remaining.saturating_sub(self.serve(id, cx, &mut forwarded));
        };
        self.metrics.to_executor.add(forwarded);
        more
    }

    /// Serves one circuit for its share. Returns the number of frames taken.
    fn serve(&mut self, id: CircuitId, cx: &mut Context<'_>, forwarded: &mut FrameBatch) -> usize {
        for count in 0..limits::SHARE_FRAMES {
            let Some(circuit) = self.circuits.get_mut(&id) else {
                return count;
            };
            if count == 0 {
                circuit.wake_flag.reset();
            }
            let mut circuit_cx = Context::from_waker(&circuit.waker);
            match circuit.circuit.receiver.poll_frame(&mut circuit_cx) {
                Poll::Pending => return count,
                Poll::Ready(Ok(frame)) => self.forward(id, frame, cx, forwarded),
                Poll::Ready(Err(close_reason)) => {
                    self.close(id, close_reason);
                    return count;
                }
            }
        }
        if let Some(circuit) = self.circuits.get(&id) {
            circuit.wake_flag.wake_by_ref();
        }
        limits::SHARE_FRAMES
    }

    /// Forwards or drops a frame of a harness.
    fn forward(
        &mut self,
        id: CircuitId,
        frame: Bytes,
        cx: &mut Context<'_>,
        forwarded: &mut FrameBatch,
    ) {
        let Ok(route) = FrameRoute::peek(&frame) else {
            // Our harness task would have closed the websocket, but another node may forward
            // anything.
            self.metrics.garbage.increment();
            return;
        };
        match self.demux.route_from_harness(id, &route, Instant::now()) {
            HarnessFrameAction::Forward => {}
            HarnessFrameAction::ForwardAndClose(other) => self.close(other, CloseReason::Moved),
            HarnessFrameAction::Foreign => return self.metrics.foreign.increment(),
            HarnessFrameAction::Reset => {
                self.metrics.refused_streams.increment();
                // Best effort: a harness that does not read is not waited for.
                if let Some(circuit) = self.circuits.get_mut(&id)
                    && circuit.circuit.sender.poll_ready(cx).is_ready()
                    && let Some(reset) = reset(route.stream_id, REFUSED)
                {
                    let _ended = circuit.circuit.sender.push(reset);
                }
                return;
            }
        }
        forwarded.add(frame.len());
        self.socket.writer.push(frame);
    }

    /// Closes a circuit and resets its streams at the executor.
    fn close(&mut self, id: CircuitId, close_reason: CloseReason) {
        if let Some(mut circuit) = self.circuits.remove(&id) {
            circuit.circuit.close(close_reason);
        }
        for stream in self.demux.remove(id) {
            self.metrics.lost_streams.increment();
            if let Some(reset) = reset(&stream, DISCONNECTED) {
                self.socket.writer.push(reset);
            }
        }
    }

    /// Closes all circuits, because the executor is gone.
    fn end(&mut self, close_cause: WebSocketClose) {
        let close_reason = if let WebSocketClose::Circuit(close_reason) = close_cause {
            close_reason
        } else {
            CloseReason::ExecutorGone
        };
        for circuit in self.circuits.values_mut() {
            circuit.circuit.close(close_reason);
        }
    }
}

fn reset(stream_id: &str, reason: &str) -> Option<Bytes> {
    let reason = reason.into();
    Some(RelayFrame::new(StreamId::new(stream_id).ok()?, FrameBody::Reset { reason }).encode())
}

/// Progress of reading while harnesses block the executor, with or without short breaks.
#[derive(Debug)]
pub(super) struct StallTracker {
    since: tokio::time::Instant,
    bytes: usize,
    /// When reading resumed.
    resumed: Option<tokio::time::Instant>,
}

impl StallTracker {
    /// Starts when the executor becomes blocked.
    pub(super) fn start() -> Self {
        Self {
            since: tokio::time::Instant::now(),
            bytes: 0,
            resumed: None,
        }
    }

    /// Counts bytes read.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Records that the executor is read again.
    pub(super) fn resume(&mut self) {
        self.resumed = Some(tokio::time::Instant::now());
    }

    /// Records that the executor is blocked again.
    pub(super) fn block_again(&mut self) {
        if let Some(resumed) = self.resumed.take()
            && resumed.elapsed() >= limits::CAUGHT_UP
        {
            *self = Self::start();
        }
    }

    /// Returns whether too little was read by the deadline.
    pub(super) fn is_too_slow(&self) -> bool {
        self.bytes < limits::STALL_BYTES
    }

    /// Returns when to check the progress.
    pub(super) fn deadline(&self) -> tokio::time::Instant {
        self.since + limits::STALL
    }
}

/// Queue of circuits that are ready to be read.
#[derive(Debug, Default)]
pub(super) struct CircuitReadyQueue {
    ids: Mutex<VecDeque<CircuitId>>,
    task: AtomicWaker,
}

impl CircuitReadyQueue {
    /// Returns the next ready circuit, or registers `cx`.
    pub(super) fn poll_next(&self, cx: &Context<'_>) -> Option<CircuitId> {
        if let Some(id) = self.pop() {
            return Some(id);
        }
        self.task.register(cx.waker());
        // Check again: a circuit may have become ready before the waker was registered.
        self.pop()
    }

    fn pop(&self) -> Option<CircuitId> {
        self.ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }
}

/// Waker of one circuit: enqueues the circuit and wakes the task of the executor websocket.
#[derive(Debug)]
pub(super) struct CircuitWaker {
    id: CircuitId,
    list: Arc<CircuitReadyQueue>,
    is_queued: AtomicBool,
}

impl CircuitWaker {
    /// Creates the waker of a circuit. The new circuit is enqueued at once.
    pub(super) fn new(id: CircuitId, list: &Arc<CircuitReadyQueue>) -> (Arc<Self>, Waker) {
        let wake_flag = Arc::new(Self {
            id,
            list: Arc::clone(list),
            is_queued: AtomicBool::new(false),
        });
        wake_flag.wake_by_ref();
        let waker = Waker::from(Arc::clone(&wake_flag));
        (wake_flag, waker)
    }

    /// Allows the circuit to be enqueued again. Called before polling it, so that no wake-up is
    /// lost.
    pub(super) fn reset(&self) {
        self.is_queued.store(false, Ordering::Release);
    }
}

impl Wake for CircuitWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        self.list
            .ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(self.id);
        self.list.task.wake();
    }
}
