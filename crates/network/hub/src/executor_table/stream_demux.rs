//! Which frame goes where, at one executor socket.
//!
//! Invariant: a stream id belongs to one circuit at a time: the first that used it, until it ends,
//! or until the same harness continues the stream on another socket.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use exec_relay::route::{Kind, Route};

use crate::{circuit_dialer::HarnessTag, limits};

/// A circuit at one executor socket.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct CircuitId(pub(super) u64);

/// What becomes of a harness's frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// It goes to the executor.
    Forward,
    /// It goes to the executor, and the harness's other circuit, which has no streams left, ends.
    Overtake(CircuitId),
    /// It goes nowhere, and the harness is told that the stream is over.
    Reset,
    /// It goes nowhere: the stream belongs to another harness.
    Foreign,
}

/// What becomes of an executor's frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Delivery {
    /// It goes to this circuit.
    Forward(CircuitId),
    /// It goes to this circuit, which then ends: its harness has failed too often.
    ForwardAndRefuse(CircuitId),
    /// It goes nowhere: the stream belongs to nobody.
    Unknown,
}

/// The circuits and streams of one executor socket.
#[derive(Debug)]
pub(crate) struct Port {
    circuits: HashMap<CircuitId, Member>,
    streams: HashMap<Arc<str>, Stream>,
    handshakes: Bucket,
    conduct: Conduct,
    next: u64,
}

#[derive(Debug)]
struct Member {
    harness: HarnessTag,
    streams: Vec<Arc<str>>,
    /// Handshakes that the executor has not answered.
    unanswered: usize,
}

#[derive(Debug)]
struct Stream {
    circuit: CircuitId,
    /// Its share of the circuit's unanswered handshakes.
    unanswered: usize,
    /// Whether the executor has answered a handshake with one of its own, or sent data.
    is_open: bool,
}

impl Member {
    /// Whether it owns as many streams as it may.
    fn is_full(&self) -> bool {
        self.streams.len() >= limits::STREAMS_PER_HARNESS
    }
}

