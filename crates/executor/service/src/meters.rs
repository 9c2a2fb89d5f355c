//! What a service counts: plain numbers that others read and render.
//! Invariant: counting takes no lock and no memory, so that it can stand on the way of every message.
//! Not here: names, formats and listeners; whoever presents the numbers has those.

mod labelled_counters;
mod request_metrics;

use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use self::{
    labelled_counters::{Endings, Refusal, Refusals, Ruling, Rulings},
    request_metrics::{MethodMeter, Outcome, RequestMeters},
};

/// What one service has counted since it was made.
#[derive(Debug, Default)]
pub struct Meters {
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were opened.
    pub connections_opened: Counter,
    /// Sessions that began.
    pub sessions_opened: Counter,
    /// Sessions that a client came back to.
    pub sessions_resumed: Counter,
    /// Sessions whose client did not come back in time.
    pub sessions_expired: Counter,
    /// Processes that were started.
    pub processes_started: Counter,
    /// Processes that ended, by cause.
    pub processes_ended: Endings,
    /// Processes that did not start, by reason.
    pub process_refusals: Refusals,
    /// Processes that ended after their sandbox seems to have refused something.
    pub sandbox_denials: Counter,
    /// Decisions about connections of processes.
    pub network_decisions: Rulings,
    /// Requests.
    pub requests: RequestMeters,
    /// Answers that nobody waited for.
    pub unsolicited_responses: Counter,
    /// Output of processes that was sent as events.
    pub output_bytes: Counter,
    /// Input that processes were given.
    pub input_bytes: Counter,
    /// Content of files that was read for clients.
    pub file_read_bytes: Counter,
    /// Content of files that clients wrote.
    pub file_written_bytes: Counter,
    /// Messages that came.
    pub messages_received: Counter,
    /// What they took, without the framing of the transport.
    pub received_bytes: Counter,
    /// What was handed to transports.
    pub sent_bytes: Counter,
}

/// How many of what there are in a service at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Levels {
    /// Sessions with a connection.
    pub sessions_attached: usize,
    /// Sessions that wait for their client.
    pub sessions_detached: usize,
    /// Processes that run.
    pub processes_running: usize,
    /// Those of them that belong to no session.
    pub detached_running: usize,
    /// Processes that are over and can still be read.
    pub processes_finished: usize,
    /// Output that can be read again.
    pub retained_bytes: usize,
    /// Answers that wait for clients to take them.
    pub outbox_bytes: usize,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Counts what has a length.
    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.add(bytes as u64);
    }

    /// Returns what was counted so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many of something there are now.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how many there are.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of the connections that are open. It is none any more when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(Arc<Meters>);

impl ConnectionGuard {
    pub(crate) fn connection(meters: &Arc<Meters>) -> Self {
        meters.connections_opened.increment();
        meters.connections.enter();
        Self(Arc::clone(meters))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.leave();
    }
}

/// Upper bounds of the buckets, in microseconds; one more bucket holds the rest. From an answer out of
/// memory to a wait for a command's end.
pub const BOUNDS_MICROS: [u64; 16] = [
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
    300_000_000,
];

const BUCKETS: usize = BOUNDS_MICROS.len() + 1;

/// Spans of time, sorted.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_micros: Counter,
}

/// What a histogram holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HistogramValues {
    /// How many were at most as long as each of [`BOUNDS_MICROS`].
    pub at_most: [u64; BOUNDS_MICROS.len()],
    /// How many there were.
    pub count: u64,
    /// How long they took together.
    pub sum: Duration,
}

impl Histogram {
    pub(crate) fn record(&self, span: Duration) {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].increment();
        self.sum_micros.add(micros);
    }

    /// Returns what was recorded so far. Whoever records meanwhile may be in one part and not in another.
    pub fn values(&self) -> HistogramValues {
        let mut count = 0;
        let at_most = array::from_fn(|bucket| {
            count += self.buckets[bucket].value();
            count
        });
        HistogramValues {
            at_most,
            count: count + self.buckets[BUCKETS - 1].value(),
            sum: Duration::from_micros(self.sum_micros.value()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_counted_in_every_bucket_that_is_long_enough() {
        let histogram = Histogram::default();
        for micros in [50, 51, 400_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let values = histogram.values();
        assert_eq!(values.at_most[..3], [1, 2, 2]);
        assert_eq!(values.at_most[BOUNDS_MICROS.len() - 1], 2);
        assert_eq!(values.count, 3);
        assert_eq!(values.sum, Duration::from_micros(400_000_101));
    }
}
