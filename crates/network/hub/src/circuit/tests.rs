use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::FutureExt as _;

use super::*;

const LIMITS: QueueLimits = QueueLimits {
    frames: 32,
    bytes: 3200,
};

fn frame(number: usize) -> Bytes {
    Bytes::from(format!("frame {number}"))
}

fn full(circuit: &mut Circuit) -> usize {
    let cx = &mut Context::from_waker(Waker::noop());
    (0..1000)
        .take_while(|number| {
            let ready = circuit.sender.poll_ready(cx) == Poll::Ready(Ok(()));
            if ready {
                circuit.sender.push(frame(*number)).unwrap();
            }
            ready
        })
        .count()
}

#[tokio::test]
async fn frames_arrive_unchanged_and_in_order_both_ways() {
    let (mut harness, mut executor) = Circuit::pair(LIMITS, LIMITS);
    for number in 0..10 {
        harness.sender.send(frame(number)).await.unwrap();
        executor.sender.send(frame(number + 100)).await.unwrap();
    }
    for number in 0..10 {
        assert_eq!(executor.receiver.frame().await, Ok(frame(number)));
        assert_eq!(harness.receiver.frame().await, Ok(frame(number + 100)));
    }
    assert_eq!(executor.receiver.try_frame(), None);
}

#[tokio::test]
async fn full_circuit_blocks_until_part_of_it_is_free() {
    let (mut harness, mut executor) = Circuit::pair(LIMITS, LIMITS);
    assert_eq!(full(&mut harness), LIMITS.frames);
    let mut sending = Box::pin(harness.sender.send(frame(99)));
    assert_eq!(sending.as_mut().now_or_never(), None);
    for number in 0..2 {
        assert_eq!(executor.receiver.frame().await, Ok(frame(number)));
        assert_eq!(sending.as_mut().now_or_never(), None, "{number}");
    }
    assert_eq!(executor.receiver.frame().await, Ok(frame(2)));
    assert_eq!(sending.await, Ok(()));
}

#[tokio::test]
async fn circuit_is_limited_by_bytes_and_frames() {
    let (mut harness, _executor) = Circuit::pair(LIMITS, LIMITS);
    // A single frame is always accepted, however long.
    let long = Bytes::from(vec![0; LIMITS.bytes * 2]);
    harness.sender.send(long).await.unwrap();
    assert_eq!(full(&mut harness), 0);
}

#[tokio::test]
async fn frames_sent_before_the_close_arrive() {
    let (mut harness, mut executor) = Circuit::pair(LIMITS, LIMITS);
    executor.sender.send(frame(1)).await.unwrap();
    executor.close(CloseReason::Replaced);
    assert_eq!(harness.receiver.frame().await, Ok(frame(1)));
    assert_eq!(harness.receiver.frame().await, Err(CloseReason::Replaced));
    assert_eq!(
        harness.sender.send(frame(2)).await,
        Err(CloseReason::Replaced)
    );
}

#[tokio::test]
async fn close_is_visible_before_the_frames_are_drained() {
    let (mut harness, mut executor) = Circuit::pair(LIMITS, LIMITS);
    executor.sender.send(frame(1)).await.unwrap();
    let (ended, ()) = tokio::join!(harness.receiver.closed(), async {
        executor.close(CloseReason::Replaced);
    });
    assert_eq!(ended, CloseReason::Replaced);
    assert!(!harness.receiver.is_empty());
    assert_eq!(harness.receiver.frame().await, Ok(frame(1)));
    assert!(harness.receiver.is_empty());
}

#[tokio::test]
async fn close_reason_names_the_dropped_end() {
    let (mut harness, executor) = Circuit::pair(LIMITS, LIMITS);
    drop(executor);
    assert_eq!(
        harness.receiver.frame().await,
        Err(CloseReason::ExecutorGone)
    );
    let (harness, mut executor) = Circuit::pair(LIMITS, LIMITS);
    drop(harness);
    assert_eq!(
        executor.receiver.frame().await,
        Err(CloseReason::HarnessGone)
    );
    assert_eq!(
        executor.sender.push(frame(0)),
        Err(CloseReason::HarnessGone)
    );
}

#[tokio::test]
async fn first_close_reason_is_kept() {
    let (mut harness, mut executor) = Circuit::pair(LIMITS, LIMITS);
    executor.close(CloseReason::Stalled);
    executor.close(CloseReason::Stopping);
    drop(executor);
    assert_eq!(harness.receiver.frame().await, Err(CloseReason::Stalled));
}

#[tokio::test]
async fn close_wakes_both_waiters() {
    let (mut harness, executor) = Circuit::pair(LIMITS, LIMITS);
    full(&mut harness);
    let (sender, receiver) = (&mut harness.sender, &mut harness.receiver);
    let ended = tokio::join!(sender.send(frame(0)), receiver.frame(), async {
        drop(executor);
    });
    let drop_reason = CloseReason::ExecutorGone;
    assert_eq!(ended, (Err(drop_reason), Err(drop_reason), ()));
}

#[tokio::test]
async fn nothing_is_lost_between_two_threads() {
    let (mut harness, mut executor) = Circuit::pair(LIMITS, LIMITS);
    let sending = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            for number in 0..20_000 {
                harness.sender.send(frame(number)).await.unwrap();
            }
        });
    });
    for number in 0..20_000 {
        assert_eq!(executor.receiver.frame().await, Ok(frame(number)));
    }
    assert_eq!(
        executor.receiver.frame().await,
        Err(CloseReason::HarnessGone)
    );
    sending.join().unwrap();
}

#[test]
fn tag_round_trips_as_text() {
    let tag = HarnessTag::from_bytes(*b"\x00\x01\xfe\xff0123456789ab");
    assert_eq!(tag.to_string().parse(), Ok(tag));
    let json = serde_json::to_string(&tag).unwrap();
    assert_eq!(serde_json::from_str::<HarnessTag>(&json).unwrap(), tag);
}

#[test]
fn invalid_tags_are_rejected() {
    let short = "0".repeat(31);
    let upper = "A".repeat(32);
    let wide = "é".repeat(16);
    for bad in ["", &short, &upper, &wide] {
        assert_eq!(bad.parse::<HarnessTag>(), Err(HarnessTagError), "{bad:?}");
    }
}
