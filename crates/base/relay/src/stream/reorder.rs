//! Records back in order.
//!
//! Invariant: nothing is held that comes before `next`, and what is held is within the window. A held
//! record is never given up: a reliable stream has told its sender that it arrived.

use std::collections::BTreeMap;

use crate::{
    frame::Data,
    limits::{REORDER_BYTES, REORDER_RECORDS},
};

/// Records that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Reorder {
    next: u32,
    held: BTreeMap<u32, Data>,
    bytes: usize,
}

impl Reorder {
    /// Sorts a record in. The first copy of a record wins.
    pub(super) fn insert(&mut self, data: Data) -> Order {
        if data.seq == self.next && !self.held.contains_key(&data.seq) {
            Order::Next(data)
        } else if data.seq < self.next || self.held.contains_key(&data.seq) {
            Order::Duplicate
        } else if data.seq - self.next > REORDER_RECORDS {
            Order::TooFar
        } else if self.bytes + data.payload.len() > REORDER_BYTES {
            Order::TooMuch
        } else {
            self.bytes += data.payload.len();
            self.held.insert(data.seq, data);
            Order::Held
        }
    }

    /// Takes the next record out, if it is here.
    pub(super) fn pop(&mut self) -> Option<Data> {
        let data = self.held.remove(&self.next)?;
        self.bytes -= data.payload.len();
        Some(data)
    }

    /// Puts a record back that was taken out, and not delivered.
    pub(super) fn put_back(&mut self, data: Data) {
        self.bytes += data.payload.len();
        self.held.insert(data.seq, data);
    }

    /// The next record was delivered.
    pub(super) fn advance(&mut self) {
        // `LAST_SEQ` is below the maximum; a record beyond it cannot be authentic.
        self.next = self.next.saturating_add(1);
    }

    /// Tells whether the next record is here.
    pub(super) fn has_next(&self) -> bool {
        self.held.contains_key(&self.next)
    }

    /// Returns the number that is expected, also how many were delivered.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Returns which of the 32 records from `base` on have arrived. Nothing before `base` is asked for.
    pub(super) fn arrived(&self, base: u32) -> u32 {
        let delivered = self.next.saturating_sub(base);
        let mut bits = if delivered >= u32::BITS {
            u32::MAX
        } else {
            (1 << delivered) - 1
        };
        for seq in self.held.keys() {
            match seq.checked_sub(base) {
                Some(place) if place < u32::BITS => bits |= 1 << place,
                _ => break,
            }
        }
        bits
    }
}

/// Where a record belongs.
#[derive(Debug)]
pub(super) enum Order {
    /// It is its turn. The caller delivers it, and calls [`Reorder::advance`].
    Next(Data),
    /// It is kept until its turn.
    Held,
    /// It came before.
    Duplicate,
    /// Too many numbers ahead. Not kept.
    TooFar,
    /// Too many bytes are held. Not kept.
    TooMuch,
}
