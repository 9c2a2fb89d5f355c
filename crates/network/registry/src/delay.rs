//! How long to wait before another try. Pure: what is random about it is hashed from a key.
//!
//! Not here: who waits, and for how long altogether.

use std::time::Duration;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The first ceiling.
const FIRST_CEILING: Duration = Duration::from_secs(1);
/// The highest. Harnesses look for an executor for 45 s, some of them for less: a hub that was away for
/// half a minute must have its executors back soon after. The stock executor goes up to 30 s.
const MAX_CEILING: Duration = Duration::from_secs(8);
/// How long a connection lasts that shows that all is well again.
const STABLE_AFTER: Duration = Duration::from_secs(120);

/// How long an executor waits before it dials again: ceilings of 1, 2, 4, 8, 8, … seconds,
/// and by chance down to half of that.
#[derive(Clone, Debug)]
pub struct Ladder {
    key: String,
    /// Pauses since the start, for chance.
    taken: u32,
    ceiling: Duration,
}

impl Ladder {
    /// Takes what chance is derived from.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            taken: 0,
            ceiling: FIRST_CEILING,
        }
    }

    /// Takes a key that nobody else has.
    pub fn random() -> Self {
        Self::new(Uuid::new_v4().to_string())
    }

    /// Returns the next pause. Failed attempts and connections that ended climb alike.
    pub fn step(&mut self) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = (ceiling * 2).min(MAX_CEILING);
        let number = self.taken;
        self.taken = number.wrapping_add(1);
        ceiling - pick(&self.key, number, ceiling / 2)
    }

    /// Takes note of a connection that ended: after one that lasted, the ladder begins anew.
    pub fn handle_connection(&mut self, lasted: Duration) {
        if lasted >= STABLE_AFTER {
            self.ceiling = FIRST_CEILING;
        }
    }
}

/// The first pause, without chance.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest, without chance.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// How long to wait after a failed request: 0.5, 1, 2, 4, 5, 5, … seconds, each longer by up to half.
#[derive(Clone, Debug)]
pub struct RegistryDelay {
    key: String,
}

impl RegistryDelay {
    /// Takes what chance is derived from, such as a session's id: whoever waits for the same thing
    /// should not come back all at once.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into() }
    }

    /// Takes a key that nobody else has.
    pub fn random() -> Self {
        Self::new(Uuid::new_v4().to_string())
    }

    /// Returns how long to wait after a failed attempt; the first has the number 0.
    pub fn after(&self, attempt: u32) -> Duration {
        let base = FIRST_PAUSE
            .saturating_mul(1 << attempt.min(4))
            .min(MAX_PAUSE);
        base + pick(&self.key, attempt, base / 2)
    }
}

/// Picks a duration from nothing to `most`, both included.
fn pick(key: &str, number: u32, most: Duration) -> Duration {
    let mut hash = Sha256::new();
    hash.update(number.to_be_bytes());
    hash.update(key.as_bytes());
    let mut first = [0; 4];
    for (to, from) in first.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
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
    fn pauses_double_up_to_eight_seconds() {
        for key in 0..200 {
            let mut ladder = Ladder::new(key.to_string());
            for ceiling in [1, 2, 4, 8, 8, 8] {
                within(ladder.step(), ceiling);
            }
        }
    }

    #[test]
    fn only_a_connection_that_lasted_begins_anew() {
        let mut ladder = Ladder::new("key");
        for ceiling in [1, 2, 4] {
            within(ladder.step(), ceiling);
        }
        ladder.handle_connection(Duration::from_secs(119));
        within(ladder.step(), 8);
        ladder.handle_connection(Duration::from_secs(120));
        for ceiling in [1, 2] {
            within(ladder.step(), ceiling);
        }
    }

    #[test]
    fn pauses_of_one_ceiling_differ() {
        let mut ladder = Ladder::new("key");
        let first: Vec<_> = (0..20)
            .map(|_| {
                ladder.handle_connection(STABLE_AFTER);
                ladder.step()
            })
            .collect();
        assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "{first:?}");
    }

    const BASES: [u64; 8] = [500, 1000, 2000, 4000, 5000, 5000, 5000, 5000];

    #[test]
    fn pauses_grow_to_five_seconds_and_up_to_half_more() {
        for key in 0..200 {
            let delay = RegistryDelay::new(format!("key {key}"));
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
    fn the_key_decides_and_spreads() {
        assert_eq!(
            RegistryDelay::new("a").after(3),
            RegistryDelay::new("a").after(3)
        );
        let pauses = (0..200).map(|key| RegistryDelay::new(key.to_string()).after(0));
        let mut millis: Vec<_> = pauses.map(|pause| pause.as_millis()).collect();
        millis.sort_unstable();
        assert!(millis[0] < 530 && millis[199] > 720, "{millis:?}");
        assert!((570..680).contains(&millis[100]), "{}", millis[100]);
    }
}
