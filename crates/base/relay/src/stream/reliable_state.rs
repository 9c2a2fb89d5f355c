//! State that a reliable stream has in addition to a plain one: the send window with
//! retransmission, acknowledgements with flow control, and the keepalive.

use std::{collections::VecDeque, time::Instant};

use super::{
    RelayStreamError,
    record_receiver::{ReceiveQueue, RecordReceiver, ReorderOutcome},
    send_queue::SendWindow,
};
use crate::{
    frame::SealedRecord,
    limits::{
        ACK_BYTES, ACK_DELAY, ACK_RECORDS, HEARTBEAT_INTERVAL, KEEPALIVE_TIMEOUT,
        RECEIVE_QUEUE_BYTES, RECEIVE_QUEUE_MESSAGES, RETRANSMIT_FIRST, WINDOW_BYTES,
        WINDOW_RECORDS,
    },
};

/// Acknowledgements in both directions, and the keepalive of the connection.
#[derive(Debug)]
pub(super) struct ReliableState {
    pub(super) window: SendWindow,
    pub(super) acks: AckScheduler,
    pub(super) keepalive: StreamKeepalive,
    withheld_acks: WithheldAcks,
}

impl ReliableState {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            window: SendWindow::default(),
            acks: AckScheduler::default(),
            keepalive: StreamKeepalive::new(now),
            withheld_acks: WithheldAcks::default(),
        }
    }

    /// Processes the acknowledgement fields of a frame. `sealed` is the number of records sealed so
    /// far.
    pub(super) fn handle_ack(
        &mut self,
        ack: u32,
        bits: u32,
        sealed: u32,
        now: Instant,
    ) -> Result<(), RelayStreamError> {
        self.window
            .handle_ack(ack.wrapping_add(1), bits, sealed, now)?;
        if self.keepalive.record_received(now) {
            self.window.retransmit_all(now);
        }
        Ok(())
    }

    /// Processes a `Resume`: the peer has a new connection. Retransmits everything it lacks and
    /// sends an acknowledgement.
    pub(super) fn handle_resume(&mut self, next_seq: u32, receiver: &RecordReceiver, now: Instant) {
        self.acks.send_immediately();
        // A lower number means a late duplicate, which was answered before.
        if next_seq >= receiver.reorder.next {
            self.keepalive.handle_resume(now);
            self.window.retransmit_all(now);
        }
    }

    /// Processes a record, and delivers all records that are now in order.
    pub(super) fn handle_data(
        &mut self,
        data: SealedRecord,
        receiver: &mut RecordReceiver,
        now: Instant,
    ) -> Result<(), RelayStreamError> {
        match receiver.reorder.insert(data) {
            ReorderOutcome::Next(data) => self.deliver(Some(data), receiver, now),
            // Acknowledge immediately: the sender learns about the gap or the duplicate. It
            // retransmits discarded records later.
            ReorderOutcome::Buffered
            | ReorderOutcome::Duplicate
            | ReorderOutcome::OutOfWindow
            | ReorderOutcome::BufferFull => {
                self.acks.send_immediately();
                Ok(())
            }
        }
    }

    /// Processes that the application read a message, which may free capacity here and at the
    /// sender.
    pub(super) fn handle_message_read(
        &mut self,
        receiver: &mut RecordReceiver,
        now: Instant,
    ) -> Result<(), RelayStreamError> {
        if !self.withheld_acks.is_withholding() && !receiver.reorder.has_next() {
            return Ok(());
        }
        self.withheld_acks.release(&receiver.receive_queue);
        let next = receiver.reorder.pop();
        self.deliver(next, receiver, now)?;
        let unsent = self.withheld_acks.next.saturating_sub(self.acks.acked_next);
        if unsent >= ACK_RECORDS || (unsent > 0 && !self.withheld_acks.is_withholding()) {
            self.acks.send_immediately();
        }
        Ok(())
    }

    /// Delivers the next record and the buffered records after it, while there is capacity.
    fn deliver(
        &mut self,
        mut next: Option<SealedRecord>,
        receiver: &mut RecordReceiver,
        now: Instant,
    ) -> Result<(), RelayStreamError> {
        while let Some(data) = next {
            let len = data.payload.len();
            if !self
                .withheld_acks
                .has_capacity(len, &receiver.receive_queue)
            {
                receiver.reorder.reinsert(data);
                break;
            }
            receiver.deliver_segment(data)?;
            self.withheld_acks.add(len, &receiver.receive_queue);
            self.acks.record_delivered(len, now);
            next = receiver.reorder.pop();
        }
        Ok(())
    }

    pub(super) fn handle_disconnect(&mut self) {
        self.window.handle_disconnect();
        self.keepalive.handle_disconnect();
    }

    pub(super) fn handle_reconnect(&mut self, now: Instant) {
        self.window.handle_disconnect();
        self.keepalive.handle_reconnect(now);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Result<(), RelayStreamError> {
        self.keepalive.handle_timeout(now)?;
        self.acks.handle_timeout(now);
        self.window.handle_timeout(now);
        Ok(())
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let keepalive = self.keepalive.poll_timeout()?;
        let others = [self.acks.poll_timeout(), self.window.poll_timeout()];
        others.into_iter().flatten().chain([keepalive]).min()
    }

    /// Returns the acknowledgement fields of a frame that is being sent, and records that they are
    /// sent.
    pub(super) fn take_ack_fields(
        &mut self,
        receiver: &RecordReceiver,
        now: Instant,
    ) -> (u32, u32) {
        let next = self.withheld_acks.next;
        self.acks.mark_sent(next);
        self.keepalive.record_sent(now);
        (next.wrapping_sub(1), receiver.reorder.received_bits(next))
    }
}

