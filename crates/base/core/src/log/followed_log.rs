//! A log with followers: each sees every event once, in order, at its own pace.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    task::{Context, Poll, Waker},
};

use exec_wire::{id::OutputSeq, limits};

use super::{Event, OutputLog};

/// How a log is followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Follow {
    /// Where to begin.
    pub from: From,
    /// What happens to a process that writes faster than its follower reads.
    pub pace: Pace,
}

/// Where following begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum From {
    /// After this number; what is still retained is replayed.
    After(OutputSeq),
    /// With the next event.
    Now,
}

/// What happens to a process that writes faster than its follower reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pace {
    /// It is paused: nothing is lost.
    Held,
    /// It runs on: numbers are skipped when the log has dropped them.
    Free,
}

/// A follower of one log. Given once.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct FollowerId(u64);

/// What a follower gets.
#[derive(Debug)]
pub struct Followed {
    /// The next event; `None` past the close.
    pub event: Option<Event>,
    /// The log is no longer held up, and was before.
    pub released: bool,
}

/// A log and those who follow it.
#[derive(Debug)]
pub struct FollowedLog {
    log: OutputLog,
    followers: BTreeMap<FollowerId, LogFollower>,
    next: u64,
}

#[derive(Debug)]
struct LogFollower {
    cursor: OutputSeq,
    /// Bytes recorded up to the cursor.
    consumed_bytes: u64,
    /// How far it may lag behind before it exceeds_window up the process; without one it never does.
    window: Option<LagWindow>,
    waker: Option<Waker>,
}

/// How far somebody may lag behind.
#[derive(Clone, Copy, Debug)]
struct LagWindow {
    bytes: usize,
    /// Bounds the bookkeeping of tiny writes. Where there is none, the bytes do.
    events: Option<usize>,
}

/// What an attached client may lag behind.
const FOLLOWER_WINDOW: LagWindow = LagWindow {
    bytes: limits::FOLLOW_WINDOW_BYTES,
    events: None,
};

/// What may be unacknowledged.
const UNACKED_WINDOW: LagWindow = LagWindow {
    bytes: limits::UNACKNOWLEDGED_BYTES,
    events: Some(limits::RETAINED_OUTPUT_CHUNKS),
};

impl FollowedLog {
    /// Begins without followers.
    pub fn new(log: OutputLog) -> Self {
        Self {
            log,
            followers: BTreeMap::new(),
            next: 0,
        }
    }

    /// Records something and wakes every follower that waits for it.
    pub fn record<T>(&mut self, record: impl FnOnce(&mut OutputLog) -> T) -> T {
        let recorded = record(&mut self.log);
        for follower in self.followers.values_mut() {
            if let Some(waker) = follower.waker.take() {
                waker.wake();
            }
        }
        recorded
    }

    /// Begins to follow.
    pub fn follow(&mut self, follow: Follow) -> FollowerId {
        let cursor = match follow.from {
            From::After(seq) => seq,
            From::Now => self.log.last_seq(),
        };
        let window = match follow.pace {
            Pace::Held => Some(FOLLOWER_WINDOW),
            Pace::Free => None,
        };
        self.add(cursor, window)
    }

    /// Begins to keep what comes after `after` and is still there, until it is acknowledged.
    pub fn hold(&mut self, after: OutputSeq) -> FollowerId {
        let cursor = after.clamp(self.log.before_oldest(), self.log.last_seq());
        self.add(cursor, Some(UNACKED_WINDOW))
    }

    /// Lets go of the events up to `seq`; one that was not recorded yet counts as the last that was.
    /// Tells whether the hold no longer exceeds_window up the log, and did before.
    pub fn acknowledge(&mut self, id: FollowerId, seq: OutputSeq) -> bool {
        let seq = seq.min(self.log.last_seq());
        let Some(follower) = self.followers.get_mut(&id) else {
            return false;
        };
        if seq <= follower.cursor {
            return false;
        }
        let was_blocking = follower.exceeds_window(&self.log);
        // Each chunk is counted once, however many acknowledgements there are.
        follower.consumed_bytes += self.log.bytes_between(follower.cursor, seq);
        follower.cursor = seq;
        let released = was_blocking && !follower.exceeds_window(&self.log);
        self.update_retain_after();
        released
    }

