//! Assigns the frames of one executor websocket to circuits, and limits handshakes.
//!
//! Invariant: a stream id belongs to one circuit at a time: the first that used it, until the
//! stream ends or the same harness resumes it on another websocket.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use exec_relay::frame::{FrameKind, FrameRoute};

use crate::{circuit::HarnessTag, limits, rate_limit::TokenBucket};

/// Id of a circuit at one executor websocket.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct CircuitId(pub(super) u64);

/// What to do with a frame from a harness.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HarnessFrameAction {
    /// Forward it to the executor.
    Forward,
    /// Forward it to the executor, and close the harness's other circuit, which has no streams
    /// left.
    ForwardAndClose(CircuitId),
    /// Drop it, and reset the stream at the harness.
    Reset,
    /// Drop it: the stream belongs to another harness.
    Foreign,
}

/// What to do with a frame from the executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExecutorFrameAction {
    /// Forward it to this circuit.
    Forward(CircuitId),
    /// Forward it to this circuit, then close the circuit: its harness failed too many handshakes.
    ForwardAndRefuse(CircuitId),
    /// Drop it: the stream is unknown.
    Unknown,
}

/// The circuits and streams of one executor websocket.
#[derive(Debug, Default)]
pub(crate) struct StreamDemux {
    circuits: HashMap<CircuitId, CircuitState>,
    streams: HashMap<Arc<str>, DemuxStream>,
    handshakes: TokenBucket,
    limiter: HandshakeLimiter,
    next: u64,
}

#[derive(Debug)]
struct CircuitState {
    harness: HarnessTag,
    streams: Vec<Arc<str>>,
    /// Handshakes that the executor has not answered.
    unanswered: usize,
}

#[derive(Debug)]
struct DemuxStream {
    circuit: CircuitId,
    /// This stream's share of the circuit's unanswered handshakes.
    unanswered: usize,
    /// Whether the executor has completed a handshake or sent data.
    is_open: bool,
}

impl CircuitState {
    /// Returns whether the circuit has its maximum number of streams.
    fn is_full(&self) -> bool {
        self.streams.len() >= limits::STREAMS_PER_HARNESS
    }
}

impl StreamDemux {
    /// Adds a circuit.
    pub(crate) fn admit(&mut self, harness: HarnessTag) -> CircuitId {
        let id = CircuitId(self.next);
        self.next += 1;
        let circuit_state = CircuitState {
            harness,
            streams: Vec::new(),
            unanswered: 0,
        };
        self.circuits.insert(id, circuit_state);
        id
    }

    /// Removes a circuit and returns its streams, which must be reset at the executor.
    pub(crate) fn remove(&mut self, id: CircuitId) -> Vec<Arc<str>> {
        let streams = self
            .circuits
            .remove(&id)
            .map_or_else(Vec::new, |removed| removed.streams);
        for stream in &streams {
            self.streams.remove(stream);
        }
        streams
    }

    /// Decides about a frame from a harness.
    pub(crate) fn route_from_harness(
        &mut self,
        from: CircuitId,
        frame: &FrameRoute<'_>,
        now: Instant,
    ) -> HarnessFrameAction {
        let owner = self
            .streams
            .get(frame.stream_id)
            .map(|stream| stream.circuit);
        let action = match owner {
            Some(owner) if owner == from => HarnessFrameAction::Forward,
            Some(owner) => match self.resume_stream(owner, from, frame) {
                Some(action) => action,
                None => return HarnessFrameAction::Foreign,
            },
            None if frame.kind == FrameKind::Reset => HarnessFrameAction::Forward,
            None if self.assign_stream(from, frame.stream_id) => HarnessFrameAction::Forward,
            None => return HarnessFrameAction::Reset,
        };
        match frame.kind {
            FrameKind::Handshake if !self.allow_handshake(from, frame.stream_id, now) => {
                HarnessFrameAction::Reset
            }
            FrameKind::Reset => {
                self.release_stream(frame.stream_id);
                action
            }
            FrameKind::Handshake
            | FrameKind::Data
            | FrameKind::Ack
            | FrameKind::Resume
            | FrameKind::Heartbeat => action,
        }
    }

