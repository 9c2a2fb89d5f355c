//! What a reliable stream has beyond a plain one.

use std::{collections::VecDeque, time::Instant};

use super::{
    StreamError,
    record_receiver::{Inbox, Order, Receiver},
    send_window::Window,
};
use crate::{
    frame::Data,
    limits::{
        ACK_BYTES, ACK_DELAY, ACK_RECORDS, HEARTBEAT, INBOX_BYTES, INBOX_MESSAGES,
        RETRANSMIT_FIRST, SILENCE, WINDOW_BYTES, WINDOW_RECORDS,
    },
};

/// Acknowledgements in both directions, and the life of the connection.
#[derive(Debug)]
pub(super) struct Reliable {
    pub(super) window: Window,
    pub(super) acks: Acks,
    pub(super) liveness: Liveness,
    receipts: Receipts,
}

impl Reliable {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            window: Window::default(),
            acks: Acks::default(),
            liveness: Liveness::new(now),
            receipts: Receipts::default(),
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
        if self.liveness.heard(now) == Heard::First {
            self.window.send_all_again(now);
        }
        Ok(())
    }

    /// The peer goes on, on a new connection: it gets all it lacks, and is told what it need not send.
    pub(super) fn handle_resume(&mut self, next_seq: u32, receiver: &Receiver, now: Instant) {
        self.acks.now();
        // One that names less than has arrived since is a late copy: what it asked for was answered.
        if next_seq >= receiver.next() {
            self.liveness.handle_resume(now);
            self.window.send_all_again(now);
        }
    }

    /// Takes a record, and every record that waited for it.
    pub(super) fn handle_data(
        &mut self,
        data: Data,
        receiver: &mut Receiver,
        now: Instant,
    ) -> Result<(), StreamError> {
        match receiver.sort(data) {
            Order::Next(data) => self.deliver(Some(data), receiver, now),
            // The sender learns at once what is missing, or that it need not have sent this. What is
            // out of the window is sent again later.
            Order::Held | Order::Duplicate | Order::TooFar | Order::TooMuch => {
                self.acks.now();
                Ok(())
            }
        }
    }

    /// The application took a message: there may be room again, here and at the sender.
    pub(super) fn handle_taken(
        &mut self,
        receiver: &mut Receiver,
        now: Instant,
    ) -> Result<(), StreamError> {
        if !self.receipts.is_withholding() && !receiver.has_held() {
            return Ok(());
        }
        self.receipts.settle(receiver.inbox());
        let waited = receiver.pop_held();
        self.deliver(waited, receiver, now)?;
        let withheld = if self.receipts.is_withholding() {
            Withheld::Something
        } else {
            Withheld::Nothing
        };
        self.acks.released(self.receipts.next(), withheld);
        Ok(())
    }

    /// Delivers a record whose turn it is, and those that waited for it, while there is room.
    fn deliver(
        &mut self,
        mut turn: Option<Data>,
        receiver: &mut Receiver,
        now: Instant,
    ) -> Result<(), StreamError> {
        while let Some(data) = turn {
            let len = data.payload.len();
            if !self.receipts.has_room(len, receiver.inbox()) {
                receiver.put_back(data);
                break;
            }
            receiver.deliver_segment(data)?;
            self.receipts.add(len, receiver.inbox());
            self.acks.delivered(len, now);
            turn = receiver.pop_held();
        }
        Ok(())
    }

    pub(super) fn handle_disconnect(&mut self) {
        self.window.handle_disconnect();
        self.liveness.handle_disconnect();
    }

    pub(super) fn handle_reconnect(&mut self, now: Instant) {
        self.window.handle_disconnect();
        self.liveness.handle_reconnect(now);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Result<(), StreamError> {
        if self.liveness.handle_timeout(now) == Life::Silent {
            return Err(StreamError::Silent);
        }
        self.acks.handle_timeout(now);
        self.window.handle_timeout(now);
        Ok(())
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let liveness = self.liveness.poll_timeout()?;
        let others = [self.acks.poll_timeout(), self.window.poll_timeout()];
        others.into_iter().flatten().chain([liveness]).min()
    }

    /// Returns the acknowledgement fields of a frame that is being sent, and notes that they are.
    pub(super) fn tell(&mut self, receiver: &Receiver, now: Instant) -> (u32, u32) {
        let next = self.receipts.next();
        self.acks.told(next);
        self.liveness.sent(now);
        (next.wrapping_sub(1), receiver.arrived(next))
    }
}

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