/// Schedules acknowledgements: after some records, after a delay, or immediately.
#[derive(Debug, Default)]
pub(super) struct AckScheduler {
    records: u32,
    bytes: usize,
    deadline: Option<Instant>,
    is_due: bool,
    /// First record that the last sent acknowledgement does not include.
    acked_next: u32,
}

impl AckScheduler {
    /// Schedules the acknowledgement of a delivered record.
    pub(super) fn record_delivered(&mut self, len: usize, now: Instant) {
        self.records += 1;
        self.bytes += len;
        if self.records >= ACK_RECORDS || self.bytes >= ACK_BYTES {
            self.send_immediately();
        } else {
            self.deadline.get_or_insert(now + ACK_DELAY);
        }
    }

    /// Requests an immediate acknowledgement after a gap, a duplicate or a `Resume`.
    pub(super) fn send_immediately(&mut self) {
        self.is_due = true;
        self.deadline = None;
    }

    /// Records that a frame with an acknowledgement of the records before `next` was sent.
    pub(super) fn mark_sent(&mut self, next: u32) {
        *self = Self {
            acked_next: next,
            ..Self::default()
        };
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.send_immediately();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }
}

/// Flow control of a reliable stream: delivered records with a withheld acknowledgement.
///
/// A record is acknowledged once the unread messages up to it fit into [`RECEIVE_QUEUE_BYTES`]. The
/// sender's window bounds the rest.
#[derive(Debug, Default)]
struct WithheldAcks {
    /// First record that may not be acknowledged yet.
    next: u32,
    withheld: VecDeque<WithheldAck>,
    withheld_bytes: usize,
}

#[derive(Debug)]
struct WithheldAck {
    len: usize,
    /// [`ReceiveQueue::total_in`] after the record.
    total_in: u64,
}

impl WithheldAcks {
    /// Adds a record of `len` bytes that was delivered into `receive_queue`.
    fn add(&mut self, len: usize, receive_queue: &ReceiveQueue) {
        self.withheld.push_back(WithheldAck {
            len,
            total_in: receive_queue.total_in,
        });
        self.withheld_bytes += len;
        self.release(receive_queue);
    }

    /// Releases the records that may be acknowledged now.
    fn release(&mut self, receive_queue: &ReceiveQueue) {
        while let Some(ack) = self.withheld.front()
            && ack.total_in <= receive_queue.total_out + RECEIVE_QUEUE_BYTES as u64
        {
            self.withheld_bytes -= ack.len;
            self.withheld.pop_front();
            self.next = self.next.saturating_add(1);
        }
    }

    /// Returns whether another record may be delivered. Always true for a sender that respects its
    /// window, unless its messages are tiny.
    fn has_capacity(&self, len: usize, receive_queue: &ReceiveQueue) -> bool {
        receive_queue.len() < RECEIVE_QUEUE_MESSAGES
            && self.withheld.len() < WINDOW_RECORDS
            && (self.withheld_bytes + len <= WINDOW_BYTES || self.withheld.is_empty())
    }

    fn is_withholding(&self) -> bool {
        !self.withheld.is_empty()
    }
}

/// Keepalive of a reliable stream: sends heartbeats and detects a silent peer.
#[derive(Debug)]
pub(super) struct StreamKeepalive {
    state: State,
    last_sent: Instant,
    last_received: Instant,
    heartbeat_due: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Connected,
    /// Nothing was received on the new connection yet. `Resume` is sent at this time; absent: now.
    Resuming(Option<Instant>),
    Disconnected,
}

impl StreamKeepalive {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Connected,
            last_sent: now,
            last_received: now,
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

    /// Records a received frame. Returns whether it is the first answer to a `Resume`, whose
    /// acknowledgement covers everything that the peer received.
    pub(super) fn record_received(&mut self, now: Instant) -> bool {
        self.last_received = now;
        // Before `Resume` is sent, a frame is not an answer to it.
        let is_answer = matches!(self.state, State::Resuming(Some(_)));
        if is_answer {
            self.state = State::Connected;
        }
        is_answer
    }

    /// Records that the peer resumed, so it uses this connection.
    pub(super) fn handle_resume(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Records a sent frame.
    pub(super) fn record_sent(&mut self, now: Instant) {
        self.last_sent = now;
        self.heartbeat_due = false;
    }

    /// Records that `Resume` was sent, and schedules the next one in case of no answer.
    pub(super) fn record_resume_sent(&mut self, now: Instant) {
        self.state = State::Resuming(Some(now + RETRANSMIT_FIRST));
    }

    /// Fails if the keepalive timeout has expired.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Result<(), RelayStreamError> {
        if self.state == State::Disconnected {
            return Ok(());
        }
        if self.last_received + KEEPALIVE_TIMEOUT <= now {
            return Err(RelayStreamError::Silent);
        }
        if matches!(self.state, State::Resuming(Some(at)) if at <= now) {
            self.state = State::Resuming(None);
        }
        self.heartbeat_due |= self.last_sent + HEARTBEAT_INTERVAL <= now;
        Ok(())
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let resume = match self.state {
            State::Disconnected => return None,
            State::Resuming(at) => at,
            State::Connected => None,
        };
        let heartbeat = (!self.heartbeat_due).then(|| self.last_sent + HEARTBEAT_INTERVAL);
        let silence = Some(self.last_received + KEEPALIVE_TIMEOUT);
        [resume, heartbeat, silence].into_iter().flatten().min()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state != State::Disconnected
    }

    pub(super) fn is_resume_due(&self) -> bool {
        self.state == State::Resuming(None)
    }

    /// Returns whether the peer is known to use this connection, so that records may be sent.
    pub(super) fn is_established(&self) -> bool {
        self.state == State::Connected
    }

    pub(super) fn is_heartbeat_due(&self) -> bool {
        self.heartbeat_due
    }
}
