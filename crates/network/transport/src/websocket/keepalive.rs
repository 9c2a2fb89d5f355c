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
pub(super) struct KeepaliveTimers {
    limits: SocketLimits,
    ping: PingState,
    /// Wakes for whatever `ping` waits for.
    timer: Pin<Box<Sleep>>,
    /// Set while a flush waits for the peer.
    stall: Option<WriteStall>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PingState {
    /// The next is sent when the timer ends.
    Idle,
    /// Encoded, but maybe not written yet; the timer ends when it is given up nevertheless.
    Queued,
    /// Written; the timer ends when it is given up.
    Sent,
}

/// When the peer was asked for a pong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PingDecision {
    /// The ping is to be sent.
    Send,
    /// One is under way.
    AlreadyPending,
}

#[derive(Debug)]
struct WriteStall {
    /// What was written when the peer was last seen to take something.
    written: u64,
    timer: Pin<Box<Sleep>>,
}

impl KeepaliveTimers {
    pub(super) fn new(limits: SocketLimits) -> Self {
        Self {
            limits,
            ping: PingState::Idle,
            timer: Box::pin(sleep_until(Instant::now() + limits.ping_interval)),
            stall: None,
        }
    }

    /// Any pong answers the ping.
    pub(super) fn handle_pong(&mut self) {
        if self.ping != PingState::Idle {
            self.ping = PingState::Idle;
            self.defer_ping();
        }
    }

    /// The time until the next ping begins anew, unless one is unanswered.
    pub(super) fn defer_ping(&mut self) {
        if self.ping == PingState::Idle {
            let next = Instant::now() + self.limits.ping_interval;
            self.timer.as_mut().reset(next);
        }
    }

    /// Everything was written.
    pub(super) fn handle_flushed(&mut self) {
        self.stall = None;
        if self.ping == PingState::Queued {
            self.ping = PingState::Sent;
            let late = Instant::now() + self.limits.pong_timeout;
            self.timer.as_mut().reset(late);
        }
    }

    /// A ping is wanted now.
    pub(super) fn ping(&mut self) -> PingDecision {
        if self.ping != PingState::Idle {
            return PingDecision::AlreadyPending;
        }
        self.ping = PingState::Queued;
        // The flush sets it anew; a write that never ends is told by `poll_stalled`.
        let late = Instant::now() + self.limits.write_timeout + self.limits.pong_timeout;
        self.timer.as_mut().reset(late);
        PingDecision::Send
    }

    /// Resolves when a ping is to be sent.
    pub(super) fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match (self.timer.as_mut().poll(cx), self.ping) {
            (Poll::Pending, _) => Poll::Pending,
            (Poll::Ready(()), PingState::Idle) => {
                self.ping();
                Poll::Ready(Ok(()))
            }
            (Poll::Ready(()), PingState::Queued | PingState::Sent) => {
                Poll::Ready(Err(late("peer answers no ping")))
            }
        }
    }

    /// Resolves when a flush has made no progress for too long. `written` is all that was written.
    pub(super) fn poll_stalled(&mut self, cx: &mut Context<'_>, written: u64) -> Poll<io::Error> {
        let stall = self.stall.get_or_insert_with(|| WriteStall {
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
