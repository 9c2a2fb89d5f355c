//! Times of many runs of the same thing.

use std::time::Duration;

/// The most that are kept: enough for a 99th percentile, and bounded.
pub(super) const MOST: usize = 10_000;

/// Times of many runs of the same thing.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<Duration>);

impl Samples {
    /// Takes one more.
    pub(super) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Tells whether there are as many as are kept.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MOST
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the time that this many of a hundred runs do not exceed; zero without any.
    pub(super) fn percentile(&mut self, hundredths: usize) -> Duration {
        self.0.sort_unstable();
        let rank = (self.0.len() * hundredths).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let mut samples = Samples::default();
        assert_eq!(samples.percentile(50), Duration::ZERO);
        for millis in (1..=200).rev() {
            samples.push(Duration::from_millis(millis));
        }
        assert_eq!(samples.percentile(50), Duration::from_millis(100));
        assert_eq!(samples.percentile(99), Duration::from_millis(198));
        assert_eq!(samples.percentile(100), Duration::from_millis(200));
        assert_eq!(samples.len(), 200);
    }
}
