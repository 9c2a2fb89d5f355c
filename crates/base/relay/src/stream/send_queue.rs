//! Sending side of a stream: the queue of messages that are not in records yet, and the window of a
//! reliable stream's unacknowledged records, with their retransmission and its backoff.
//!
//! Invariant: `bytes[head..]` of the queue contains the messages of `lengths`, each after its
//! prefix. Part of the first message may already be sealed. A record is sealed once, and its frame
//! is retransmitted unchanged. The acknowledgement fields in it are outdated by then, which is
//! harmless.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::RelayStreamError;
use crate::limits::{
    self, MESSAGE_BYTES, PREFIX_BYTES, RECORD_BYTES, RETRANSMIT_FIRST, RETRANSMIT_MAX,
    RETRANSMIT_MIN, WINDOW_BYTES, WINDOW_RECORDS,
};

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
        let mut remaining = slice.range.len();
        while remaining > 0
            && let Some(first) = self.lengths.front_mut()
        {
            let consumed = remaining.min(*first);
            *first -= consumed;
            remaining -= consumed;
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

    fn next_segment(&self, remaining: usize) -> RecordSlice {
        let len = remaining.min(RECORD_BYTES);
        // `MESSAGE_BYTES` bounds both by `limits::MAX_SEGMENTS`.
        let remaining_segments =
            u32::try_from(remaining.div_ceil(RECORD_BYTES)).unwrap_or(limits::MAX_SEGMENTS);
        RecordSlice {
            range: self.head..self.head + len,
            segment_index: self.segment,
            segment_count: self.segment + remaining_segments,
            next_segment: if remaining_segments == 1 {
                0
            } else {
                self.segment + 1
            },
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

/// Unacknowledged records.
#[derive(Debug, Default)]
pub(super) struct SendWindow {
    /// Number of the first record in `sent`.
    first: u32,
    sent: VecDeque<SentRecord>,
    bytes: usize,
    /// Records to retransmit.
    retransmits: BTreeSet<u32>,
    /// Counts transmissions, including retransmissions.
    transmissions: u64,
    /// Latest transmission that is known to have arrived.
    arrived: u64,
    rtt: RttEstimator,
    timer: Option<Instant>,
}

#[derive(Debug)]
struct SentRecord {
    frame: Bytes,
    /// Length of the record.
    len: usize,
    sent_at: Instant,
    transmission: u64,
    send_count: u32,
    arrived: bool,
}

impl SendWindow {
    /// Adds a frame that is sent for the first time.
    pub(super) fn add(&mut self, frame: Bytes, len: usize, now: Instant) {
        self.transmissions += 1;
        self.bytes += len;
        self.sent.push_back(SentRecord {
            frame,
            len,
            sent_at: now,
            transmission: self.transmissions,
            send_count: 1,
            arrived: false,
        });
        let timeout = self.rtt.timeout();
        self.timer.get_or_insert(now + timeout);
    }

    /// Returns the next frame to retransmit.
    pub(super) fn poll_retransmit(&mut self, now: Instant) -> Option<Bytes> {
        let sent = loop {
            let seq = self.retransmits.pop_first()?;
            // Skip records that were acknowledged in the meantime.
            if let Some(sent) = seq
                .checked_sub(self.first)
                .and_then(|offset| self.sent.get_mut(offset as usize))
            {
                break sent;
            }
        };
        self.transmissions += 1;
        sent.sent_at = now;
        sent.transmission = self.transmissions;
        sent.send_count += 1;
        let frame = sent.frame.clone();
        let timeout = self.rtt.timeout();
        self.timer.get_or_insert(now + timeout);
        Some(frame)
    }

    /// Processes an acknowledgement of all records before `next`, and of those after it whose bit
    /// is set. `sealed` is the number of records sealed so far.
    pub(super) fn handle_ack(
        &mut self,
        next: u32,
        bits: u32,
        sealed: u32,
        now: Instant,
    ) -> Result<(), RelayStreamError> {
        let claimed = u64::from(next) + u64::from(u32::BITS - bits.leading_zeros());
        if claimed > u64::from(sealed) {
            let last = u32::try_from(claimed - 1).unwrap_or(u32::MAX);
            return Err(RelayStreamError::AckOfUnsent(last));
        }
        let mut ack_progress = AckProgress::default();
        while self.first < next
            && let Some(sent) = self.sent.pop_front()
        {
            self.first += 1;
            self.bytes -= sent.len;
            ack_progress.advanced = true;
            ack_progress.add(&sent);
        }
        for offset in 0..u32::BITS {
            if bits >> offset & 1 == 1
                && let Some(index) = (next + offset).checked_sub(self.first)
                && let Some(sent) = self.sent.get_mut(index as usize)
            {
                ack_progress.add(sent);
                sent.arrived = true;
                self.retransmits.remove(&(next + offset));
            }
        }
        self.arrived = self.arrived.max(ack_progress.transmission);
        if let Some(at) = ack_progress.sample {
            self.rtt.add_sample(now.saturating_duration_since(at));
        }
        if ack_progress.advanced {
            self.rtt.reset_backoff();
            self.timer = (!self.sent.is_empty()).then(|| now + self.rtt.timeout());
        }
        self.detect_losses(next, bits, now);
        Ok(())
    }

    /// Schedules all records for retransmission that are not known to have arrived, because the
    /// path they were sent on is gone.
    pub(super) fn retransmit_all(&mut self, now: Instant) {
        for (seq, sent) in (self.first..).zip(&self.sent) {
            if !sent.arrived {
                self.retransmits.insert(seq);
            }
        }
        self.rtt.reset_backoff();
        self.timer = (!self.sent.is_empty()).then(|| now + self.rtt.timeout());
    }

    /// Cancels retransmissions until the next connection.
    pub(super) fn handle_disconnect(&mut self) {
        self.retransmits.clear();
        self.timer = None;
    }

    /// Retransmits one record as a probe if no acknowledgement arrived in time.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.timer.is_none_or(|timer| timer > now) {
            return;
        }
        // If everything has arrived, probe with the oldest record: the receiver withholds its
        // acknowledgement, or it was lost.
        let missing = self.sent.iter().position(|sent| !sent.arrived);
        let seq = (self.first..).nth(missing.unwrap_or(0));
        self.retransmits.extend(seq);
        self.rtt.back_off();
        self.timer = Some(now + self.rtt.timeout());
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timer
    }

    /// Returns whether a record of `len` bytes may be sent.
    pub(super) fn has_capacity(&self, len: usize) -> bool {
        self.sent.len() < WINDOW_RECORDS && self.bytes + len <= WINDOW_BYTES
    }

    /// Returns whether retransmissions are scheduled.
    pub(super) fn has_retransmits(&self) -> bool {
        !self.retransmits.is_empty()
    }

    /// Returns the number of unacknowledged records.
    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// Schedules lost records for retransmission: a later record or transmission has arrived, and
    /// there was time for an acknowledgement. Records beyond the bits are unknown.
    fn detect_losses(&mut self, next: u32, bits: u32, now: Instant) {
        let known = next.saturating_add(u32::BITS);
        let highest = next.saturating_add(u32::BITS - bits.leading_zeros());
        let reorder_delay = self.rtt.mean();
        for (seq, sent) in (self.first..known).zip(&self.sent) {
            let overtaken = seq < highest || sent.transmission < self.arrived;
            if !sent.arrived && overtaken && sent.sent_at + reorder_delay <= now {
                self.retransmits.insert(seq);
            }
        }
    }
}

/// New information in an acknowledgement.
#[derive(Default)]
struct AckProgress {
    advanced: bool,
    transmission: u64,
    sample: Option<Instant>,
}

impl AckProgress {
    fn add(&mut self, sent: &SentRecord) {
        if sent.arrived {
            return;
        }
        self.advanced = true;
        self.transmission = self.transmission.max(sent.transmission);
        // An acknowledgement of a retransmitted record is ambiguous (Karn's algorithm).
        if sent.send_count == 1 {
            self.sample = self.sample.max(Some(sent.sent_at));
        }
    }
}

/// Round-trip estimator with the retransmission timeout of RFC 6298.
#[derive(Debug, Default)]
struct RttEstimator {
    smoothed: Option<(Duration, Duration)>,
    /// Number of times the timeout was doubled since the last acknowledgement.
    backoff_exponent: u32,
}

impl RttEstimator {
    /// Adds the round-trip time of a record that was sent once.
    fn add_sample(&mut self, sample: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (sample, sample / 2),
            Some((mean, deviation)) => (
                (mean * 7 + sample) / 8,
                (deviation * 3 + mean.abs_diff(sample)) / 4,
            ),
        });
    }

    /// Ends the backoff after an acknowledgement.
    fn reset_backoff(&mut self) {
        self.backoff_exponent = 0;
    }

    /// Doubles the timeout after it expired.
    fn back_off(&mut self) {
        self.backoff_exponent = (self.backoff_exponent + 1).min(MAX_BACKOFF_EXPONENT);
    }

    /// Returns the retransmission timeout.
    fn timeout(&self) -> Duration {
        let first = match self.smoothed {
            None => RETRANSMIT_FIRST,
            Some((mean, deviation)) => mean + deviation * 4,
        };
        let first = first.clamp(RETRANSMIT_MIN, RETRANSMIT_MAX);
        (first * (1 << self.backoff_exponent)).min(RETRANSMIT_MAX)
    }

    /// Returns the smoothed round-trip time, or zero before the first sample.
    fn mean(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |(mean, _)| mean)
    }
}

