//! Receiving side of a stream: orders records, opens them and assembles messages.
//!
//! Invariant: every buffered record lies within the window that starts at `next`. A buffered record
//! is never discarded, because a reliable stream has already acknowledged it selectively.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes, BytesMut};

use super::RelayStreamError;
use crate::{
    frame::SealedRecord,
    handshake::RecordOpener,
    limits::{
        MESSAGE_BYTES, PLAIN_PAUSE_MESSAGES, PLAIN_QUEUE_MESSAGES, PREFIX_BYTES,
        RECEIVE_QUEUE_BYTES, REORDER_BYTES, REORDER_RECORDS,
    },
};

/// Receiving side of a stream.
#[derive(Debug)]
pub(super) struct RecordReceiver {
    opener: RecordOpener,
    pub(super) reorder: ReorderBuffer,
    assembler: MessageAssembler,
    pub(super) receive_queue: ReceiveQueue,
    /// Index of the expected segment and segment count of a partially received message.
    segment: Option<(u32, u32)>,
}

impl RecordReceiver {
    pub(super) fn new(opener: RecordOpener) -> Self {
        Self {
            opener,
            reorder: ReorderBuffer::default(),
            assembler: MessageAssembler::default(),
            receive_queue: ReceiveQueue::default(),
            segment: None,
        }
    }

    /// Processes a record of a plain stream, and delivers all records that are now in order.
    pub(super) fn handle_plain(&mut self, data: SealedRecord) -> Result<(), RelayStreamError> {
        let (seq, next) = (data.seq, self.reorder.next);
        if (data.segment_index, data.segment_count) != (0, 1) {
            return Err(RelayStreamError::Segments(seq));
        }
        let mut next_record = match self.reorder.insert(data) {
            ReorderOutcome::Next(data) => Some(data),
            ReorderOutcome::Buffered | ReorderOutcome::Duplicate => None,
            ReorderOutcome::OutOfWindow => return Err(RelayStreamError::OutOfWindow { seq, next }),
            ReorderOutcome::BufferFull => return Err(RelayStreamError::ReorderFull { next }),
        };
        while let Some(data) = next_record {
            self.deliver(data.seq, data.payload, PLAIN_QUEUE_MESSAGES)?;
            next_record = self.reorder.pop();
        }
        Ok(())
    }

    /// Delivers the next record of a reliable stream: whole messages, or one segment of a message.
    pub(super) fn deliver_segment(&mut self, data: SealedRecord) -> Result<(), RelayStreamError> {
        let SealedRecord {
            seq,
            segment_index: index,
            segment_count: count,
            payload,
        } = data;
        let is_expected = match self.segment {
            None => index == 0,
            Some(expected) => expected == (index, count),
        };
        if !is_expected {
            return Err(RelayStreamError::Segments(seq));
        }
        let before = self.receive_queue.len();
        self.deliver(seq, payload, usize::MAX)?;
        // Segment numbers are not authenticated but lengths are, so they must be consistent.
        let last = index + 1 == count;
        let completed = self.receive_queue.len() - before;
        let is_consistent = match (count, last) {
            (1, _) => self.assembler.is_complete(),
            (_, true) => self.assembler.is_complete() && completed == 1,
            (_, false) => !self.assembler.is_complete() && completed == 0,
        };
        if !is_consistent {
            return Err(RelayStreamError::Segments(seq));
        }
        self.segment = (!last).then_some((index + 1, count));
        Ok(())
    }

    fn deliver(
        &mut self,
        seq: u32,
        record: Bytes,
        messages: usize,
    ) -> Result<(), RelayStreamError> {
        let plaintext = self.opener.open(seq, record)?;
        let receive_queue = &mut self.receive_queue;
        self.assembler.feed(plaintext, |message| {
            if receive_queue.len() >= messages {
                return Err(RelayStreamError::QueueFull);
            }
            receive_queue.push(message);
            Ok(())
        })?;
        self.reorder.advance();
        Ok(())
    }
}

/// Reorder buffer: records that arrived before their predecessors.
#[derive(Debug, Default)]
pub(super) struct ReorderBuffer {
    /// The expected number, which is also the number of delivered records.
    pub(super) next: u32,
    buffered: BTreeMap<u32, SealedRecord>,
    bytes: usize,
}

impl ReorderBuffer {
    /// Inserts a record. The first copy of a record wins.
    pub(super) fn insert(&mut self, data: SealedRecord) -> ReorderOutcome {
        if data.seq == self.next && !self.buffered.contains_key(&data.seq) {
            ReorderOutcome::Next(data)
        } else if data.seq < self.next || self.buffered.contains_key(&data.seq) {
            ReorderOutcome::Duplicate
        } else if data.seq - self.next > REORDER_RECORDS {
            ReorderOutcome::OutOfWindow
        } else if self.bytes + data.payload.len() > REORDER_BYTES {
            ReorderOutcome::BufferFull
        } else {
            self.bytes += data.payload.len();
            self.buffered.insert(data.seq, data);
            ReorderOutcome::Buffered
        }
    }

    /// Removes the next record, if it is buffered.
    pub(super) fn pop(&mut self) -> Option<SealedRecord> {
        let data = self.buffered.remove(&self.next)?;
        self.bytes -= data.payload.len();
        Some(data)
    }

