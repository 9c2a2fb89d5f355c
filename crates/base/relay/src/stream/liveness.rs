//! Signs of life of a reliable stream, while it has a connection.

use std::time::Instant;

use crate::limits::{HEARTBEAT, RETRANSMIT_FIRST, SILENCE};

/// The connection of a reliable stream, and when something was last sent and heard on it.
#[derive(Debug)]
pub(super) struct Liveness {
    state: State,
    sent: Instant,
    heard: Instant,
    heartbeat_due: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Connected,
    /// On a new connection, nothing was heard yet. When `Resume` is sent next; absent: now.
    Resuming(Option<Instant>),
    Disconnected,
}

impl Liveness {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Connected,
            sent: now,
            heard: now,
            heartbeat_due: false,
        }
    }

    pub(super) fn handle_disconnect(&mut self) {
        self.state = State::Disconnected;
    }

    pub(super) fn handle_reconnect(&mut self, now: Instant) {
        *self = Self::new(now);
        self.state = State::Resuming(None);
    }

    /// The peer sent something. Tells whether that is the first since a reconnect.
    pub(super) fn heard(&mut self, now: Instant) -> Heard {
        self.heard = now;
        match self.state {
            State::Resuming(Some(_)) => {
                self.state = State::Connected;
                Heard::First
            }
            // Sent before this side resumed, it does not answer.
            State::Resuming(None) | State::Connected | State::Disconnected => Heard::Again,
        }
    }

    /// The peer resumed: it is on this connection, and asks for what it lacks.
    pub(super) fn handle_resume(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Something was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.sent = now;
        self.heartbeat_due = false;
    }

    /// `Resume` was sent. It is sent once more if nothing answers.
    pub(super) fn resumed(&mut self, now: Instant) {
        self.state = State::Resuming(Some(now + RETRANSMIT_FIRST));
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Life {
        if self.state == State::Disconnected {
            return Life::Alive;
        }
        if self.heard + SILENCE <= now {
            return Life::Silent;
        }
        if matches!(self.state, State::Resuming(Some(at)) if at <= now) {
            self.state = State::Resuming(None);
        }
        self.heartbeat_due |= self.sent + HEARTBEAT <= now;
        Life::Alive
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let resume = match self.state {
            State::Disconnected => return None,
            State::Resuming(at) => at,
            State::Connected => None,
        };
        let heartbeat = (!self.heartbeat_due).then(|| self.sent + HEARTBEAT);
        let silence = Some(self.heard + SILENCE);
        [resume, heartbeat, silence].into_iter().flatten().min()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state != State::Disconnected
    }

    pub(super) fn is_resume_due(&self) -> bool {
        self.state == State::Resuming(None)
    }

    /// Tells whether the peer is known to be on this connection, so that records may be sent.
    pub(super) fn is_settled(&self) -> bool {
        self.state == State::Connected
    }

    pub(super) fn is_heartbeat_due(&self) -> bool {
        self.heartbeat_due
    }
}

/// What a frame of the peer means for the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Heard {
    /// It answers a `Resume`: its acknowledgement tells all that has arrived.
    First,
    /// Nothing new.
    Again,
}

/// Whether the peer is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Life {
    /// As far as is known.
    Alive,
    /// It has shown no life for too long.
    Silent,
}
