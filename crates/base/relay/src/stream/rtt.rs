//! Round trips, and how long to wait for an answer: RFC 6298.

use std::time::Duration;

use crate::limits::{RETRANSMIT_FIRST, RETRANSMIT_MAX, RETRANSMIT_MIN};

/// Smoothed round trip of one stream.
#[derive(Debug, Default)]
pub(super) struct Rtt {
    smoothed: Option<(Duration, Duration)>,
    /// How often the time was doubled since the last answer.
    doublings: u32,
}

impl Rtt {
    /// A record that was sent once was answered after `sample`.
    pub(super) fn sample(&mut self, sample: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (sample, sample / 2),
            Some((mean, deviation)) => (
                (mean * 7 + sample) / 8,
                (deviation * 3 + mean.abs_diff(sample)) / 4,
            ),
        });
    }

    /// Something was answered.
    pub(super) fn answered(&mut self) {
        self.doublings = 0;
    }

    /// Nothing was answered in time.
    pub(super) fn unanswered(&mut self) {
        self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
    }

    /// Returns how long to wait for an answer.
    pub(super) fn timeout(&self) -> Duration {
        let first = match self.smoothed {
            None => RETRANSMIT_FIRST,
            Some((mean, deviation)) => mean + deviation * 4,
        };
        let first = first.clamp(RETRANSMIT_MIN, RETRANSMIT_MAX);
        (first * (1 << self.doublings)).min(RETRANSMIT_MAX)
    }

    /// Returns the smoothed round trip: zero before the first.
    pub(super) fn mean(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |(mean, _)| mean)
    }
}

/// From the shortest to beyond the longest time.
const MAX_DOUBLINGS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_doubles_up_to_its_maximum_and_falls_back_when_answered() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), RETRANSMIT_FIRST);
        rtt.sample(Duration::from_millis(4));
        assert_eq!(rtt.timeout(), RETRANSMIT_MIN);
        for expected in [400, 800, 1600, 3200, 5000, 5000] {
            rtt.unanswered();
            assert_eq!(rtt.timeout(), Duration::from_millis(expected));
        }
        rtt.answered();
        assert_eq!(rtt.timeout(), RETRANSMIT_MIN);
    }

    #[test]
    fn a_round_trip_that_varies_is_waited_for_longer() {
        let mut rtt = Rtt::default();
        rtt.sample(Duration::from_millis(100));
        assert_eq!(rtt.timeout(), Duration::from_millis(300));
        rtt.sample(Duration::from_millis(300));
        assert_eq!(rtt.mean(), Duration::from_millis(125));
        assert_eq!(rtt.timeout(), Duration::from_micros(475_000));
        rtt.sample(Duration::from_secs(60));
        assert_eq!(rtt.timeout(), RETRANSMIT_MAX);
    }
}
