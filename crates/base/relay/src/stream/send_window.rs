//! Send window of a reliable stream: unacknowledged records, their retransmission and its backoff.
//!
//! A record is sealed once, and its frame is retransmitted unchanged. The acknowledgement fields in
//! it are outdated by then, which is harmless.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::RelayStreamError;
use crate::limits::{
    RETRANSMIT_FIRST, RETRANSMIT_MAX, RETRANSMIT_MIN, WINDOW_BYTES, WINDOW_RECORDS,
};

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

    /// Cancels retransmissions while there is no connection.
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
