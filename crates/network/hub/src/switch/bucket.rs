//! A token bucket. The caller owns the clock.

use std::time::{Duration, Instant};

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
