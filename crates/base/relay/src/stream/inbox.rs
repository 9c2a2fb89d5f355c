//! Complete messages that the application has not taken, and what may be acknowledged meanwhile.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::limits::{
    INBOX_BYTES, INBOX_MESSAGES, PLAIN_CROWD_MESSAGES, WINDOW_BYTES, WINDOW_RECORDS,
};

/// Messages for the application.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    messages: VecDeque<Bytes>,
    /// Cost of all messages that ever came in, and that were ever taken.
    total_in: u64,
    total_out: u64,
}

impl Inbox {
    pub(super) fn push(&mut self, message: Bytes) {
        self.total_in += cost(&message);
        self.messages.push_back(message);
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let message = self.messages.pop_front()?;
        self.total_out += cost(&message);
        if self.messages.is_empty() && self.messages.capacity() > KEPT_MESSAGES {
            self.messages = VecDeque::new();
        }
        Some(message)
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Tells whether a plain stream had better not be read any further.
    pub(super) fn is_crowded(&self) -> bool {
        self.messages.len() >= PLAIN_CROWD_MESSAGES
            || self.total_in - self.total_out >= INBOX_BYTES as u64
    }
}

/// Records of a reliable stream that were delivered, up to where they may be acknowledged.
///
/// A record is acknowledged when what came with and before it fits into [`INBOX_BYTES`] of messages
/// not taken. The sender's window then bounds the rest.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    /// The first record that may not be acknowledged yet.
    next: u32,
    withheld: VecDeque<Receipt>,
    withheld_bytes: usize,
}

#[derive(Debug)]
struct Receipt {
    len: usize,
    /// [`Inbox::total_in`] after the record.
    total_in: u64,
}

impl Receipts {
    /// A record of `len` bytes was delivered into `inbox`.
    pub(super) fn add(&mut self, len: usize, inbox: &Inbox) {
        self.withheld.push_back(Receipt {
            len,
            total_in: inbox.total_in,
        });
        self.withheld_bytes += len;
        self.settle(inbox);
    }

    /// Releases what may be acknowledged now.
    pub(super) fn settle(&mut self, inbox: &Inbox) {
        while let Some(receipt) = self.withheld.front()
            && receipt.total_in <= inbox.total_out + INBOX_BYTES as u64
        {
            self.withheld_bytes -= receipt.len;
            self.withheld.pop_front();
            self.next = self.next.saturating_add(1);
        }
    }

    /// Tells whether one more record may be delivered. A sender that keeps to its window always finds
    /// room, unless its messages are tiny.
    pub(super) fn has_room(&self, len: usize, inbox: &Inbox) -> bool {
        inbox.len() < INBOX_MESSAGES
            && self.withheld.len() < WINDOW_RECORDS
            && (self.withheld_bytes + len <= WINDOW_BYTES || self.withheld.is_empty())
    }

    /// Returns the first record that may not be acknowledged yet.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    pub(super) fn is_withholding(&self) -> bool {
        !self.withheld.is_empty()
    }
}

/// What a message costs while it waits: its bytes, and its place.
fn cost(message: &Bytes) -> u64 {
    (message.len() + size_of::<Bytes>()) as u64
}

/// Places that an empty inbox keeps for the next messages.
const KEPT_MESSAGES: usize = 1024;
