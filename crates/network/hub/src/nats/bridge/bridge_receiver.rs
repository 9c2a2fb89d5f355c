//! Receiving half of a bridged circuit.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use bytes::Bytes;

use crate::{
    circuit::{CloseReason, FrameSender},
    limits::{MAX_FRAME_BYTES, ROUND_FRAMES},
    nats::{
        packet::{CircuitPacket, PacketBody, PacketError, cost},
        window::{CreditOverrun, ReceiveWindow},
    },
};

/// Receiving half of a bridged circuit. Independent of NATS.
#[derive(Debug)]
pub(super) struct BridgeReceiver {
    next: u32,
    receive_window: ReceiveWindow,
    inbox: VecDeque<Bytes>,
    closed: Option<CloseReason>,
}

/// What a packet requires from the sending half.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PacketEffect {
    /// Nothing.
    Nothing,
    /// Permits to send this many more bytes.
    Grant(u32),
}

impl BridgeReceiver {
    /// Creates a half that granted `window` to the sender.
    pub(super) fn new(window: u32) -> Self {
        Self {
            next: 0,
            receive_window: ReceiveWindow::new(window),
            inbox: VecDeque::new(),
            closed: None,
        }
    }

    /// Handles a message.
    ///
    /// # Errors
    /// Returns [`BridgeFault`] if the circuit cannot continue.
    pub(super) fn handle_message(&mut self, message: &Bytes) -> Result<PacketEffect, BridgeFault> {
        let packet = CircuitPacket::decode(message)?;
        if packet.seq != self.next {
            return Err(BridgeFault::Gap {
                expected: self.next,
                got: packet.seq,
            });
        }
        self.next = self.next.wrapping_add(1);
        match packet.body {
            PacketBody::Frames(frames) => {
                if frames.iter().any(|frame| frame.len() > MAX_FRAME_BYTES) {
                    return Err(BridgeFault::Frame);
                }
                let total = frames.iter().map(cost).fold(0, u32::saturating_add);
                self.receive_window.receive(total)?;
                self.inbox.extend(frames);
                Ok(PacketEffect::Nothing)
            }
            PacketBody::Credit(bytes) => Ok(PacketEffect::Grant(bytes)),
            PacketBody::Mark => Ok(PacketEffect::Nothing),
            PacketBody::Close(close_reason) => {
                self.closed = Some(close_reason);
                Ok(PacketEffect::Nothing)
            }
        }
    }

