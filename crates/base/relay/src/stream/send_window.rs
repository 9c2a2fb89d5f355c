//! Records on their way, kept until they are acknowledged.
//!
//! A record is sealed once; what is sent again is the very same frame. Its acknowledgement fields are
//! old by then, and old acknowledgements do no harm.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::StreamError;
use crate::limits::{
    RETRANSMIT_FIRST, RETRANSMIT_MAX, RETRANSMIT_MIN, WINDOW_BYTES, WINDOW_RECORDS,
};

/// Records that are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Number of the first of `sent`.
    first: u32,
    sent: VecDeque<Sent>,
    bytes: usize,
    /// Records to be sent again.
    again: BTreeSet<u32>,
    /// Counts every frame that was sent, the first time or again.
    sendings: u64,
    /// The latest sending that is known to have arrived.
    arrived: u64,
    rtt: Rtt,
    timer: Option<Instant>,
}

#[derive(Debug)]
struct Sent {
    frame: Bytes,
    /// Length of the record.
    len: usize,
    at: Instant,
    sending: u64,
    times: u32,
    arrived: bool,
}

impl Window {
    /// Keeps a frame that is being sent for the first time.
    pub(super) fn add(&mut self, frame: Bytes, len: usize, now: Instant) {
        self.sendings += 1;
        self.bytes += len;
        self.sent.push_back(Sent {
            frame,
            len,
            at: now,
            sending: self.sendings,
            times: 1,
            arrived: false,
        });
        let timeout = self.rtt.timeout();
        self.timer.get_or_insert(now + timeout);
    }

    /// Returns a frame that has to be sent again.
    pub(super) fn poll_again(&mut self, now: Instant) -> Option<Bytes> {
        let sent = loop {
            let seq = self.again.pop_first()?;
            // It may have been acknowledged since it was put here.
            if let Some(sent) = seq
                .checked_sub(self.first)
                .and_then(|place| self.sent.get_mut(place as usize))
            {
                break sent;
            }
        };
        self.sendings += 1;
        sent.at = now;
        sent.sending = self.sendings;
        sent.times += 1;
        let frame = sent.frame.clone();
        let timeout = self.rtt.timeout();
        self.timer.get_or_insert(now + timeout);
        Some(frame)
    }

    /// Takes an acknowledgement in: all before `next`, and of those from `next` on what `bits` say.
    /// `sealed` records exist.
    pub(super) fn handle_ack(
        &mut self,
        next: u32,
        bits: u32,
        sealed: u32,
        now: Instant,
    ) -> Result<(), StreamError> {
        let claimed = u64::from(next) + u64::from(u32::BITS - bits.leading_zeros());
        if claimed > u64::from(sealed) {
            let last = u32::try_from(claimed - 1).unwrap_or(u32::MAX);
            return Err(StreamError::AckOfUnsent(last));
        }
        let mut news = News::default();
        while self.first < next
            && let Some(sent) = self.sent.pop_front()
        {
            self.first += 1;
            self.bytes -= sent.len;
            news.progress = true;
            news.note(&sent);
        }
        for place in 0..u32::BITS {
            if bits >> place & 1 == 1
                && let Some(index) = (next + place).checked_sub(self.first)
                && let Some(sent) = self.sent.get_mut(index as usize)
            {
                news.note(sent);
                sent.arrived = true;
                self.again.remove(&(next + place));
            }
        }
        self.arrived = self.arrived.max(news.sending);
        if let Some(at) = news.sample {
            self.rtt.sample(now.saturating_duration_since(at));
        }
        if news.progress {
            self.rtt.answered();
            self.timer = (!self.sent.is_empty()).then(|| now + self.rtt.timeout());
        }
        self.find_lost(next, bits, now);
        Ok(())
    }

    /// Sends everything again that is not known to have arrived: the path it was sent on is gone.
    pub(super) fn send_all_again(&mut self, now: Instant) {
        for (seq, sent) in (self.first..).zip(&self.sent) {
            if !sent.arrived {
                self.again.insert(seq);
            }
        }
        self.rtt.answered();
        self.timer = (!self.sent.is_empty()).then(|| now + self.rtt.timeout());
    }

    /// Forgets what was to be sent: there is no connection.
    pub(super) fn handle_disconnect(&mut self) {
        self.again.clear();
        self.timer = None;
    }

