//! How the handshakes of each harness went lately, on whichever sockets. The caller owns the clock.
//!
//! An executor counts failed handshakes of all harnesses together. At the eighth it refuses everybody
//! for a while, so one harness alone must not get that far, with however many sockets.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use crate::{exchange::HarnessTag, limits};

/// The harnesses of one executor socket, as far as there is anything to remember of them.
#[derive(Debug, Default)]
pub(super) struct Conduct {
    harnesses: HashMap<HarnessTag, Record>,
    /// Failures of all harnesses since the executor last refused everybody.
    failed: usize,
    /// Until when it does.
    cooling: Option<Instant>,
}

#[derive(Debug)]
struct Record {
    /// When handshakes were let through that are not answered. Those of sockets that are gone are
    /// never answered: they count for as long as the executor may take.
    unanswered: VecDeque<Instant>,
    failed: usize,
    failed_at: Instant,
}

impl Conduct {
    /// Lets a handshake through, or not.
    pub(super) fn allow(&mut self, harness: HarnessTag, now: Instant) -> bool {
        if self.harnesses.len() >= CROWD {
            self.harnesses.retain(|_, record| !record.is_idle(now));
        }
        let record = self.harnesses.entry(harness).or_insert_with(|| Record {
            unanswered: VecDeque::new(),
            failed: 0,
            failed_at: now,
        });
        record.forget(now);
        let at_stake = record.failed + record.unanswered.len();
        if record.failed >= limits::FAILED_HANDSHAKES || at_stake >= limits::HANDSHAKES_AT_STAKE {
            return false;
        }
        record.unanswered.push_back(now);
        true
    }

    /// The handshake that was let through last goes nowhere after all.
    pub(super) fn take_back(&mut self, harness: HarnessTag) {
        if let Some(record) = self.harnesses.get_mut(&harness) {
            record.unanswered.pop_back();
        }
    }

    /// Notes that `count` handshakes were answered.
    pub(super) fn answered(&mut self, harness: HarnessTag, count: usize) {
        if let Some(record) = self.harnesses.get_mut(&harness) {
            record
                .unanswered
                .drain(..count.min(record.unanswered.len()));
        }
    }

    /// Notes that `count` handshakes that were answered were refused. Returns whether the harness
    /// is refused from now on.
    ///
    /// What an executor refuses while it refuses everybody says nothing about a harness.
    pub(super) fn failed(&mut self, harness: HarnessTag, count: usize, now: Instant) -> bool {
        if count == 0 || self.cooling.is_some_and(|until| now < until) {
            return false;
        }
        self.failed += count;
        if self.failed >= limits::EXECUTOR_FAILURES {
            self.failed = 0;
            self.cooling = now.checked_add(limits::EXECUTOR_COOLDOWN);
        }
        let Some(record) = self.harnesses.get_mut(&harness) else {
            return false;
        };
        record.forget(now);
        record.failed += count;
        record.failed_at = now;
        record.failed >= limits::FAILED_HANDSHAKES
    }
}

impl Record {
    /// Forgets what is long ago.
    fn forget(&mut self, now: Instant) {
        let is_old = |at: Instant, age| now.saturating_duration_since(at) >= age;
        while let Some(at) = self.unanswered.front()
            && is_old(*at, limits::HANDSHAKE)
        {
            self.unanswered.pop_front();
        }
        if is_old(self.failed_at, limits::REFUSAL) {
            self.failed = 0;
        }
    }

    fn is_idle(&mut self, now: Instant) -> bool {
        self.forget(now);
        self.failed == 0 && self.unanswered.is_empty()
    }
}

/// When it is time to look for idle ones. An environment takes thirty handshakes a second, so that
/// no more than two thousand harnesses have any within a minute.
const CROWD: usize = 1024;
