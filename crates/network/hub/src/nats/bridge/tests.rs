//! Tests of the receiving half of a bridge and of its flow control.

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
    let limits = QueueLimits {
        frames: 4,
        bytes: 100,
    };
    let (mut harness, mut executor) = Circuit::pair(limits, limits);
    let mut cx = Context::from_waker(Waker::noop());
    let result = inbound.poll_forward(&mut harness.sender, &mut cx);
    assert_eq!(result, Poll::Ready(Ok(None)));
    assert_eq!(
        executor.receiver.try_frame(),
        Some(Bytes::from_static(b"a"))
    );
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
    let limits = QueueLimits {
        frames: 2,
        bytes: 1000,
    };
    let (mut harness, mut executor) = Circuit::pair(limits, limits);
    let mut cx = Context::from_waker(Waker::noop());
    let result = inbound.poll_forward(&mut harness.sender, &mut cx);
    assert_eq!(result, Poll::Ready(Ok(Some(328))), "credit for two frames");
    assert_eq!(
        inbound.poll_forward(&mut harness.sender, &mut cx),
        Poll::Pending
    );
    while executor.receiver.try_frame().is_some() {}
    let result = inbound.poll_forward(&mut harness.sender, &mut cx);
    assert_eq!(result, Poll::Ready(Ok(Some(328))));
    assert!(!inbound.has_frames());
    drop(executor);
    inbound
        .handle_message(&frames(4, b"x"))
        .expect("has credit");
    let result = inbound.poll_forward(&mut harness.sender, &mut cx);
    assert_eq!(result, Poll::Ready(Err(CloseReason::ExecutorGone)));
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

#[test]
fn sender_stops_without_credit_and_resumes_with_it() {
    let mut credit = SendCredit::new(100);
    credit.spend(60);
    assert!(credit.is_open());
    credit.spend(60);
    assert!(!credit.is_open());
    credit.grant(20);
    assert!(!credit.is_open(), "the overdraft is settled first");
    credit.grant(1);
    assert!(credit.is_open());
}

#[test]
fn credit_is_granted_in_eighths() {
    let mut receive_window = ReceiveWindow::new(800);
    receive_window.receive(150).expect("has credit");
    assert_eq!(receive_window.release(60), None);
    assert_eq!(receive_window.release(60), Some(120));
    assert_eq!(receive_window.release(30), None);
}

#[test]
fn sending_without_credit_is_an_overrun() {
    let mut receive_window = ReceiveWindow::new(800);
    receive_window.receive(799).expect("has credit");
    receive_window
        .receive(500)
        .expect("the last packet may overdraw");
    assert_eq!(receive_window.receive(1), Err(CreditOverrun));
}

#[test]
fn both_ends_agree_on_the_credit() {
    let mut credit = SendCredit::new(8_000);
    let mut receive_window = ReceiveWindow::new(8_000);
    let mut in_flight = std::collections::VecDeque::new();
    let mut sent = 0_u64;
    for round in 0..10_000_u32 {
        let cost = 1 + round * 7 % 3_000;
        if credit.is_open() {
            credit.spend(cost);
            receive_window
                .receive(cost)
                .expect("the sender kept to its credit");
            in_flight.push_back(cost);
            sent += u64::from(cost);
        }
        if round % 3 != 0
            && let Some(cost) = in_flight.pop_front()
            && let Some(grant) = receive_window.release(cost)
        {
            credit.grant(grant);
        }
    }
    assert!(sent > 1_000_000, "only {sent} bytes moved");
}