    /// Returns whether a frame is queued for the local end.
    pub(super) fn has_frames(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Moves frames to the local end while it accepts them. Returns credit to grant.
    pub(super) fn poll_forward(
        &mut self,
        sender: &mut FrameSender,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<u32>, CloseReason>> {
        let mut credit = None;
        let mut moved = 0;
        while moved < ROUND_FRAMES && self.has_frames() {
            match sender.poll_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending if moved == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
            let Some(frame) = self.inbox.pop_front() else {
                break;
            };
            if let Some(more) = self.receive_window.release(cost(&frame)) {
                credit = Some(credit.unwrap_or(0_u32).saturating_add(more));
            }
            sender.push(frame)?;
            moved += 1;
        }
        if self.inbox.is_empty() {
            // The burst is over: an idle circuit uses almost no memory.
            self.inbox = VecDeque::new();
        }
        Poll::Ready(Ok(credit))
    }

    /// Returns the close reason of the other end, once all its frames have been forwarded.
    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        self.closed.filter(|_| self.inbox.is_empty())
    }
}

/// Peer: why a circuit cannot continue.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum BridgeFault {
    /// A packet is missing.
    #[error("expected packet {expected} between nodes, got {got}")]
    Gap {
        /// The expected number.
        expected: u32,
        /// The received number.
        got: u32,
    },
    /// A frame exceeds the limit of a websocket message.
    #[error("frame between nodes is too large")]
    Frame,
    /// See the source.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// See the source.
    #[error(transparent)]
    Overrun(#[from] CreditOverrun),
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::{
        circuit::{Circuit, QueueLimits},
        nats::packet::{self, PacketBuilder},
    };

    fn frames(seq: u32, frame: &'static [u8]) -> Bytes {
        PacketBuilder::new(seq, &Bytes::from_static(frame))
            .finish()
            .0
    }

    #[test]
    fn missing_packet_of_any_kind_is_a_gap() {
        for lost in [frames(1, b"x"), packet::credit(1, 5), packet::mark(1)] {
            let mut inbound = BridgeReceiver::new(1000);
            inbound.handle_message(&frames(0, b"a")).expect("in order");
            let after = packet::mark(2);
            let gap = BridgeFault::Gap {
                expected: 1,
                got: 2,
            };
            assert_eq!(inbound.clone_for_test().handle_message(&after), Err(gap));
            inbound.handle_message(&lost).expect("in order");
            inbound.handle_message(&after).expect("in order");
            let twice = BridgeFault::Gap {
                expected: 3,
                got: 2,
            };
            assert_eq!(
                inbound.handle_message(&after),
                Err(twice),
                "duplicate packet"
            );
        }
    }

    #[test]
    fn close_arrives_after_preceding_frames() {
        let mut inbound = BridgeReceiver::new(1000);
        inbound.handle_message(&frames(0, b"a")).expect("in order");
        inbound
            .handle_message(&packet::close(1, CloseReason::Moved))
            .expect("in order");
        assert_eq!(inbound.close_reason(), None);
        let room = QueueLimits {
            frames: 4,
            bytes: 100,
        };
        let (mut near, mut far) = Circuit::pair(room, room);
        let mut cx = Context::from_waker(Waker::noop());
        let moved = inbound.poll_forward(&mut near.sender, &mut cx);
        assert_eq!(moved, Poll::Ready(Ok(None)));
        assert_eq!(far.receiver.try_frame(), Some(Bytes::from_static(b"a")));
        assert_eq!(inbound.close_reason(), Some(CloseReason::Moved));
    }

    #[test]
    fn full_local_queue_stops_granting_credit() {
        let mut inbound = BridgeReceiver::new(1000);
        for seq in 0..4 {
            inbound
                .handle_message(&frames(seq, &[7; 100]))
                .expect("has credit");
        }
        let room = QueueLimits {
            frames: 2,
            bytes: 1000,
        };
        let (mut near, mut far) = Circuit::pair(room, room);
        let mut cx = Context::from_waker(Waker::noop());
        let moved = inbound.poll_forward(&mut near.sender, &mut cx);
        assert_eq!(moved, Poll::Ready(Ok(Some(328))), "credit for two frames");
        assert_eq!(
            inbound.poll_forward(&mut near.sender, &mut cx),
            Poll::Pending
        );
        while far.receiver.try_frame().is_some() {}
        let moved = inbound.poll_forward(&mut near.sender, &mut cx);
        assert_eq!(moved, Poll::Ready(Ok(Some(328))));
        assert!(!inbound.has_frames());
        drop(far);
        inbound
            .handle_message(&frames(4, b"x"))
            .expect("has credit");
        let gone = inbound.poll_forward(&mut near.sender, &mut cx);
        assert_eq!(gone, Poll::Ready(Err(CloseReason::ExecutorGone)));
    }

    #[test]
    fn queued_frames_are_bounded() {
        let mut inbound = BridgeReceiver::new(100);
        inbound
            .handle_message(&frames(0, &[7; 90]))
            .expect("has credit");
        assert_eq!(
            inbound.handle_message(&frames(1, b"x")),
            Err(BridgeFault::Overrun(CreditOverrun))
        );
        let large = Bytes::from(vec![0; MAX_FRAME_BYTES + 1]);
        let large = PacketBuilder::new(0, &large).finish().0;
        assert_eq!(
            BridgeReceiver::new(100).handle_message(&large),
            Err(BridgeFault::Frame)
        );
    }

    impl BridgeReceiver {
        fn clone_for_test(&self) -> Self {
            Self {
                next: self.next,
                ..Self::new(1000)
            }
        }
    }
}