    /// Finds the circuit of a frame from the executor.
    pub(crate) fn route_from_executor(
        &mut self,
        frame: &FrameRoute<'_>,
        now: Instant,
    ) -> ExecutorFrameAction {
        let Some(stream) = self.streams.get_mut(frame.stream_id) else {
            return ExecutorFrameAction::Unknown;
        };
        let id = stream.circuit;
        stream.is_open |= matches!(frame.kind, FrameKind::Handshake | FrameKind::Data);
        if !matches!(frame.kind, FrameKind::Handshake | FrameKind::Reset) {
            return ExecutorFrameAction::Forward(id);
        }
        let answered = std::mem::take(&mut stream.unanswered);
        // The executor answers a handshake on an open stream with a reset, and the stream goes on.
        // It stays assigned, so that the executor learns when the harness disconnects.
        let stays_open = stream.is_open && answered > 0;
        let circuit_state = self.circuits.get_mut(&id);
        let mut refuse = false;
        if let Some(circuit_state) = circuit_state {
            circuit_state.unanswered = circuit_state.unanswered.saturating_sub(answered);
            self.limiter.record_answers(circuit_state.harness, answered);
            if frame.kind == FrameKind::Reset {
                refuse = self
                    .limiter
                    .record_failures(circuit_state.harness, answered, now);
            }
        }
        if frame.kind == FrameKind::Reset && !stays_open {
            self.release_stream(frame.stream_id);
        }
        if refuse {
            ExecutorFrameAction::ForwardAndRefuse(id)
        } else {
            ExecutorFrameAction::Forward(id)
        }
    }

    /// Assigns a free stream id to a circuit, unless that has too many.
    fn assign_stream(&mut self, circuit: CircuitId, stream_id: &str) -> bool {
        let Some(circuit_state) = self.circuits.get_mut(&circuit) else {
            return false;
        };
        if circuit_state.is_full() {
            return false;
        }
        let id: Arc<str> = stream_id.into();
        circuit_state.streams.push(Arc::clone(&id));
        let stream = DemuxStream {
            circuit,
            unanswered: 0,
            is_open: false,
        };
        self.streams.insert(id, stream);
        true
    }

    /// Moves a stream to the websocket on which its harness resumed it. The old websocket may look
    /// alive until its connection times out.
    fn resume_stream(
        &mut self,
        old: CircuitId,
        new: CircuitId,
        frame: &FrameRoute<'_>,
    ) -> Option<HarnessFrameAction> {
        let owner = self.circuits.get(&old)?.harness;
        let same = self.circuits.get(&new)?.harness == owner;
        if frame.kind != FrameKind::Resume || !same {
            return None;
        }
        // Check before the old circuit loses the stream: an unassigned stream would never be reset.
        if self.circuits.get(&new)?.is_full() {
            return Some(HarnessFrameAction::Reset);
        }
        self.release_stream(frame.stream_id);
        if !self.assign_stream(new, frame.stream_id) {
            return Some(HarnessFrameAction::Reset);
        }
        let idle = self.circuits.get(&old)?.streams.is_empty();
        Some(if idle {
            HarnessFrameAction::ForwardAndClose(old)
        } else {
            HarnessFrameAction::Forward
        })
    }

    fn allow_handshake(&mut self, circuit: CircuitId, stream_id: &str, now: Instant) -> bool {
        let (Some(circuit_state), Some(stream)) = (
            self.circuits.get_mut(&circuit),
            self.streams.get_mut(stream_id),
        ) else {
            return false;
        };
        // A refused handshake must not use up capacity that others need.
        if circuit_state.unanswered >= limits::UNANSWERED_HANDSHAKES
            || !self.limiter.allow(circuit_state.harness, now)
        {
            return false;
        }
        let (burst, interval) = (limits::HANDSHAKE_BURST, limits::HANDSHAKE_INTERVAL);
        if self.handshakes.take(burst, interval, now).is_err() {
            self.limiter.release(circuit_state.harness);
            return false;
        }
        circuit_state.unanswered += 1;
        stream.unanswered += 1;
        true
    }

