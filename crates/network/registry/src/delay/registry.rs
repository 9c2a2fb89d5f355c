//! The pause between requests to a registry.

use std::time::Duration;

use uuid::Uuid;

use super::spread;

/// The first pause, without chance.
const FIRST: Duration = Duration::from_millis(500);
/// The longest, without chance.
const LONGEST: Duration = Duration::from_secs(5);

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
        let base = FIRST.saturating_mul(1 << attempt.min(4)).min(LONGEST);
        base + spread::pick(&self.key, attempt, base / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(delay.after(u32::MAX) >= LONGEST);
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
