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
use exec_relay::{
    frame::{Body, Frame, StreamId},
    route::Route,
};
use exec_transport::websocket::socket::{Raw, Socket};
use futures_util::task::AtomicWaker;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep_until},
};

use super::{Farewell, Flush, flush};
use crate::{
    circuit::{Circuit, Ending},
    executor_table::{Arrival, Attachment, CircuitId, Delivery, Port, Verdict},
    limits,
    metrics::{Metrics, Moved},
};

/// Reset reason sent to an executor when the harness of a stream disconnects.
const DISCONNECTED: &str = "harness_disconnected";
/// Reset reason sent to a harness when the hub refuses its stream.
const REFUSED: &str = "relay_limit";

/// Forwards frames until the websocket ends or is evicted from the table, and returns why. All its
/// circuits close with it.
pub(super) async fn relay(
    socket: &mut Socket,
    attachment: &mut Attachment,
    metrics: &Metrics,
) -> Farewell {
    let mut relay = Relay {
        socket,
        attachment,
        port: Port::new(Instant::now()),
        lines: HashMap::new(),
        ready: Arc::default(),
        blocked: None,
        behind: None,
        metrics,
    };
    let farewell = poll_fn(|cx| relay.poll(cx)).await;
    relay.end(farewell);
    farewell
}

struct Relay<'a> {
    socket: &'a mut Socket,
    attachment: &'a mut Attachment,
    port: Port,
    lines: HashMap<CircuitId, Line>,
    ready: Arc<ReadyList>,
    blocked: Option<Blocked>,
    behind: Option<Behind>,
    metrics: &'a Metrics,
}

/// A circuit.
struct Line {
    circuit: Circuit,
    bell: Arc<Bell>,
    /// Waker form of `bell`, for polling the receiver.
    waker: Waker,
    _slot: OwnedSemaphorePermit,
}

/// A frame that its circuit cannot accept yet. Backpressure: the executor is not read until it can.
struct Blocked {
    to: Delivery,
    id: CircuitId,
    frame: Bytes,
    /// When to check the progress.
    deadline: Pin<Box<Sleep>>,
}

