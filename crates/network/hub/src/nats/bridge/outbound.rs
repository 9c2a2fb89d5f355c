//! Packets to the other node.

use async_nats::{Client, Subject};
use bytes::Bytes;

use crate::{
    circuit::{Ending, Receiver},
    nats::{
        packet::{self, Batch},
        window::Credit,
    },
};

/// One direction of a circuit, at its sending end.
#[derive(Debug)]
pub(super) struct Outbound {
    client: Client,
    subject: Subject,
    next: u32,
    credit: Credit,
}

impl Outbound {
    /// Sends to `subject`, whose receiver granted `window`.
    pub(super) fn new(client: Client, subject: String, window: u32) -> Self {
        Self {
            client,
            subject: subject.into(),
            next: 0,
            credit: Credit::new(window),
        }
    }

    /// Whether frames may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.credit.is_open()
    }

    /// The other end took some.
    pub(super) fn grant(&mut self, bytes: u32) {
        self.credit.grant(bytes);
    }

    /// Makes a packet of a frame and of those that wait behind it.
    pub(super) fn batch(&mut self, first: &Bytes, queue: &mut Receiver) -> Bytes {
        let mut batch = Batch::new(self.number(), first);
        while !batch.is_full()
            && let Some(frame) = queue.try_frame()
        {
            batch.push(&frame);
        }
        let (packet, cost) = batch.finish();
        self.credit.spend(cost);
        packet
    }

    /// Makes a packet that gives credit.
    pub(super) fn credit(&mut self, bytes: u32) -> Bytes {
        packet::credit(self.number(), bytes)
    }

    /// Makes a packet that follows a burst.
    pub(super) fn mark(&mut self) -> Bytes {
        packet::mark(self.number())
    }

    /// Makes the last packet.
    pub(super) fn close(&mut self, ending: Ending) -> Bytes {
        packet::close(self.number(), ending)
    }

    /// Sends a packet. It waits while the connection has more to do than it can.
    pub(super) async fn send(&self, packet: Bytes) -> Result<(), Ending> {
        self.client
            .publish(self.subject.clone(), packet)
            .await
            .map_err(|error| {
                tracing::warn!(%error, "a packet was not sent");
                Ending::Unreachable
            })
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }
}
