//! Send queue of a stream: messages that are not in records yet.
//!
//! Invariant: `bytes[head..]` contains the messages of `lengths`, each after its prefix. Part of
//! the first message may already be sealed.

use std::{collections::VecDeque, ops::Range};

use crate::limits::{self, MESSAGE_BYTES, PREFIX_BYTES, RECORD_BYTES};

/// Queue of messages that are not sealed yet.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    bytes: Vec<u8>,
    head: usize,
    /// Remaining bytes of each message, prefix included.
    lengths: VecDeque<usize>,
    /// Index of the next segment of the first message. 0 unless it is longer than a record.
    segment: u32,
}

impl SendQueue {
    /// Appends one message after its prefix.
    pub(super) fn push(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StreamPushError> {
        self.compact();
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; PREFIX_BYTES]);
        encode(&mut self.bytes);
        let total = self.bytes.len().saturating_sub(start);
        let len = total.saturating_sub(PREFIX_BYTES);
        let prefix = match u32::try_from(len) {
            Ok(0) => Err(StreamPushError::Empty),
            Ok(prefix) if len <= MESSAGE_BYTES => Ok(prefix.to_be_bytes()),
            _ => Err(StreamPushError::TooLong(len)),
        };
        match prefix {
            Ok(prefix) => {
                self.bytes[start..start + PREFIX_BYTES].copy_from_slice(&prefix);
                self.lengths.push_back(total);
                Ok(())
            }
            Err(error) => {
                self.bytes.truncate(start);
                Err(error)
            }
        }
    }

    /// Removes a sealed slice.
    pub(super) fn advance(&mut self, slice: &RecordSlice) {
        self.head = slice.range.end;
        let mut left = slice.range.len();
        while left > 0
            && let Some(first) = self.lengths.front_mut()
        {
            let taken = left.min(*first);
            *first -= taken;
            left -= taken;
            if *first == 0 {
                self.lengths.pop_front();
            }
        }
        self.segment = slice.next_segment;
        if self.lengths.is_empty() {
            self.head = 0;
            if self.bytes.capacity() > SPARE_CAPACITY {
                self.bytes = Vec::new();
            } else {
                self.bytes.clear();
            }
        }
    }

    /// Returns the content of the next record.
    pub(super) fn next(&self, packing: RecordPacking) -> Option<RecordSlice> {
        let &first = self.lengths.front()?;
        let len = match packing {
            RecordPacking::OneMessage => first.min(RECORD_BYTES),
            RecordPacking::WholeMessages if self.segment > 0 || first > RECORD_BYTES => {
                return Some(self.next_segment(first));
            }
            RecordPacking::WholeMessages => {
                let mut len = 0;
                for more in &self.lengths {
                    if len + more > RECORD_BYTES {
                        break;
                    }
                    len += more;
                }
                len
            }
        };
        Some(RecordSlice {
            range: self.head..self.head + len,
            segment_index: 0,
            segment_count: 1,
            next_segment: 0,
        })
    }

    pub(super) fn bytes(&self, slice: &RecordSlice) -> &[u8] {
        self.bytes.get(slice.range.clone()).unwrap_or_default()
    }

    /// Returns the number of unsealed bytes, prefixes included.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.head
    }

    fn next_segment(&self, left: usize) -> RecordSlice {
        let len = left.min(RECORD_BYTES);
        // `MESSAGE_BYTES` bounds both by `limits::MAX_SEGMENTS`.
        let more = u32::try_from(left.div_ceil(RECORD_BYTES)).unwrap_or(limits::MAX_SEGMENTS);
        RecordSlice {
            range: self.head..self.head + len,
            segment_index: self.segment,
            segment_count: self.segment + more,
            next_segment: if more == 1 { 0 } else { self.segment + 1 },
        }
    }

    /// Moves the remaining bytes to the front if more than half of the buffer is free.
    fn compact(&mut self) {
        if self.head > self.bytes.len() / 2 {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
    }
}

/// Content of one record.
#[derive(Debug)]
pub(super) struct RecordSlice {
    range: Range<usize>,
    pub(super) segment_index: u32,
    pub(super) segment_count: u32,
    next_segment: u32,
}

impl RecordSlice {
    pub(super) fn len(&self) -> usize {
        self.range.len()
    }
}

/// How messages are packed into records.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RecordPacking {
    /// Each message starts a new record, as in stock senders.
    OneMessage,
    /// Short messages share a record; long ones are split into segments.
    WholeMessages,
}

/// Why a message was not queued. The stream continues without it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamPushError {
    /// Caller: the message is empty.
    #[error("message is empty")]
    Empty,
    /// Caller: the message exceeds [`MESSAGE_BYTES`].
    #[error("message of {0} bytes exceeds {MESSAGE_BYTES}")]
    TooLong(usize),
}

/// Capacity that an empty queue retains.
const SPARE_CAPACITY: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    /// Returns a message of `len` bytes in which neighbouring bytes differ.
    fn message(len: usize) -> &'static [u8] {
        static LONGEST: LazyLock<Vec<u8>> =
            LazyLock::new(|| (0..=250).cycle().take(200_000).collect());
        &LONGEST[..len]
    }

    proptest! {
        #[test]
        fn slices_carry_the_messages_in_order_when_interleaved(
            lengths in prop::collection::vec(
                prop_oneof![1..200usize, 61_400..61_500usize, 100_000..200_000usize],
                1..12,
            ),
            takes in prop::collection::vec(0..4usize, 12),
            packing in prop_oneof![Just(RecordPacking::OneMessage), Just(RecordPacking::WholeMessages)],
        ) {
            let mut send_queue = SendQueue::default();
            let (mut pushed, mut taken) = (Vec::new(), Vec::new());
            let mut take = |send_queue: &mut SendQueue| {
                let Some(slice) = send_queue.next(packing) else {
                    return false;
                };
                assert!((1..=RECORD_BYTES).contains(&slice.len()));
                taken.extend_from_slice(send_queue.bytes(&slice));
                send_queue.advance(&slice);
                true
            };
            for (len, takes) in lengths.into_iter().zip(takes) {
                send_queue.push(|bytes| bytes.extend_from_slice(message(len))).unwrap();
                pushed.extend(u32::try_from(len).unwrap().to_be_bytes());
                pushed.extend_from_slice(message(len));
                for _ in 0..takes {
                    take(&mut send_queue);
                }
            }
            while take(&mut send_queue) {}
            prop_assert_eq!(send_queue.len(), 0);
            prop_assert!(pushed == taken);
        }
    }

    #[test]
    fn sent_bytes_are_freed_while_the_queue_stays_long() {
        let mut send_queue = SendQueue::default();
        for _ in 0..1000 {
            send_queue
                .push(|bytes| bytes.extend_from_slice(message(50_000)))
                .unwrap();
            if send_queue.len() > 200_000 {
                let slice = send_queue.next(RecordPacking::WholeMessages).unwrap();
                send_queue.advance(&slice);
            }
        }
        assert!(send_queue.bytes.len() < 600_000);
    }
}
