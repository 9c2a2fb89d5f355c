//! A log with followers: each sees every event once, in order, at its own pace.

use std::{
    collections::BTreeMap,
    task::{Context, Poll, Waker},
};

use exec_wire::{id::OutputSeq, limits};

use super::retained::{Event, OutputLog};

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
    followers: BTreeMap<FollowerId, Follower>,
    next: u64,
}

#[derive(Debug)]
struct Follower {
    cursor: OutputSeq,
    /// Bytes recorded up to the cursor.
    taken: u64,
    pace: Pace,
    waker: Option<Waker>,
}

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
            From::Now => OutputSeq(self.log.next_seq().0 - 1),
        };
        let taken = self.log.appended_bytes() - self.log.bytes_after(cursor);
        let id = FollowerId(self.next);
        self.next += 1;
        self.followers.insert(
            id,
            Follower {
                cursor,
                taken,
                pace: follow.pace,
                waker: None,
            },
        );
        self.hold_log();
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
        let appended = self.log.appended_bytes();
        let held = follower.holds(appended);
        let consecutive = event.seq() == follower.cursor.next();
        follower.cursor = event.seq();
        if !consecutive {
            // Something was dropped in between.
            follower.taken = appended - self.log.bytes_after(follower.cursor);
        } else if let Event::Output(chunk) = &event {
            follower.taken += chunk.data.len() as u64;
        }
        let released = held && !follower.holds(appended);
        if follower.pace == Pace::Held {
            self.hold_log();
        }
        Poll::Ready(Followed {
            event: Some(event),
            released,
        })
    }

    /// Ends a follower. Whoever it held up may go on.
    pub fn unfollow(&mut self, id: FollowerId) {
        self.followers.remove(&id);
        self.hold_log();
    }

    /// Returns the log.
    pub fn log(&self) -> &OutputLog {
        &self.log
    }

    /// Tells whether a follower that may not lose anything lags too far behind.
    pub fn is_held(&self) -> bool {
        let appended = self.log.appended_bytes();
        self.followers
            .values()
            .any(|follower| follower.holds(appended))
    }

    /// Returns how far the slowest follower that may not lose anything lags behind, in bytes.
    pub fn lag(&self) -> u64 {
        let held = self
            .followers
            .values()
            .filter(|follower| follower.pace == Pace::Held);
        let taken = held.map(|follower| follower.taken).min();
        taken.map_or(0, |taken| self.log.appended_bytes() - taken)
    }

    /// Keeps the log from dropping what a held follower was not given yet.
    fn hold_log(&mut self) {
        let held = self
            .followers
            .values()
            .filter(|follower| follower.pace == Pace::Held);
        let after = held.map(|follower| follower.cursor).min();
        self.log.hold_after(after);
    }
}

impl Follower {
    fn holds(&self, appended: u64) -> bool {
        self.pace == Pace::Held && appended - self.taken >= limits::FOLLOW_WINDOW_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use exec_wire::process::{ExitCause, OutputStream};

    use super::*;
    use crate::log::{Exit, Retention};

    fn log() -> FollowedLog {
        FollowedLog::new(OutputLog::new(Retention {
            bytes: 4,
            chunks: 100,
        }))
    }

    fn write(log: &mut FollowedLog, data: impl Into<Bytes>) {
        let data = data.into();
        log.record(|log| log.append(OutputStream::Stdout, data));
    }

    fn next(log: &mut FollowedLog, id: FollowerId) -> Option<u64> {
        match log.poll_event(id, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(followed) => followed.event.map(|event| event.seq().0),
            Poll::Pending => None,
        }
    }

    const HELD: Follow = Follow {
        from: From::Now,
        pace: Pace::Held,
    };
    const FREE: Follow = Follow {
        from: From::After(OutputSeq(0)),
        pace: Pace::Free,
    };

    #[test]
    fn a_held_follower_loses_nothing_and_a_free_one_skips() {
        let mut log = log();
        let (held, free) = (log.follow(HELD), log.follow(FREE));
        for _ in 0..3 {
            write(&mut log, "abcd");
        }
        assert_eq!(
            [next(&mut log, held), next(&mut log, held)],
            [Some(1), Some(2)]
        );
        assert_eq!(
            next(&mut log, free),
            Some(3),
            "the others fell out when they were taken"
        );
        assert_eq!(
            [next(&mut log, held), next(&mut log, held)],
            [Some(3), None]
        );
    }

    #[test]
    fn a_lagging_follower_holds_the_process_until_it_catches_up() {
        let mut log = log();
        let id = log.follow(HELD);
        write(&mut log, vec![0; limits::FOLLOW_WINDOW_BYTES]);
        assert!(log.is_held());
        let followed = log.poll_event(id, &mut Context::from_waker(Waker::noop()));
        assert!(matches!(
            followed,
            Poll::Ready(Followed { released: true, .. })
        ));
        assert!(!log.is_held());
        write(&mut log, vec![0; limits::FOLLOW_WINDOW_BYTES]);
        log.unfollow(id);
        assert!(!log.is_held());
    }

    #[test]
    fn following_ends_with_the_close() {
        let mut log = log();
        let id = log.follow(HELD);
        log.record(|log| {
            log.record_exit(Exit {
                code: 0,
                signal: None,
                cause: ExitCause::Exit,
                usage: None,
                sandbox_denied: false,
            });
            log.record_close();
        });
        assert_eq!([next(&mut log, id), next(&mut log, id)], [Some(1), Some(2)]);
        let end = log.poll_event(id, &mut Context::from_waker(Waker::noop()));
        assert!(matches!(end, Poll::Ready(Followed { event: None, .. })));
    }
}
