//! The pause between the websockets of an executor.

use std::time::Duration;

use uuid::Uuid;

use super::spread;

/// The first ceiling.
const FIRST: Duration = Duration::from_secs(1);
/// The highest. Harnesses look for an executor for 45 s, some of them for less: a hub that was away for
/// half a minute must have its executors back soon after. The stock executor goes up to 30 s.
const HIGHEST: Duration = Duration::from_secs(8);
/// How long a connection lasts that shows that all is well again.
const SETTLED: Duration = Duration::from_secs(120);

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
            ceiling: FIRST,
        }
    }

    /// Takes a key that nobody else has.
    pub fn random() -> Self {
        Self::new(Uuid::new_v4().to_string())
    }

    /// Returns the next pause. Failed attempts and connections that ended climb alike.
    pub fn step(&mut self) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = (ceiling * 2).min(HIGHEST);
        let number = self.taken;
        self.taken = number.wrapping_add(1);
        ceiling - spread::pick(&self.key, number, ceiling / 2)
    }

    /// Takes note of a connection that ended: after one that lasted, the ladder begins anew.
    pub fn handle_connection(&mut self, lasted: Duration) {
        if lasted >= SETTLED {
            self.ceiling = FIRST;
        }
    }
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
                ladder.handle_connection(SETTLED);
                ladder.step()
            })
            .collect();
        assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "{first:?}");
    }
}
