//! What a reliable stream has beyond a plain one.

use std::{collections::VecDeque, time::Instant};

use super::{
    StreamError,
    record_receiver::{ReceiveQueue, RecordReceiver, ReorderOutcome},
    send_window::SendWindow,
};
use crate::{
    frame::Data,
    limits::{
        ACK_BYTES, ACK_DELAY, ACK_RECORDS, HEARTBEAT_INTERVAL, KEEPALIVE_TIMEOUT,
        RECEIVE_QUEUE_BYTES, RECEIVE_QUEUE_MESSAGES, RETRANSMIT_FIRST, WINDOW_BYTES,
        WINDOW_RECORDS,
    },
};

/// Acknowledgements in both directions, and the life of the connection.
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

    /// Takes in what every frame of the peer carries. `sealed` records exist.
    pub(super) fn handle_ack(
        &mut self,
        ack: u32,
        bits: u32,
        sealed: u32,
        now: Instant,
    ) -> Result<(), StreamError> {
        self.window
            .handle_ack(ack.wrapping_add(1), bits, sealed, now)?;
        if self.keepalive.record_received(now) == PeerActivity::ResumeAnswered {
            self.window.retransmit_all(now);
        }
        Ok(())
    }

    /// The peer goes on, on a new connection: it gets all it lacks, and is told what it need not send.
    pub(super) fn handle_resume(&mut self, next_seq: u32, receiver: &RecordReceiver, now: Instant) {
        self.acks.send_immediately();
        // One that names less than has arrived since is a late copy: what it asked for was answered.
        if next_seq >= receiver.next() {
            self.keepalive.handle_resume(now);
            self.window.retransmit_all(now);
        }
    }

    /// Takes a record, and every record that waited for it.
    pub(super) fn handle_data(
        &mut self,
        data: Data,
        receiver: &mut RecordReceiver,
        now: Instant,
    ) -> Result<(), StreamError> {
        match receiver.insert(data) {
            ReorderOutcome::Next(data) => self.deliver(Some(data), receiver, now),
            // The sender learns at once what is missing, or that it need not have sent this. What is
            // out of the window is sent again later.
            ReorderOutcome::Buffered
            | ReorderOutcome::Duplicate
            | ReorderOutcome::OutOfWindow
            | ReorderOutcome::BufferFull => {
                self.acks.send_immediately();
                Ok(())
            }
        }
    }

    /// The application took a message: there may be room again, here and at the sender.
    pub(super) fn handle_message_taken(
        &mut self,
        receiver: &mut RecordReceiver,
        now: Instant,
    ) -> Result<(), StreamError> {
        if !self.withheld_acks.is_withholding() && !receiver.has_next() {
            return Ok(());
        }
        self.withheld_acks.release(receiver.receive_queue());
        let next = receiver.pop_next();
        self.deliver(next, receiver, now)?;
        let withheld = if self.withheld_acks.is_withholding() {
            AckBacklog::Pending
        } else {
            AckBacklog::Empty
        };
        self.acks
            .record_released(self.withheld_acks.next(), withheld);
        Ok(())
    }

    /// Delivers a record whose turn it is, and those that waited for it, while there is room.
    fn deliver(
        &mut self,
        mut next: Option<Data>,
        receiver: &mut RecordReceiver,
        now: Instant,
    ) -> Result<(), StreamError> {
        while let Some(data) = next {
            let len = data.payload.len();
            if !self.withheld_acks.has_room(len, receiver.receive_queue()) {
                receiver.reinsert(data);
                break;
            }
            receiver.deliver_segment(data)?;
            self.withheld_acks.add(len, receiver.receive_queue());
            self.acks.record_delivered(len, now);
            next = receiver.pop_next();
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

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Result<(), StreamError> {
        if self.keepalive.handle_timeout(now) == PeerStatus::Silent {
            return Err(StreamError::Silent);
        }
        self.acks.handle_timeout(now);
        self.window.handle_timeout(now);
        Ok(())
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let keepalive = self.keepalive.poll_timeout()?;
        let others = [self.acks.poll_timeout(), self.window.poll_timeout()];
        others.into_iter().flatten().chain([keepalive]).min()
    }

    /// Returns the acknowledgement fields of a frame that is being sent, and notes that they are.
    pub(super) fn take_ack_fields(
        &mut self,
        receiver: &RecordReceiver,
        now: Instant,
    ) -> (u32, u32) {
        let next = self.withheld_acks.next();
        self.acks.mark_sent(next);
        self.keepalive.record_sent(now);
        (next.wrapping_sub(1), receiver.received_bits(next))
    }
}

/// What the sender has not been told.
#[derive(Debug, Default)]
pub(super) struct AckScheduler {
    records: u32,
    bytes: usize,
    deadline: Option<Instant>,
    is_due: bool,
    /// The last acknowledgement that was sent, as the number of the record after it.
    acked_next: u32,
}

impl AckScheduler {
    /// A record was delivered.
    pub(super) fn record_delivered(&mut self, len: usize, now: Instant) {
        self.records += 1;
        self.bytes += len;
        if self.records >= ACK_RECORDS || self.bytes >= ACK_BYTES {
            self.send_immediately();
        } else {
            self.deadline.get_or_insert(now + ACK_DELAY);
        }
    }

    /// The application took messages, so that records up to `next` may be acknowledged.
    pub(super) fn record_released(&mut self, next: u32, backlog: AckBacklog) {
        let unsent = next.saturating_sub(self.acked_next);
        if unsent >= ACK_RECORDS || (unsent > 0 && backlog == AckBacklog::Empty) {
            self.send_immediately();
        }
    }

    /// The sender must know at once: something is missing, came twice, or it asks.
    pub(super) fn send_immediately(&mut self) {
        self.is_due = true;
        self.deadline = None;
    }

    /// A frame carries the acknowledgement up to `next`.
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

/// Whether acknowledgements are still withheld.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AckBacklog {
    /// All that was delivered may be acknowledged.
    Empty,
    /// The application has not taken enough.
    Pending,
}

/// Records of a reliable stream that were delivered, up to where they may be acknowledged.
///
/// A record is acknowledged when what came with and before it fits into [`RECEIVE_QUEUE_BYTES`] of messages
/// not taken. The sender's window then bounds the rest.
#[derive(Debug, Default)]
struct WithheldAcks {
    /// The first record that may not be acknowledged yet.
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
    /// A record of `len` bytes was delivered into `receive_queue`.
    fn add(&mut self, len: usize, receive_queue: &ReceiveQueue) {
        self.withheld.push_back(WithheldAck {
            len,
            total_in: receive_queue.total_in,
        });
        self.withheld_bytes += len;
        self.release(receive_queue);
    }

    /// Releases what may be acknowledged now.
    fn release(&mut self, receive_queue: &ReceiveQueue) {
        while let Some(ack) = self.withheld.front()
            && ack.total_in <= receive_queue.total_out + RECEIVE_QUEUE_BYTES as u64
        {
            self.withheld_bytes -= ack.len;
            self.withheld.pop_front();
            self.next = self.next.saturating_add(1);
        }
    }

    /// Tells whether one more record may be delivered. A sender that keeps to its window always finds
    /// room, unless its messages are tiny.
    fn has_room(&self, len: usize, receive_queue: &ReceiveQueue) -> bool {
        receive_queue.len() < RECEIVE_QUEUE_MESSAGES
            && self.withheld.len() < WINDOW_RECORDS
            && (self.withheld_bytes + len <= WINDOW_BYTES || self.withheld.is_empty())
    }

    /// Returns the first record that may not be acknowledged yet.
    fn next(&self) -> u32 {
        self.next
    }

    fn is_withholding(&self) -> bool {
        !self.withheld.is_empty()
    }
}

/// The connection of a reliable stream, and when something was last sent and heard on it.
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
    /// On a new connection, nothing was heard yet. When `Resume` is sent next; absent: now.
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

    /// The peer sent something. Tells whether that is the first since a reconnect.
    pub(super) fn record_received(&mut self, now: Instant) -> PeerActivity {
        self.last_received = now;
        match self.state {
            State::Resuming(Some(_)) => {
                self.state = State::Connected;
                PeerActivity::ResumeAnswered
            }
            // SentRecord before this side resumed, it does not answer.
            State::Resuming(None) | State::Connected | State::Disconnected => PeerActivity::Other,
        }
    }

    /// The peer resumed: it is on this connection, and asks for what it lacks.
    pub(super) fn handle_resume(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Something was sent.
    pub(super) fn record_sent(&mut self, now: Instant) {
        self.last_sent = now;
        self.heartbeat_due = false;
    }

    /// `Resume` was sent. It is sent once more if nothing answers.
    pub(super) fn record_resume_sent(&mut self, now: Instant) {
        self.state = State::Resuming(Some(now + RETRANSMIT_FIRST));
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> PeerStatus {
        if self.state == State::Disconnected {
            return PeerStatus::Alive;
        }
        if self.last_received + KEEPALIVE_TIMEOUT <= now {
            return PeerStatus::Silent;
        }
        if matches!(self.state, State::Resuming(Some(at)) if at <= now) {
            self.state = State::Resuming(None);
        }
        self.heartbeat_due |= self.last_sent + HEARTBEAT_INTERVAL <= now;
        PeerStatus::Alive
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

    /// Tells whether the peer is known to be on this connection, so that records may be sent.
    pub(super) fn is_established(&self) -> bool {
        self.state == State::Connected
    }

    pub(super) fn is_heartbeat_due(&self) -> bool {
        self.heartbeat_due
    }
}

/// What a frame of the peer means for the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PeerActivity {
    /// It answers a `Resume`: its acknowledgement tells all that has arrived.
    ResumeAnswered,
    /// Nothing new.
    Other,
}

/// Whether the peer is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PeerStatus {
    /// As far as is known.
    Alive,
    /// It has shown no life for too long.
    Silent,
}