/// Records of a reliable stream that were delivered, up to where they may be acknowledged.
///
/// A record is acknowledged when what came with and before it fits into [`INBOX_BYTES`] of messages
/// not taken. The sender's window then bounds the rest.
#[derive(Debug, Default)]
struct Receipts {
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
    fn add(&mut self, len: usize, inbox: &Inbox) {
        self.withheld.push_back(Receipt {
            len,
            total_in: inbox.total_in,
        });
        self.withheld_bytes += len;
        self.settle(inbox);
    }

    /// Releases what may be acknowledged now.
    fn settle(&mut self, inbox: &Inbox) {
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
    fn has_room(&self, len: usize, inbox: &Inbox) -> bool {
        inbox.len() < INBOX_MESSAGES
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
pub(super) struct Liveness {
    state: State,
    sent: Instant,
    heard: Instant,
    heartbeat_due: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Connected,
    /// On a new connection, nothing was heard yet. When `Resume` is sent next; absent: now.
    Resuming(Option<Instant>),
    Disconnected,
}

impl Liveness {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Connected,
            sent: now,
            heard: now,
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
    pub(super) fn heard(&mut self, now: Instant) -> Heard {
        self.heard = now;
        match self.state {
            State::Resuming(Some(_)) => {
                self.state = State::Connected;
                Heard::First
            }
            // Sent before this side resumed, it does not answer.
            State::Resuming(None) | State::Connected | State::Disconnected => Heard::Again,
        }
    }

    /// The peer resumed: it is on this connection, and asks for what it lacks.
    pub(super) fn handle_resume(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Something was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.sent = now;
        self.heartbeat_due = false;
    }

    /// `Resume` was sent. It is sent once more if nothing answers.
    pub(super) fn resumed(&mut self, now: Instant) {
        self.state = State::Resuming(Some(now + RETRANSMIT_FIRST));
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Life {
        if self.state == State::Disconnected {
            return Life::Alive;
        }
        if self.heard + SILENCE <= now {
            return Life::Silent;
        }
        if matches!(self.state, State::Resuming(Some(at)) if at <= now) {
            self.state = State::Resuming(None);
        }
        self.heartbeat_due |= self.sent + HEARTBEAT <= now;
        Life::Alive
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let resume = match self.state {
            State::Disconnected => return None,
            State::Resuming(at) => at,
            State::Connected => None,
        };
        let heartbeat = (!self.heartbeat_due).then(|| self.sent + HEARTBEAT);
        let silence = Some(self.heard + SILENCE);
        [resume, heartbeat, silence].into_iter().flatten().min()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state != State::Disconnected
    }

    pub(super) fn is_resume_due(&self) -> bool {
        self.state == State::Resuming(None)
    }

    /// Tells whether the peer is known to be on this connection, so that records may be sent.
    pub(super) fn is_settled(&self) -> bool {
        self.state == State::Connected
    }

    pub(super) fn is_heartbeat_due(&self) -> bool {
        self.heartbeat_due
    }
}

/// What a frame of the peer means for the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Heard {
    /// It answers a `Resume`: its acknowledgement tells all that has arrived.
    First,
    /// Nothing new.
    Again,
}

/// Whether the peer is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Life {
    /// As far as is known.
    Alive,
    /// It has shown no life for too long.
    Silent,
}
