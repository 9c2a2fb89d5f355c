//! What a reliable stream has beyond a plain one.

use std::time::Instant;

use crate::{
    frame::Data,
    stream::{
        StreamError,
        acks::{Acks, Withheld},
        inbox::Receipts,
        liveness::{Heard, Life, Liveness},
        receiver::Receiver,
        reorder::Order,
        window::Window,
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