/// Enough to grow from the minimum beyond the maximum timeout.
const MAX_BACKOFF_EXPONENT: u32 = 5;

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

#[cfg(test)]
mod send_window_tests {
    use super::*;

    #[test]
    fn retransmission_timeout_backs_off_and_resets_after_an_ack() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.timeout(), RETRANSMIT_FIRST);
        rtt.add_sample(Duration::from_millis(4));
        assert_eq!(rtt.timeout(), RETRANSMIT_MIN);
        for expected in [400, 800, 1600, 3200, 5000, 5000] {
            rtt.back_off();
            assert_eq!(rtt.timeout(), Duration::from_millis(expected));
        }
        rtt.reset_backoff();
        assert_eq!(rtt.timeout(), RETRANSMIT_MIN);
    }

    #[test]
    fn varying_round_trips_increase_the_timeout() {
        let mut rtt = RttEstimator::default();
        rtt.add_sample(Duration::from_millis(100));
        assert_eq!(rtt.timeout(), Duration::from_millis(300));
        rtt.add_sample(Duration::from_millis(300));
        assert_eq!(rtt.mean(), Duration::from_millis(125));
        assert_eq!(rtt.timeout(), Duration::from_micros(475_000));
        rtt.add_sample(Duration::from_secs(60));
        assert_eq!(rtt.timeout(), RETRANSMIT_MAX);
    }
}