    /// Sends one record again, as a question, if nothing was answered for too long.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.timer.is_none_or(|timer| timer > now) {
            return;
        }
        // If all has arrived, the oldest: its receiver withholds the acknowledgement, and may have
        // sent one that was lost.
        let missing = self.sent.iter().position(|sent| !sent.arrived);
        let seq = (self.first..).nth(missing.unwrap_or(0));
        self.again.extend(seq);
        self.rtt.unanswered();
        self.timer = Some(now + self.rtt.timeout());
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timer
    }

    /// Tells whether a record of `len` bytes may be sent.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.sent.len() < WINDOW_RECORDS && self.bytes + len <= WINDOW_BYTES
    }

    /// Tells whether something is to be sent again.
    pub(super) fn has_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// Returns how many records are not acknowledged.
    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// Sends again what must be lost: something later has arrived, and there was time for an answer.
    /// Later by its number, or by when it was sent. What lies beyond the bits is not known.
    fn find_lost(&mut self, next: u32, bits: u32, now: Instant) {
        let known = next.saturating_add(u32::BITS);
        let highest = next.saturating_add(u32::BITS - bits.leading_zeros());
        let patience = self.rtt.mean();
        for (seq, sent) in (self.first..known).zip(&self.sent) {
            let overtaken = seq < highest || sent.sending < self.arrived;
            if !sent.arrived && overtaken && sent.at + patience <= now {
                self.again.insert(seq);
            }
        }
    }
}

/// What an acknowledgement tells that was not known.
#[derive(Default)]
struct News {
    progress: bool,
    sending: u64,
    sample: Option<Instant>,
}

impl News {
    fn note(&mut self, sent: &Sent) {
        if sent.arrived {
            return;
        }
        self.progress = true;
        self.sending = self.sending.max(sent.sending);
        // Which of several sendings was answered is not known: Karn's rule.
        if sent.times == 1 {
            self.sample = self.sample.max(Some(sent.at));
        }
    }
}

/// Smoothed round trip of one stream.
#[derive(Debug, Default)]
struct Rtt {
    smoothed: Option<(Duration, Duration)>,
    /// How often the time was doubled since the last answer.
    doublings: u32,
}

impl Rtt {
    /// A record that was sent once was answered after `sample`.
    fn sample(&mut self, sample: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (sample, sample / 2),
            Some((mean, deviation)) => (
                (mean * 7 + sample) / 8,
                (deviation * 3 + mean.abs_diff(sample)) / 4,
            ),
        });
    }

    /// Something was answered.
    fn answered(&mut self) {
        self.doublings = 0;
    }

    /// Nothing was answered in time.
    fn unanswered(&mut self) {
        self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
    }

    /// Returns how long to wait for an answer.
    fn timeout(&self) -> Duration {
        let first = match self.smoothed {
            None => RETRANSMIT_FIRST,
            Some((mean, deviation)) => mean + deviation * 4,
        };
        let first = first.clamp(RETRANSMIT_MIN, RETRANSMIT_MAX);
        (first * (1 << self.doublings)).min(RETRANSMIT_MAX)
    }

    /// Returns the smoothed round trip: zero before the first.
    fn mean(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |(mean, _)| mean)
    }
}

/// From the shortest to beyond the longest time.
const MAX_DOUBLINGS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_doubles_up_to_its_maximum_and_falls_back_when_answered() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), RETRANSMIT_FIRST);
        rtt.sample(Duration::from_millis(4));
        assert_eq!(rtt.timeout(), RETRANSMIT_MIN);
        for expected in [400, 800, 1600, 3200, 5000, 5000] {
            rtt.unanswered();
            assert_eq!(rtt.timeout(), Duration::from_millis(expected));
        }
        rtt.answered();
        assert_eq!(rtt.timeout(), RETRANSMIT_MIN);
    }

    #[test]
    fn a_round_trip_that_varies_is_waited_for_longer() {
        let mut rtt = Rtt::default();
        rtt.sample(Duration::from_millis(100));
        assert_eq!(rtt.timeout(), Duration::from_millis(300));
        rtt.sample(Duration::from_millis(300));
        assert_eq!(rtt.mean(), Duration::from_millis(125));
        assert_eq!(rtt.timeout(), Duration::from_micros(475_000));
        rtt.sample(Duration::from_secs(60));
        assert_eq!(rtt.timeout(), RETRANSMIT_MAX);
    }
}