impl Relay<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Farewell> {
        if let Poll::Ready(evicted) = Pin::new(&mut self.attachment.evicted).poll(cx) {
            return Poll::Ready(evicted.unwrap_or(Ending::Stopping).into());
        }
        match self.turn(cx) {
            Ok(()) => Poll::Pending,
            Err(farewell) => Poll::Ready(farewell),
        }
    }

    /// Makes all possible progress; everything blocked has registered `cx`.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<(), Farewell> {
        for _ in 0..limits::TURNS {
            self.welcome(cx);
            let read = self.read(cx)?;
            let taken = self.take(cx);
            // If the socket's buffer was full, continue once it has been flushed.
            let flushed = flush(&mut self.socket.writer, cx)? == Flush::Done;
            if !(read || taken && flushed) {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Accepts new circuits.
    fn welcome(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(arrival)) = self.attachment.arrivals.poll_recv(cx) {
            let Arrival {
                circuit,
                harness,
                slot,
            } = arrival;
            let id = self.port.admit(harness);
            let (bell, waker) = Bell::new(id, &self.ready);
            let line = Line {
                circuit,
                bell,
                waker,
                _slot: slot,
            };
            self.lines.insert(id, line);
        }
    }

    /// Reads from the websocket. Returns whether there may be more.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Farewell> {
        for _ in 0..limits::TURN_FRAMES {
            if !self.unblock(cx) {
                return Ok(false);
            }
            let Poll::Ready(message) = self.socket.reader.poll_message(cx) else {
                return Ok(false);
            };
            match message.map_err(|error| Farewell::unreadable(&error))? {
                None => return Err(Farewell::Peer),
                Some(Raw::Text) => self.metrics.garbage.increment(1),
                Some(Raw::Binary(frame)) => self.deliver(frame, cx),
            }
        }
        Ok(true)
    }

    /// Forwards a frame of the executor to its circuit, or holds it until the circuit accepts it.
    fn deliver(&mut self, frame: Bytes, cx: &mut Context<'_>) {
        let Ok(route) = Route::peek(&frame) else {
            self.metrics.garbage.increment(1);
            return;
        };
        if let Some(behind) = &mut self.behind {
            behind.add(frame.len());
        }
        let to = self.port.deliver(&route, Instant::now());
        let (Delivery::Forward(id) | Delivery::ForwardAndRefuse(id)) = to else {
            self.metrics.unknown.increment(1);
            return;
        };
        let Some(line) = self.lines.get_mut(&id) else {
            return;
        };
        match line.circuit.sender.poll_ready(cx) {
            Poll::Ready(_) => self.push(to, id, frame),
            Poll::Pending => {
                let behind = self.behind.get_or_insert_with(Behind::begin);
                behind.go_on();
                self.blocked = Some(Blocked {
                    to,
                    id,
                    frame,
                    deadline: Box::pin(sleep_until(behind.deadline())),
                });
            }
        }
    }

    fn push(&mut self, to: Delivery, id: CircuitId, frame: Bytes) {
        if let Some(line) = self.lines.get_mut(&id) {
            // A closed circuit is noticed when it is read.
            let _ended = line.circuit.sender.push(frame);
        }
        if matches!(to, Delivery::ForwardAndRefuse(_)) {
            self.close(id, Ending::Refused);
        }
    }

    /// Retries the held frame. Returns whether the executor may be read.
    fn unblock(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(blocked) = &mut self.blocked else {
            return true;
        };
        let id = blocked.id;
        if let Some(line) = self.lines.get_mut(&id)
            && line.circuit.sender.poll_ready(cx).is_pending()
        {
            while blocked.deadline.as_mut().poll(cx).is_ready() {
                if self.behind.take().is_none_or(|behind| behind.is_too_slow()) {
                    self.blocked = None;
                    self.close(id, Ending::Stalled);
                    return true;
                }
                let behind = self.behind.insert(Behind::begin());
                blocked.deadline.as_mut().reset(behind.deadline());
            }
            return false;
        }
        if let Some(Blocked { to, frame, .. }) = self.blocked.take() {
            self.push(to, id, frame);
        }
        if let Some(behind) = &mut self.behind {
            behind.resume();
        }
        true
    }

    /// Takes frames from the circuits. Returns whether there may be more.
    fn take(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = Moved::default();
        let mut left = limits::TURN_FRAMES;
        let more = loop {
            if left == 0 || self.socket.writer.buffered() >= limits::WRITE_AHEAD_BYTES {
                break true;
            }
            let Some(id) = self.ready.poll_next(cx) else {
                break false;
            };
            left = left.saturating_sub(self.serve(id, cx, &mut moved));
        };
        self.metrics.to_executor.add(moved);
        more
    }

    /// Serves one circuit for its share. Returns the number of frames taken.
    fn serve(&mut self, id: CircuitId, cx: &mut Context<'_>, moved: &mut Moved) -> usize {
        for count in 0..limits::SHARE_FRAMES {
            let Some(line) = self.lines.get_mut(&id) else {
                return count;
            };
            if count == 0 {
                line.bell.reset();
            }
            let mut ring = Context::from_waker(&line.waker);
            match line.circuit.receiver.poll_frame(&mut ring) {
                Poll::Pending => return count,
                Poll::Ready(Ok(frame)) => self.forward(id, frame, cx, moved),
                Poll::Ready(Err(ending)) => {
                    self.close(id, ending);
                    return count;
                }
            }
        }
        if let Some(line) = self.lines.get(&id) {
            line.bell.wake_by_ref();
        }
        limits::SHARE_FRAMES
    }

    /// Forwards or drops a frame of a harness.
    fn forward(&mut self, id: CircuitId, frame: Bytes, cx: &mut Context<'_>, moved: &mut Moved) {
        let Ok(route) = Route::peek(&frame) else {
            // Our harness task would have closed the websocket, but another node may forward
            // anything.
            self.metrics.garbage.increment(1);
            return;
        };
        match self.port.judge(id, &route, Instant::now()) {
            Verdict::Forward => {}
            Verdict::Overtake(other) => self.close(other, Ending::Moved),
            Verdict::Foreign => return self.metrics.foreign.increment(1),
            Verdict::Reset => {
                self.metrics.refused_streams.increment(1);
                // Best effort: a harness that does not read is not waited for.
                if let Some(line) = self.lines.get_mut(&id)
                    && line.circuit.sender.poll_ready(cx).is_ready()
                    && let Some(reset) = reset(route.stream_id, REFUSED)
                {
                    let _ended = line.circuit.sender.push(reset);
                }
                return;
            }
        }
        moved.add(frame.len());
        self.socket.writer.push(frame);
    }

    /// Closes a circuit and resets its streams at the executor.
    fn close(&mut self, id: CircuitId, ending: Ending) {
        if let Some(mut line) = self.lines.remove(&id) {
            line.circuit.close(ending);
        }
        for stream in self.port.remove(id) {
            self.metrics.lost_streams.increment(1);
            if let Some(reset) = reset(&stream, DISCONNECTED) {
                self.socket.writer.push(reset);
            }
        }
    }

    /// Closes all circuits, because the executor is gone.
    fn end(&mut self, farewell: Farewell) {
        let ending = match farewell {
            Farewell::Circuit(ending) => ending,
            Farewell::Peer
            | Farewell::Lost
            | Farewell::Protocol
            | Farewell::TooLong
            | Farewell::Garbage
            | Farewell::Text
            | Farewell::NoExecutor
            | Farewell::Busy => Ending::ExecutorGone,
        };
        for line in self.lines.values_mut() {
            line.circuit.close(ending);
        }
    }
}

fn reset(stream_id: &str, reason: &str) -> Option<Bytes> {
    let reason = reason.into();
    Some(Frame::new(StreamId::new(stream_id).ok()?, Body::Reset { reason }).encode())
}

/// Progress of reading while harnesses block the executor, with or without short breaks.
#[derive(Debug)]
pub(super) struct Behind {
    since: tokio::time::Instant,
    bytes: usize,
    /// When reading resumed.
    resumed: Option<tokio::time::Instant>,
}

impl Behind {
    /// Starts when the executor becomes blocked.
    pub(super) fn begin() -> Self {
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
    pub(super) fn go_on(&mut self) {
        if let Some(resumed) = self.resumed.take()
            && resumed.elapsed() >= limits::CAUGHT_UP
        {
            *self = Self::begin();
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
pub(super) struct ReadyList {
    ids: Mutex<VecDeque<CircuitId>>,
    task: AtomicWaker,
}

impl ReadyList {
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
pub(super) struct Bell {
    id: CircuitId,
    list: Arc<ReadyList>,
    rung: AtomicBool,
}

impl Bell {
    /// Creates the waker of a circuit. The new circuit is enqueued at once.
    pub(super) fn new(id: CircuitId, list: &Arc<ReadyList>) -> (Arc<Self>, Waker) {
        let bell = Arc::new(Self {
            id,
            list: Arc::clone(list),
            rung: AtomicBool::new(false),
        });
        bell.wake_by_ref();
        let waker = Waker::from(Arc::clone(&bell));
        (bell, waker)
    }

    /// Allows the circuit to be enqueued again. Called before polling it, so that no wake-up is
    /// lost.
    pub(super) fn reset(&self) {
        self.rung.store(false, Ordering::Release);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.rung.swap(true, Ordering::AcqRel) {
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