    fn add(&mut self, cursor: OutputSeq, window: Option<LagWindow>) -> FollowerId {
        let consumed_bytes = self.log.appended_bytes() - self.log.bytes_after(cursor);
        let id = FollowerId(self.next);
        self.next += 1;
        self.followers.insert(
            id,
            LogFollower {
                cursor,
                consumed_bytes,
                window,
                waker: None,
            },
        );
        self.update_retain_after();
        id
    }

    /// Returns a follower's next event, or waits for it.
    pub fn poll_event(&mut self, id: FollowerId, cx: &mut Context<'_>) -> Poll<Followed> {
        let Some(follower) = self.followers.get_mut(&id) else {
            return Poll::Ready(Followed {
                event: None,
                released: false,
            });
        };
        let Some(event) = self.log.event_after(follower.cursor) else {
            if self.log.is_closed() {
                return Poll::Ready(Followed {
                    event: None,
                    released: false,
                });
            }
            if !follower
                .waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
            {
                follower.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        };
        let was_blocking = follower.exceeds_window(&self.log);
        let consecutive = event.seq() == follower.cursor.next();
        follower.cursor = event.seq();
        if !consecutive {
            // Something was dropped in between.
            follower.consumed_bytes =
                self.log.appended_bytes() - self.log.bytes_after(follower.cursor);
        } else if let Event::Output(chunk) = &event {
            follower.consumed_bytes += chunk.data.len() as u64;
        }
        let released = was_blocking && !follower.exceeds_window(&self.log);
        if follower.window.is_some() {
            self.update_retain_after();
        }
        Poll::Ready(Followed {
            event: Some(event),
            released,
        })
    }

    /// Ends a follower. Whoever it held up may go on.
    pub fn unfollow(&mut self, id: FollowerId) {
        self.followers.remove(&id);
        self.update_retain_after();
    }

    /// Returns the log.
    pub fn log(&self) -> &OutputLog {
        &self.log
    }

    /// Tells whether a follower that may not lose anything lags too far behind.
    pub fn is_held(&self) -> bool {
        self.followers
            .values()
            .any(|follower| follower.exceeds_window(&self.log))
    }

    /// Returns how far the slowest follower that may not lose anything lags behind, in bytes.
    pub fn lag(&self) -> u64 {
        let pausing = self
            .followers
            .values()
            .filter(|follower| follower.window.is_some());
        let consumed = pausing.map(|follower| follower.consumed_bytes).min();
        consumed.map_or(0, |consumed| self.log.appended_bytes() - consumed)
    }

    /// Returns what everyone who may not lose anything has taken: the last number, and how many bytes
    /// were recorded up to it. Without such a follower it is all that was recorded.
    pub fn taken(&self) -> (OutputSeq, u64) {
        let last = OutputSeq(self.log.next_seq().0 - 1);
        let pausing = self
            .followers
            .values()
            .filter(|follower| follower.window.is_some());
        pausing
            .map(|follower| (follower.cursor.min(last), follower.consumed_bytes))
            .min()
            .unwrap_or((last, self.log.appended_bytes()))
    }

    /// Keeps the log from dropping what a held follower was not given yet.
    fn update_retain_after(&mut self) {
        let pausing = self
            .followers
            .values()
            .filter(|follower| follower.window.is_some());
        let after = pausing.map(|follower| follower.cursor).min();
        self.log.hold_after(after);
    }
}

impl LogFollower {
    fn exceeds_window(&self, log: &OutputLog) -> bool {
        let Some(window) = self.window else {
            return false;
        };
        let lag = log.appended_bytes() - self.consumed_bytes;
        let events = log.last_seq().0.saturating_sub(self.cursor.0);
        lag >= window.bytes as u64 || window.events.is_some_and(|max| events >= max as u64)
    }
}
