//! Output log with followers. Each follower receives every event once, in order, at its own pace.
//!
//! A follower with a lag window applies backpressure: output it has not consumed is not evicted,
//! and the writer pauses while the lag exceeds the window. An archived log never pauses its writer:
//! followers read evicted output from the archive.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    task::{Context, Poll, Waker},
};

use exec_wire::{id::OutputSeq, limits};

use super::{LogEvent, OutputChunk, OutputLog};

/// Options for following a log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FollowOptions {
    /// Position of the first event.
    pub start: FollowStart,
    /// Reaction to a process that writes faster than its follower reads.
    pub backpressure: BackpressureMode,
}

/// Position at which a follower starts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FollowStart {
    /// After this sequence number. Retained output is replayed.
    After(OutputSeq),
    /// At the next event.
    Now,
}

/// Reaction to a process that writes faster than its follower reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BackpressureMode {
    /// Backpressure: the process is paused and no output is lost.
    Pause,
    /// The process keeps running. The follower skips evicted output.
    Skip,
}

/// Id of a follower of one log. Never reused.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct FollowerId(u64);

/// Result of [`FollowedLog::poll_event`].
#[derive(Debug, Default)]
pub struct FollowedEvent {
    /// Next event, or `None` after the close.
    pub event: Option<LogEvent>,
    /// This call ended the follower's backpressure.
    pub backpressure_ended: bool,
}

/// Output log and its followers.
#[derive(Debug)]
pub struct FollowedLog {
    log: OutputLog,
    followers: BTreeMap<FollowerId, LogFollower>,
    next: u64,
}

#[derive(Debug)]
struct LogFollower {
    cursor: OutputSeq,
    /// Bytes appended up to the cursor.
    consumed_bytes: u64,
    /// Lag at which this follower pauses the process. Absent: it never does.
    window: Option<LagWindow>,
    waker: Option<Waker>,
}

/// Permitted lag of a follower.
#[derive(Clone, Copy, Debug)]
struct LagWindow {
    bytes: usize,
    /// Bounds the bookkeeping of tiny writes. Absent: only bytes count.
    events: Option<usize>,
}

/// Permitted lag of an attached client.
const FOLLOWER_WINDOW: LagWindow = LagWindow {
    bytes: limits::FOLLOW_WINDOW_BYTES,
    events: None,
};

/// Permitted amount of unacknowledged output.
const UNACKED_WINDOW: LagWindow = LagWindow {
    bytes: limits::UNACKNOWLEDGED_BYTES,
    events: Some(limits::RETAINED_OUTPUT_CHUNKS),
};

impl FollowedLog {
    /// Creates a log without followers.
    pub fn new(log: OutputLog) -> Self {
        Self {
            log,
            followers: BTreeMap::new(),
            next: 0,
        }
    }

    /// Runs `record` on the log and wakes every waiting follower.
    pub fn record<T>(&mut self, record: impl FnOnce(&mut OutputLog) -> T) -> T {
        let recorded = record(&mut self.log);
        for follower in self.followers.values_mut() {
            if let Some(waker) = follower.waker.take() {
                waker.wake();
            }
        }
        recorded
    }

    /// Adds a follower.
    pub fn follow(&mut self, follow: FollowOptions) -> FollowerId {
        let cursor = match follow.start {
            FollowStart::After(seq) => seq,
            FollowStart::Now => self.log.last_seq(),
        };
        let window = match follow.backpressure {
            BackpressureMode::Pause => Some(FOLLOWER_WINDOW),
            BackpressureMode::Skip => None,
        };
        self.add(cursor, window)
    }

    /// Adds a hold: retained output after `after` is not evicted until it is acknowledged. An
    /// archive may retain more than this log.
    pub fn retain_unacked(&mut self, after: OutputSeq) -> FollowerId {
        let oldest = match self.log.is_archived() {
            true => OutputSeq(0),
            false => self.log.before_oldest(),
        };
        let cursor = after.clamp(oldest, self.log.last_seq());
        self.add(cursor, Some(UNACKED_WINDOW))
    }

