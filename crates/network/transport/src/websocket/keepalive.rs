//! Keepalive of a socket: ping interval, pong timeout, and detection of stalled writes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::socket::SocketLimits;

/// Timers of one socket. At most one ping is outstanding.
#[derive(Debug)]
pub(super) struct KeepaliveTimers {
    limits: SocketLimits,
    ping: PingState,
    /// Fires for the current ping state.
    timer: Pin<Box<Sleep>>,
    /// Set while a flush is blocked by the peer.
    stall: Option<WriteStall>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PingState {
    /// The timer fires when the next ping is due.
    Idle,
    /// Encoded but perhaps not written. The timer fires when the pong is overdue regardless.
    Queued,
    /// Written. The timer fires when the pong is overdue.
    Sent,
}

#[derive(Debug)]
struct WriteStall {
    /// Bytes written when the peer last made progress.
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

    /// Handles a pong. Any pong answers the ping.
    pub(super) fn handle_pong(&mut self) {
        if self.ping != PingState::Idle {
            self.ping = PingState::Idle;
            self.defer_ping();
        }
    }

    /// Restarts the ping interval, unless a ping is outstanding.
    pub(super) fn defer_ping(&mut self) {
        if self.ping == PingState::Idle {
            let next = Instant::now() + self.limits.ping_interval;
            self.timer.as_mut().reset(next);
        }
    }

    /// Handles the completion of a flush.
    pub(super) fn handle_flushed(&mut self) {
        self.stall = None;
        if self.ping == PingState::Queued {
            self.ping = PingState::Sent;
            let deadline = Instant::now() + self.limits.pong_timeout;
            self.timer.as_mut().reset(deadline);
        }
    }

    /// Requests a ping. Returns whether the caller must send one: none is outstanding.
    pub(super) fn ping(&mut self) -> bool {
        if self.ping != PingState::Idle {
            return false;
        }
        self.ping = PingState::Queued;
        // The flush sets the timer again; `poll_stalled` reports a blocked write.
        let deadline = Instant::now() + self.limits.write_timeout + self.limits.pong_timeout;
        self.timer.as_mut().reset(deadline);
        true
    }

    /// Resolves when a ping is due.
    pub(super) fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match (self.timer.as_mut().poll(cx), self.ping) {
            (Poll::Pending, _) => Poll::Pending,
            (Poll::Ready(()), PingState::Idle) => {
                self.ping();
                Poll::Ready(Ok(()))
            }
            (Poll::Ready(()), PingState::Queued | PingState::Sent) => {
                Poll::Ready(Err(timed_out("peer did not answer a ping in time")))
            }
        }
    }

    /// Resolves when a flush has made no progress for too long. `written` is the total number of
    /// written bytes.
    pub(super) fn poll_stalled(&mut self, cx: &mut Context<'_>, written: u64) -> Poll<io::Error> {
        let stall = self.stall.get_or_insert_with(|| WriteStall {
            written,
            timer: Box::pin(sleep_until(Instant::now() + self.limits.write_timeout)),
        });
        if stall.written != written {
            stall.written = written;
            let deadline = Instant::now() + self.limits.write_timeout;
            stall.timer.as_mut().reset(deadline);
        }
        stall
            .timer
            .as_mut()
            .poll(cx)
            .map(|()| timed_out("peer stopped reading"))
    }
}

fn timed_out(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, message)
}