    /// Reinserts a popped record that was not delivered.
    pub(super) fn reinsert(&mut self, data: SealedRecord) {
        self.bytes += data.payload.len();
        self.buffered.insert(data.seq, data);
    }

    /// Advances past a delivered record.
    fn advance(&mut self) {
        // `LAST_SEQ` is below the maximum; a higher record cannot be authentic.
        self.next = self.next.saturating_add(1);
    }

    /// Returns whether the next record is buffered.
    pub(super) fn has_next(&self) -> bool {
        self.buffered.contains_key(&self.next)
    }

    /// Returns a bit set of the received records among the 32 that start at `base`. `base` is never
    /// beyond the expected number.
    pub(super) fn received_bits(&self, base: u32) -> u32 {
        let delivered = self.next.saturating_sub(base);
        let mut bits = if delivered >= u32::BITS {
            u32::MAX
        } else {
            (1 << delivered) - 1
        };
        for seq in self.buffered.keys() {
            match seq.checked_sub(base) {
                Some(offset) if offset < u32::BITS => bits |= 1 << offset,
                _ => break,
            }
        }
        bits
    }
}

/// Result of inserting a record into the reorder buffer.
#[derive(Debug)]
pub(super) enum ReorderOutcome {
    /// Next in order. The caller delivers it and calls [`ReorderBuffer::advance`].
    Next(SealedRecord),
    /// Buffered until its predecessors arrive.
    Buffered,
    /// Already received.
    Duplicate,
    /// Too far ahead. Discarded.
    OutOfWindow,
    /// The buffer is full. Discarded.
    BufferFull,
}

/// Assembles messages from records. A message may be split anywhere, as by stock senders.
#[derive(Debug, Default)]
struct MessageAssembler {
    prefix: [u8; PREFIX_BYTES],
    prefix_len: usize,
    message: Option<PartialMessage>,
}

#[derive(Debug)]
struct PartialMessage {
    bytes: BytesMut,
    missing: usize,
}

impl MessageAssembler {
    /// Processes a record and calls `deliver` for each message it completes. A message within one
    /// record is a slice of it.
    fn feed(
        &mut self,
        mut record: Bytes,
        mut deliver: impl FnMut(Bytes) -> Result<(), RelayStreamError>,
    ) -> Result<(), RelayStreamError> {
        while !record.is_empty() {
            if let Some(partial) = &mut self.message {
                let take = partial.missing.min(record.len());
                partial.bytes.extend_from_slice(&record[..take]);
                partial.missing -= take;
                record.advance(take);
                if partial.missing == 0
                    && let Some(partial) = self.message.take()
                {
                    deliver(partial.bytes.freeze())?;
                }
                continue;
            }
            let take = (PREFIX_BYTES - self.prefix_len).min(record.len());
            record.copy_to_slice(&mut self.prefix[self.prefix_len..self.prefix_len + take]);
            self.prefix_len += take;
            if self.prefix_len < PREFIX_BYTES {
                continue;
            }
            self.prefix_len = 0;
            let len = match usize::try_from(u32::from_be_bytes(self.prefix)) {
                Ok(0) => return Err(RelayStreamError::EmptyMessage),
                Ok(len) if len <= MESSAGE_BYTES => len,
                Ok(len) => return Err(RelayStreamError::MessageTooLong(len)),
                Err(_) => return Err(RelayStreamError::MessageTooLong(usize::MAX)),
            };
            if record.len() >= len {
                deliver(record.split_to(len))?;
            } else {
                self.message = Some(PartialMessage {
                    // Do not allocate 64 MiB because of a prefix alone.
                    bytes: BytesMut::with_capacity(len.min(INITIAL_CAPACITY)),
                    missing: len,
                });
            }
        }
        Ok(())
    }

    /// Returns whether the last record ended at a message boundary.
    fn is_complete(&self) -> bool {
        self.message.is_none() && self.prefix_len == 0
    }
}

/// Maximum initial allocation for a message.
const INITIAL_CAPACITY: usize = 1 << 20;

/// Complete messages that the application has not read.
#[derive(Debug, Default)]
pub(super) struct ReceiveQueue {
    messages: VecDeque<Bytes>,
    /// Total queue cost of all messages ever received and ever read.
    pub(super) total_in: u64,
    pub(super) total_out: u64,
}

impl ReceiveQueue {
    pub(super) fn push(&mut self, message: Bytes) {
        self.total_in += queue_cost(&message);
        self.messages.push_back(message);
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let message = self.messages.pop_front()?;
        self.total_out += queue_cost(&message);
        if self.messages.is_empty() && self.messages.capacity() > SPARE_CAPACITY {
            self.messages = VecDeque::new();
        }
        Some(message)
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns whether the driver of a plain stream should pause reading.
    pub(super) fn should_pause(&self) -> bool {
        self.messages.len() >= PLAIN_PAUSE_MESSAGES
            || self.total_in - self.total_out >= RECEIVE_QUEUE_BYTES as u64
    }
}

/// Returns the memory that a queued message takes: its bytes and its queue entry.
fn queue_cost(message: &Bytes) -> u64 {
    (message.len() + size_of::<Bytes>()) as u64
}

/// Capacity that an empty queue retains.
const SPARE_CAPACITY: usize = 1024;