    /// Acknowledges the events up to `seq`, or up to the last recorded event if `seq` is higher.
    /// Returns whether this ended the hold's backpressure.
    pub fn acknowledge(&mut self, id: FollowerId, seq: OutputSeq) -> bool {
        let seq = seq.min(self.log.last_seq());
        let Some(follower) = self.followers.get_mut(&id) else {
            return false;
        };
        if seq <= follower.cursor {
            return false;
        }
        let was_blocking = follower.exceeds_window(&self.log);
        // Counts each chunk once, regardless of the number of acknowledgements.
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

    /// Returns a follower's next event.
    pub fn poll_event(&mut self, id: FollowerId, cx: &mut Context<'_>) -> Poll<FollowedEvent> {
        let Some(follower) = self.followers.get_mut(&id) else {
            return Poll::Ready(FollowedEvent::default());
        };
        let Some(event) = self.log.event_after(follower.cursor) else {
            if self.log.is_closed() {
                return Poll::Ready(FollowedEvent::default());
            }
            let waker = follower.waker.get_or_insert_with(|| cx.waker().clone());
            waker.clone_from(cx.waker());
            return Poll::Pending;
        };
        let was_blocking = follower.exceeds_window(&self.log);
        let consecutive = event.seq() == follower.cursor.next();
        follower.cursor = event.seq();
        if !consecutive {
            // Events were evicted before this one.
            follower.consumed_bytes =
                self.log.appended_bytes() - self.log.bytes_after(follower.cursor);
        } else if let LogEvent::Output(chunk) = &event {
            follower.consumed_bytes += chunk.data.len() as u64;
        }
        let released = was_blocking && !follower.exceeds_window(&self.log);
        if follower.window.is_some() {
            self.update_retain_after();
        }
        Poll::Ready(FollowedEvent {
            event: Some(event),
            backpressure_ended: released,
        })
    }

    /// Returns the follower's cursor if its next chunk is only in the archive. The caller reads the
    /// chunk from the archive and passes it to [`Self::deliver_archived`].
    pub fn archived_cursor(&self, id: FollowerId) -> Option<OutputSeq> {
        let cursor = self.followers.get(&id)?.cursor;
        self.log.needs_archive(cursor).then_some(cursor)
    }

    /// Returns a follower's next event, given the first chunk of the archive after its cursor.
    /// `None`: the archive has lost the chunk, and the follower skips it.
    pub fn deliver_archived(
        &mut self,
        id: FollowerId,
        chunk: Option<OutputChunk>,
    ) -> Option<LogEvent> {
        let follower = self.followers.get_mut(&id)?;
        let event = self.log.archived_event(follower.cursor, chunk);
        follower.cursor = match &event {
            Some(event) => event.seq(),
            None => follower.cursor.max(self.log.evicted_through),
        };
        event
    }

    /// Returns the last event that every follower and hold with backpressure has consumed. What
    /// comes after it must stay readable. `None`: nothing must.
    pub fn protected_after(&self) -> Option<OutputSeq> {
        self.pausing().map(|follower| follower.cursor).min()
    }

    /// Returns the followers and holds that apply backpressure.
    fn pausing(&self) -> impl Iterator<Item = &LogFollower> {
        let followers = self.followers.values();
        followers.filter(|follower| follower.window.is_some())
    }

    /// Removes a follower, which also ends its backpressure.
    pub fn unfollow(&mut self, id: FollowerId) {
        self.followers.remove(&id);
        self.update_retain_after();
    }

    /// Returns the log.
    pub fn log(&self) -> &OutputLog {
        &self.log
    }

    /// Returns whether the writer must pause: a follower or hold exceeds its lag window.
    pub fn is_backpressured(&self) -> bool {
        self.followers
            .values()
            .any(|follower| follower.exceeds_window(&self.log))
    }

    /// Returns the lag of the slowest follower or hold that applies backpressure, in bytes.
    pub fn lag(&self) -> u64 {
        let consumed = self.pausing().map(|follower| follower.consumed_bytes);
        let consumed = consumed.min();
        consumed.map_or(0, |consumed| self.log.appended_bytes() - consumed)
    }

    /// Returns the last sequence number that every follower and hold with backpressure has
    /// consumed, and the number of bytes appended up to it. Without any, returns the end of the
    /// log.
    pub fn consumed(&self) -> (OutputSeq, u64) {
        let last = self.log.last_seq();
        self.pausing()
            .map(|follower| (follower.cursor.min(last), follower.consumed_bytes))
            .min()
            .unwrap_or((last, self.log.appended_bytes()))
    }

    /// Exempts output from eviction that a follower with backpressure has not consumed.
    fn update_retain_after(&mut self) {
        // An archive keeps what leaves the memory.
        if !self.log.is_archived() {
            let after = self.protected_after();
            self.log.retain_after(after);
        }
    }
}

impl LogFollower {
    fn exceeds_window(&self, log: &OutputLog) -> bool {
        let Some(window) = self.window.filter(|_| !log.is_archived()) else {
            return false;
        };
        let lag = log.appended_bytes() - self.consumed_bytes;
        let events = log.last_seq().0.saturating_sub(self.cursor.0);
        lag >= window.bytes as u64 || window.events.is_some_and(|max| events >= max as u64)
    }
}
