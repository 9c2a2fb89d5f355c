//! When a ping is due, its answer overdue, and a write stuck.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::socket::SocketLimits;

/// The clocks of one socket. At most one ping is unanswered.
#[derive(Debug)]
pub(super) struct Deadlines {
    limits: SocketLimits,
    ping: Ping,
    /// Wakes for whatever `ping` waits for.
    timer: Pin<Box<Sleep>>,
    /// Set while a flush waits for the peer.
    stall: Option<Stall>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ping {
    /// The next is sent when the timer ends.
    Idle,
    /// Encoded, but maybe not written yet; the timer ends when it is given up nevertheless.
    Queued,
    /// Written; the timer ends when it is given up.
    Sent,
}

/// When the peer was asked for a pong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Asked {
    /// The ping is to be sent.
    Now,
    /// One is under way.
    Before,
}

#[derive(Debug)]
struct Stall {
    /// What was written when the peer was last seen to take something.
    written: u64,
    timer: Pin<Box<Sleep>>,
}

impl Deadlines {
    pub(super) fn new(limits: SocketLimits) -> Self {
        Self {
            limits,
            ping: Ping::Idle,
            timer: Box::pin(sleep_until(Instant::now() + limits.ping_interval)),
            stall: None,
        }
    }

    /// Any pong answers the ping.
    pub(super) fn handle_pong(&mut self) {
        if self.ping != Ping::Idle {
            self.ping = Ping::Idle;
            self.put_off_ping();
        }
    }

    /// The time until the next ping begins anew, unless one is unanswered.
    pub(super) fn put_off_ping(&mut self) {
        if self.ping == Ping::Idle {
            let next = Instant::now() + self.limits.ping_interval;
            self.timer.as_mut().reset(next);
        }
    }

    /// Everything was written.
    pub(super) fn handle_flushed(&mut self) {
        self.stall = None;
        if self.ping == Ping::Queued {
            self.ping = Ping::Sent;
            let late = Instant::now() + self.limits.pong_timeout;
            self.timer.as_mut().reset(late);
        }
    }

    /// A ping is wanted now.
    pub(super) fn ping(&mut self) -> Asked {
        if self.ping != Ping::Idle {
            return Asked::Before;
        }
        self.ping = Ping::Queued;
        // The flush sets it anew; a write that never ends is told by `poll_stalled`.
        let late = Instant::now() + self.limits.write_timeout + self.limits.pong_timeout;
        self.timer.as_mut().reset(late);
        Asked::Now
    }

    /// Resolves when a ping is to be sent.
    pub(super) fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match (self.timer.as_mut().poll(cx), self.ping) {
            (Poll::Pending, _) => Poll::Pending,
            (Poll::Ready(()), Ping::Idle) => {
                self.ping();
                Poll::Ready(Ok(()))
            }
            (Poll::Ready(()), Ping::Queued | Ping::Sent) => {
                Poll::Ready(Err(late("peer answers no ping")))
            }
        }
    }

    /// Resolves when a flush has made no progress for too long. `written` is all that was written.
    pub(super) fn poll_stalled(&mut self, cx: &mut Context<'_>, written: u64) -> Poll<io::Error> {
        let stall = self.stall.get_or_insert_with(|| Stall {
            written,
            timer: Box::pin(sleep_until(Instant::now() + self.limits.write_timeout)),
        });
        if stall.written != written {
            stall.written = written;
            let late = Instant::now() + self.limits.write_timeout;
            stall.timer.as_mut().reset(late);
        }
        stall
            .timer
            .as_mut()
            .poll(cx)
            .map(|()| late("peer takes nothing that is sent"))
    }
}

fn late(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}
