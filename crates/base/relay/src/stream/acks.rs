//! When a reliable receiver tells what has arrived.

use std::time::Instant;

use crate::limits::{ACK_BYTES, ACK_DELAY, ACK_RECORDS};

/// What the sender has not been told.
#[derive(Debug, Default)]
pub(super) struct Acks {
    records: u32,
    bytes: usize,
    deadline: Option<Instant>,
    due: bool,
    /// The last acknowledgement that was sent, as the number of the record after it.
    told: u32,
}

impl Acks {
    /// A record was delivered.
    pub(super) fn delivered(&mut self, len: usize, now: Instant) {
        self.records += 1;
        self.bytes += len;
        if self.records >= ACK_RECORDS || self.bytes >= ACK_BYTES {
            self.now();
        } else {
            self.deadline.get_or_insert(now + ACK_DELAY);
        }
    }

    /// The application took messages, so that records up to `next` may be acknowledged.
    pub(super) fn released(&mut self, next: u32, all: Withheld) {
        let untold = next.saturating_sub(self.told);
        if untold >= ACK_RECORDS || (untold > 0 && all == Withheld::Nothing) {
            self.now();
        }
    }

    /// The sender must know at once: something is missing, came twice, or it asks.
    pub(super) fn now(&mut self) {
        self.due = true;
        self.deadline = None;
    }

    /// A frame carries the acknowledgement up to `next`.
    pub(super) fn told(&mut self, next: u32) {
        *self = Self {
            told: next,
            ..Self::default()
        };
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.now();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    pub(super) fn is_due(&self) -> bool {
        self.due
    }
}

/// Whether acknowledgements are still withheld.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Withheld {
    /// All that was delivered may be acknowledged.
    Nothing,
    /// The application has not taken enough.
    Something,
}