    fn release_stream(&mut self, stream_id: &str) {
        let Some(stream) = self.streams.remove(stream_id) else {
            return;
        };
        // Unanswered handshakes stay counted. Otherwise a harness could reset its own streams to
        // start an unlimited number.
        if let Some(circuit_state) = self.circuits.get_mut(&stream.circuit) {
            circuit_state.streams.retain(|id| **id != *stream_id);
        }
    }
}

/// Handshake limiter of one executor websocket, with a record per harness.
#[derive(Debug, Default)]
pub(super) struct HandshakeLimiter {
    harnesses: HashMap<HarnessTag, HarnessRecord>,
    /// Failures of all harnesses since the executor's last cooldown.
    failed: usize,
    /// End of the executor's cooldown.
    cooldown_until: Option<Instant>,
}

#[derive(Debug)]
struct HarnessRecord {
    /// Start times of forwarded handshakes without an answer. Those of closed websockets are never
    /// answered; they count until the executor's handshake timeout.
    unanswered: VecDeque<Instant>,
    failed: usize,
    failed_at: Instant,
}

impl HandshakeLimiter {
    /// Returns whether to forward a handshake, and counts it.
    pub(super) fn allow(&mut self, harness: HarnessTag, now: Instant) -> bool {
        if self.harnesses.len() >= IDLE_SWEEP_SIZE {
            self.harnesses.retain(|_, record| !record.is_idle(now));
        }
        let record = self
            .harnesses
            .entry(harness)
            .or_insert_with(|| HarnessRecord {
                unanswered: VecDeque::new(),
                failed: 0,
                failed_at: now,
            });
        record.expire(now);
        let at_stake = record.failed + record.unanswered.len();
        if record.failed >= limits::FAILED_HANDSHAKES || at_stake >= limits::HANDSHAKES_AT_STAKE {
            return false;
        }
        record.unanswered.push_back(now);
        true
    }

    /// Uncounts the handshake that was allowed last.
    pub(super) fn release(&mut self, harness: HarnessTag) {
        if let Some(record) = self.harnesses.get_mut(&harness) {
            record.unanswered.pop_back();
        }
    }

    /// Records that `count` handshakes were answered.
    pub(super) fn record_answers(&mut self, harness: HarnessTag, count: usize) {
        if let Some(record) = self.harnesses.get_mut(&harness) {
            record
                .unanswered
                .drain(..count.min(record.unanswered.len()));
        }
    }

    /// Records that `count` answered handshakes were refused. Returns whether the harness is
    /// blocked from now on.
    ///
    /// Refusals during the executor's cooldown do not count against a harness.
    pub(super) fn record_failures(
        &mut self,
        harness: HarnessTag,
        count: usize,
        now: Instant,
    ) -> bool {
        if count == 0 || self.cooldown_until.is_some_and(|until| now < until) {
            return false;
        }
        self.failed += count;
        if self.failed >= limits::EXECUTOR_FAILURES {
            self.failed = 0;
            self.cooldown_until = now.checked_add(limits::EXECUTOR_COOLDOWN);
        }
        let Some(record) = self.harnesses.get_mut(&harness) else {
            return false;
        };
        record.expire(now);
        record.failed += count;
        record.failed_at = now;
        record.failed >= limits::FAILED_HANDSHAKES
    }
}

impl HarnessRecord {
    /// Drops expired entries.
    fn expire(&mut self, now: Instant) {
        let is_old = |at: Instant, age| now.saturating_duration_since(at) >= age;
        while let Some(at) = self.unanswered.front()
            && is_old(*at, limits::HANDSHAKE)
        {
            self.unanswered.pop_front();
        }
        if is_old(self.failed_at, limits::REFUSAL) {
            self.failed = 0;
        }
    }

    fn is_idle(&mut self, now: Instant) -> bool {
        self.expire(now);
        self.failed == 0 && self.unanswered.is_empty()
    }
}

/// Number of harnesses at which idle ones are removed. An environment accepts thirty handshakes a
/// second, so at most two thousand harnesses have any within a minute.
const IDLE_SWEEP_SIZE: usize = 1024;
