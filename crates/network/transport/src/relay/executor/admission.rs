//! How many failed handshakes one connection bears.
//! Pure: the caller owns the clock.

use std::time::{Duration, Instant};

/// Failures after which no handshake is looked at for a while: as the stock executor.
const MAX_FAILURES: u32 = 8;
/// How long that is. Active streams do not notice.
const COOLDOWN: Duration = Duration::from_secs(10);

/// The failures of one connection. Successes do not make up for them.
#[derive(Debug, Default)]
pub(super) struct Admission {
    failures: u32,
    closed_until: Option<Instant>,
}

impl Admission {
    /// Tells whether handshakes are looked at. Asking does not prolong the wait.
    pub(super) fn is_open(&mut self, now: Instant) -> bool {
        if self.closed_until.is_some_and(|until| now >= until) {
            self.closed_until = None;
        }
        self.closed_until.is_none()
    }

    /// Counts a failure.
    pub(super) fn handle_failure(&mut self, now: Instant) {
        if !self.is_open(now) {
            return;
        }
        self.failures += 1;
        if self.failures == MAX_FAILURES {
            self.failures = 0;
            self.closed_until = Some(now + COOLDOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eighth_failure_closes_for_ten_seconds_and_counting_starts_anew() {
        let start = Instant::now();
        let mut admission = Admission::default();
        for round in 0..2 {
            let now = start + COOLDOWN * round;
            for _ in 0..7 {
                admission.handle_failure(now);
                assert!(admission.is_open(now));
            }
            admission.handle_failure(now);
            assert!(!admission.is_open(now));
            let late = now + COOLDOWN - Duration::from_millis(1);
            admission.handle_failure(late);
            assert!(!admission.is_open(late));
            assert!(admission.is_open(now + COOLDOWN));
        }
    }
}