impl Port {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            circuits: HashMap::new(),
            streams: HashMap::new(),
            handshakes: Bucket::new(limits::HANDSHAKE_BURST, limits::HANDSHAKE_INTERVAL, now),
            conduct: Conduct::default(),
            next: 0,
        }
    }

    /// Notes a new circuit.
    pub(crate) fn admit(&mut self, harness: HarnessTag) -> CircuitId {
        let id = CircuitId(self.next);
        self.next += 1;
        let member = Member {
            harness,
            streams: Vec::new(),
            unanswered: 0,
        };
        self.circuits.insert(id, member);
        id
    }

    /// Forgets a circuit. Returns its streams: the executor must hear that each is over.
    pub(crate) fn remove(&mut self, id: CircuitId) -> Vec<Arc<str>> {
        let streams = self
            .circuits
            .remove(&id)
            .map_or_else(Vec::new, |gone| gone.streams);
        for stream in &streams {
            self.streams.remove(stream);
        }
        streams
    }

    /// Judges a frame from a harness.
    pub(crate) fn judge(&mut self, from: CircuitId, frame: &Route<'_>, now: Instant) -> Verdict {
        let owner = self
            .streams
            .get(frame.stream_id)
            .map(|stream| stream.circuit);
        let verdict = match owner {
            Some(owner) if owner == from => Verdict::Forward,
            Some(owner) => match self.overtake(owner, from, frame) {
                Some(verdict) => verdict,
                None => return Verdict::Foreign,
            },
            None if frame.kind == Kind::Reset => Verdict::Forward,
            None if self.own(from, frame.stream_id) => Verdict::Forward,
            None => return Verdict::Reset,
        };
        match frame.kind {
            Kind::Handshake if !self.allow_handshake(from, frame.stream_id, now) => Verdict::Reset,
            Kind::Reset => {
                self.forget(frame.stream_id);
                verdict
            }
            Kind::Handshake | Kind::Data | Kind::Ack | Kind::Resume | Kind::Heartbeat => verdict,
        }
    }

    /// Finds the circuit that an executor's frame belongs to.
    pub(crate) fn deliver(&mut self, frame: &Route<'_>, now: Instant) -> Delivery {
        let Some(stream) = self.streams.get_mut(frame.stream_id) else {
            return Delivery::Unknown;
        };
        let id = stream.circuit;
        stream.is_open |= matches!(frame.kind, Kind::Handshake | Kind::Data);
        if !matches!(frame.kind, Kind::Handshake | Kind::Reset) {
            return Delivery::Forward(id);
        }
        let answered = std::mem::take(&mut stream.unanswered);
        // A handshake on a stream that is open is answered by a reset, and the stream goes on: it
        // stays its harness's, so that the executor hears when that is gone.
        let goes_on = stream.is_open && answered > 0;
        let member = self.circuits.get_mut(&id);
        let mut refuse = false;
        if let Some(member) = member {
            member.unanswered = member.unanswered.saturating_sub(answered);
            self.conduct.answered(member.harness, answered);
            if frame.kind == Kind::Reset {
                refuse = self.conduct.failed(member.harness, answered, now);
            }
        }
        if frame.kind == Kind::Reset && !goes_on {
            self.forget(frame.stream_id);
        }
        if refuse {
            Delivery::ForwardAndRefuse(id)
        } else {
            Delivery::Forward(id)
        }
    }

    /// Gives a free stream id to a circuit, unless that has enough of them.
    fn own(&mut self, circuit: CircuitId, stream_id: &str) -> bool {
        let Some(member) = self.circuits.get_mut(&circuit) else {
            return false;
        };
        if member.is_full() {
            return false;
        }
        let id: Arc<str> = stream_id.into();
        member.streams.push(Arc::clone(&id));
        let stream = Stream {
            circuit,
            unanswered: 0,
            is_open: false,
        };
        self.streams.insert(id, stream);
        true
    }

    /// Moves a stream to the socket on which its harness continues. The old socket may look alive
    /// for as long as nobody has noticed that its network is gone.
    fn overtake(&mut self, old: CircuitId, new: CircuitId, frame: &Route<'_>) -> Option<Verdict> {
        let owner = self.circuits.get(&old)?.harness;
        let same = self.circuits.get(&new)?.harness == owner;
        if frame.kind != Kind::Resume || !same {
            return None;
        }
        // Before the old one loses it: a stream of nobody's would never be reset.
        if self.circuits.get(&new)?.is_full() {
            return Some(Verdict::Reset);
        }
        self.forget(frame.stream_id);
        if !self.own(new, frame.stream_id) {
            return Some(Verdict::Reset);
        }
        let idle = self.circuits.get(&old)?.streams.is_empty();
        Some(if idle {
            Verdict::Overtake(old)
        } else {
            Verdict::Forward
        })
    }

    fn allow_handshake(&mut self, circuit: CircuitId, stream_id: &str, now: Instant) -> bool {
        let (Some(member), Some(stream)) = (
            self.circuits.get_mut(&circuit),
            self.streams.get_mut(stream_id),
        ) else {
            return false;
        };
        // One that is refused uses up nothing that the others need.
        if member.unanswered >= limits::UNANSWERED_HANDSHAKES
            || !self.conduct.allow(member.harness, now)
        {
            return false;
        }
        if !self.handshakes.take(now) {
            self.conduct.take_back(member.harness);
            return false;
        }
        member.unanswered += 1;
        stream.unanswered += 1;
        true
    }

    fn forget(&mut self, stream_id: &str) {
        let Some(stream) = self.streams.remove(stream_id) else {
            return;
        };
        // Handshakes that nobody answered stay counted: a harness that takes its own back would
        // otherwise have as many as it likes.
        if let Some(member) = self.circuits.get_mut(&stream.circuit) {
            member.streams.retain(|id| **id != *stream_id);
        }
    }
}

/// The harnesses of one executor socket, as far as there is anything to remember of them.
#[derive(Debug, Default)]
pub(super) struct Conduct {
    harnesses: HashMap<HarnessTag, Record>,
    /// Failures of all harnesses since the executor last refused everybody.
    failed: usize,
    /// Until when it does.
    cooling: Option<Instant>,
}

