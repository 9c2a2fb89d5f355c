//! Backoff with jitter between attempts. Pure: the jitter is hashed from a key.
//!
//! Elsewhere: sleeping, and the overall time limit.

use std::time::Duration;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// First upper bound of the delay.
const FIRST_CEILING: Duration = Duration::from_secs(1);
/// Highest upper bound. Harnesses look for an executor for 45 s or less, so executors must return
/// soon after a hub outage of half a minute. The stock executor backs off up to 30 s.
const MAX_CEILING: Duration = Duration::from_secs(8);
/// A connection that lasted this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(120);

/// Reconnect backoff of an executor: upper bounds of 1, 2, 4, 8, 8, … seconds, minus jitter of up
/// to half.
#[derive(Clone, Debug)]
pub struct Backoff {
    key: String,
    /// Number of delays so far; input of the jitter.
    count: u32,
    ceiling: Duration,
}

impl Backoff {
    /// Creates a backoff with jitter derived from `key`.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            count: 0,
            ceiling: FIRST_CEILING,
        }
    }

    /// Creates a backoff with a random key.
    pub fn random() -> Self {
        Self::new(Uuid::new_v4().to_string())
    }

    /// Returns the next delay. Failed attempts and lost connections count alike.
    pub fn next_delay(&mut self) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = (ceiling * 2).min(MAX_CEILING);
        let number = self.count;
        self.count = number.wrapping_add(1);
        ceiling - jitter(&self.key, number, ceiling / 2)
    }

    /// Records a finished connection. A connection that lasted long enough resets the backoff.
    pub fn record_connection(&mut self, lasted: Duration) {
        if lasted >= STABLE_AFTER {
            self.ceiling = FIRST_CEILING;
        }
    }
}

/// First delay, without jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest delay, without jitter.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Backoff between requests to a registry: 0.5, 1, 2, 4, 5, 5, … seconds, plus jitter of up to
/// half.
#[derive(Clone, Debug)]
pub struct RegistryBackoff {
    key: String,
}

impl RegistryBackoff {
    /// Creates a backoff with jitter derived from `key`, such as a session id, so that clients
    /// waiting for the same event do not return at once.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into() }
    }

    /// Creates a backoff with a random key.
    pub fn random() -> Self {
        Self::new(Uuid::new_v4().to_string())
    }

    /// Returns the delay after a failed attempt. The first attempt is number 0.
    pub fn after(&self, attempt: u32) -> Duration {
        let base = FIRST_PAUSE
            .saturating_mul(1 << attempt.min(4))
            .min(MAX_PAUSE);
        base + jitter(&self.key, attempt, base / 2)
    }
}

/// Returns a pseudo-random duration from zero to `most` inclusive.
fn jitter(key: &str, number: u32, most: Duration) -> Duration {
    let mut hash = Sha256::new();
    hash.update(number.to_be_bytes());
    hash.update(key.as_bytes());
    let hash = hash.finalize();
    let first = std::array::from_fn(|index| hash[index]);
    most.mul_f64(f64::from(u32::from_be_bytes(first)) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn within(pause: Duration, ceiling: u64) {
        let ceiling = Duration::from_secs(ceiling);
        assert!(pause >= ceiling / 2 && pause <= ceiling, "{pause:?}");
    }

    #[test]
    fn delays_double_up_to_eight_seconds() {
        for key in 0..200 {
            let mut backoff = Backoff::new(key.to_string());
            for ceiling in [1, 2, 4, 8, 8, 8] {
                within(backoff.next_delay(), ceiling);
            }
        }
    }

    #[test]
    fn only_a_long_connection_resets_the_backoff() {
        let mut backoff = Backoff::new("key");
        for ceiling in [1, 2, 4] {
            within(backoff.next_delay(), ceiling);
        }
        backoff.record_connection(Duration::from_secs(119));
        within(backoff.next_delay(), 8);
        backoff.record_connection(Duration::from_secs(120));
        for ceiling in [1, 2] {
            within(backoff.next_delay(), ceiling);
        }
    }

    #[test]
    fn delays_with_the_same_ceiling_differ() {
        let mut backoff = Backoff::new("key");
        let first: Vec<_> = (0..20)
            .map(|_| {
                backoff.record_connection(STABLE_AFTER);
                backoff.next_delay()
            })
            .collect();
        assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "{first:?}");
    }

    const BASES: [u64; 8] = [500, 1000, 2000, 4000, 5000, 5000, 5000, 5000];

    #[test]
    fn delays_grow_to_five_seconds_plus_up_to_half() {
        for key in 0..200 {
            let delay = RegistryBackoff::new(format!("key {key}"));
            for (attempt, base) in (0..).zip(BASES) {
                let base = Duration::from_millis(base);
                let after = delay.after(attempt);
                assert!(
                    after >= base && after <= base * 3 / 2,
                    "{attempt}: {after:?}"
                );
            }
            assert!(delay.after(u32::MAX) >= MAX_PAUSE);
        }
    }

    #[test]
    fn jitter_depends_on_the_key_and_is_spread_out() {
        assert_eq!(
            RegistryBackoff::new("a").after(3),
            RegistryBackoff::new("a").after(3)
        );
        let pauses = (0..200).map(|key| RegistryBackoff::new(key.to_string()).after(0));
        let mut millis: Vec<_> = pauses.map(|pause| pause.as_millis()).collect();
        millis.sort_unstable();
        assert!(millis[0] < 530 && millis[199] > 720, "{millis:?}");
        assert!((570..680).contains(&millis[100]), "{}", millis[100]);
    }
}
