//! Memory of a hub after a burst: freed pages are given back to the system.

use std::{convert::Infallible, time::Duration};

use exec_process::release_free_memory;
use tokio::{task::spawn_blocking, time::sleep};

use crate::observe::resident_bytes;

/// Below this many bytes nothing is looked for: it is what a hub with some hundred sockets has.
const WORTHWHILE: u64 = 48 << 20;
/// A difference that counts as one.
const DIFFERENCE: u64 = 4 << 20;
/// How soon after a change memory is released.
const SOON: Duration = Duration::from_secs(2);
/// How often it is tried while nothing changes.
const SELDOM: Duration = Duration::from_secs(60);

/// Releases freed memory for as long as it is polled: soon after the resident memory has changed, and
/// less and less often while there is nothing to release.
pub(super) async fn release_memory() -> Infallible {
    let mut pace = Pace::default();
    loop {
        sleep(SOON).await;
        let Some(before) = resident_bytes() else {
            // Without /proc nobody knows; then the memory stays.
            return std::future::pending().await;
        };
        if pace.is_due(before) {
            // Its thread may have to wait for others, which then do not have to wait for it.
            drop(spawn_blocking(release_free_memory).await);
            pace.released(before, resident_bytes().unwrap_or(before));
        }
    }
}

/// When to release memory. Looked at every [`SOON`].
#[derive(Debug)]
struct Pace {
    /// What was left after the last time.
    left: u64,
    wait: Duration,
    waited: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            left: 0,
            wait: SOON,
            waited: Duration::ZERO,
        }
    }
}

impl Pace {
    fn is_due(&mut self, resident: u64) -> bool {
        self.waited += SOON;
        if resident < WORTHWHILE {
            return false;
        }
        if resident.abs_diff(self.left) >= DIFFERENCE {
            self.wait = SOON;
        }
        self.waited >= self.wait
    }

    fn released(&mut self, before: u64, after: u64) {
        self.left = after;
        self.waited = Duration::ZERO;
        self.wait = match before.saturating_sub(after) >= DIFFERENCE {
            true => SOON,
            false => (self.wait * 2).min(SELDOM),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: u64 = 300 << 20;

    /// Runs through some looks at a process of this size, in which nothing can be released. Returns
    /// how often that was tried.
    fn looks(pace: &mut Pace, count: usize, resident: u64) -> usize {
        let mut tried = 0;
        for _ in 0..count {
            if pace.is_due(resident) {
                tried += 1;
                pace.released(resident, resident);
            }
        }
        tried
    }

    #[test]
    fn a_small_hub_is_left_alone() {
        assert_eq!(looks(&mut Pace::default(), 1000, WORTHWHILE - 1), 0);
    }

    #[test]
    fn memory_that_stays_in_use_is_tried_once_a_minute() {
        let mut pace = Pace::default();
        looks(&mut pace, 60, BUSY);
        let tried = looks(&mut pace, 300, BUSY);
        assert!((9..=11).contains(&tried), "{tried}");
    }

    #[test]
    fn a_change_is_followed_at_once() {
        let mut pace = Pace::default();
        looks(&mut pace, 100, BUSY);
        assert_eq!(looks(&mut pace, 1, BUSY + DIFFERENCE), 1);
        assert!(looks(&mut pace, 2, BUSY + DIFFERENCE) >= 1);
    }
}