#[derive(Debug)]
struct Record {
    /// When handshakes were let through that are not answered. Those of sockets that are gone are
    /// never answered: they count for as long as the executor may take.
    unanswered: VecDeque<Instant>,
    failed: usize,
    failed_at: Instant,
}

impl Conduct {
    /// Lets a handshake through, or not.
    pub(super) fn allow(&mut self, harness: HarnessTag, now: Instant) -> bool {
        if self.harnesses.len() >= CROWD {
            self.harnesses.retain(|_, record| !record.is_idle(now));
        }
        let record = self.harnesses.entry(harness).or_insert_with(|| Record {
            unanswered: VecDeque::new(),
            failed: 0,
            failed_at: now,
        });
        record.forget(now);
        let at_stake = record.failed + record.unanswered.len();
        if record.failed >= limits::FAILED_HANDSHAKES || at_stake >= limits::HANDSHAKES_AT_STAKE {
            return false;
        }
        record.unanswered.push_back(now);
        true
    }

    /// The handshake that was let through last goes nowhere after all.
    pub(super) fn take_back(&mut self, harness: HarnessTag) {
        if let Some(record) = self.harnesses.get_mut(&harness) {
            record.unanswered.pop_back();
        }
    }

    /// Notes that `count` handshakes were answered.
    pub(super) fn answered(&mut self, harness: HarnessTag, count: usize) {
        if let Some(record) = self.harnesses.get_mut(&harness) {
            record
                .unanswered
                .drain(..count.min(record.unanswered.len()));
        }
    }

    /// Notes that `count` handshakes that were answered were refused. Returns whether the harness
    /// is refused from now on.
    ///
    /// What an executor refuses while it refuses everybody says nothing about a harness.
    pub(super) fn failed(&mut self, harness: HarnessTag, count: usize, now: Instant) -> bool {
        if count == 0 || self.cooling.is_some_and(|until| now < until) {
            return false;
        }
        self.failed += count;
        if self.failed >= limits::EXECUTOR_FAILURES {
            self.failed = 0;
            self.cooling = now.checked_add(limits::EXECUTOR_COOLDOWN);
        }
        let Some(record) = self.harnesses.get_mut(&harness) else {
            return false;
        };
        record.forget(now);
        record.failed += count;
        record.failed_at = now;
        record.failed >= limits::FAILED_HANDSHAKES
    }
}

impl Record {
    /// Forgets what is long ago.
    fn forget(&mut self, now: Instant) {
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
        self.forget(now);
        self.failed == 0 && self.unanswered.is_empty()
    }
}

/// When it is time to look for idle ones. An environment takes thirty handshakes a second, so that
/// no more than two thousand harnesses have any within a minute.
const CROWD: usize = 1024;

/// Lets a burst through at once, and then one more per interval.
#[derive(Debug)]
pub(super) struct Bucket {
    interval: Duration,
    burst: u32,
    /// When the bucket is full again. Full, if that is past.
    full_at: Instant,
}

impl Bucket {
    pub(super) fn new(burst: u32, interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            burst,
            full_at: now,
        }
    }

    /// Takes one, or returns false and takes nothing.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.interval;
        if full_at > now + self.interval * self.burst {
            return false;
        }
        self.full_at = full_at;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_per_interval() {
        let (now, interval) = (Instant::now(), Duration::from_secs(1));
        let mut bucket = Bucket::new(3, interval, now);
        let passed = |bucket: &mut Bucket, at| (0..10).filter(|_| bucket.take(at)).count();
        assert_eq!(passed(&mut bucket, now), 3);
        assert_eq!(
            passed(&mut bucket, now + interval - Duration::from_nanos(1)),
            0
        );
        assert_eq!(passed(&mut bucket, now + interval), 1);
        assert_eq!(passed(&mut bucket, now + interval * 3), 2);
        assert_eq!(passed(&mut bucket, now + interval * 100), 3);
    }
}
