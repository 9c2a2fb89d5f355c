//! How long something took, sorted into buckets.

use std::{array, time::Duration};

use super::Counter;

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
