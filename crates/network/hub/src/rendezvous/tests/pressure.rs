//! Sides that are slower than others.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::rig::{Rig, SOCKET_BYTES, data, reset};
use crate::limits;

const FRAME: usize = 60 << 10;

/// More frames than all queues between an executor and one harness hold.
fn flood() -> u32 {
    let held = limits::TO_HARNESS.bytes + limits::WRITE_AHEAD_BYTES + 4 * SOCKET_BYTES;
    u32::try_from(held / FRAME).unwrap() + 20
}

#[tokio::test(start_paused = true)]
async fn a_slow_harness_holds_up_the_executor_and_loses_nothing() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut slow = rig.stream(&mut executor, "slow").await;
    let mut sent = 0;
    let before = Instant::now();
    while timeout(
        Duration::from_secs(1),
        executor.send(data("slow", sent, FRAME)),
    )
    .await
    .is_ok()
    {
        sent += 1;
        assert!(sent < flood(), "somebody buffers without bound");
    }
    assert!(before.elapsed() < Duration::from_secs(2));
    assert!(sent as usize * FRAME > limits::TO_HARNESS.bytes, "{sent}");
    // The frame that did not fit went out in part; the rest of it follows with the next flush.
    let sending = async {
        futures_util::SinkExt::flush(&mut executor.socket)
            .await
            .unwrap();
        executor.send(data("slow", sent + 1, 1)).await;
    };
    let receiving = async {
        for seq in 0..=sent {
            assert_eq!(slow.next().await, Ok(data("slow", seq, FRAME)), "{seq}");
        }
        assert_eq!(slow.next().await, Ok(data("slow", sent + 1, 1)));
    };
    tokio::join!(sending, receiving);
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_takes_nothing_is_closed_and_the_others_go_on() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let stuck = rig.stream(&mut executor, "stuck").await;
    let mut live = rig.stream(&mut executor, "live").await;
    let before = Instant::now();
    let sending = async {
        for seq in 0..flood() {
            executor.send(data("stuck", seq, FRAME)).await;
        }
        executor.send(data("live", 0, 1)).await;
        executor.next().await
    };
    let (told, received) = tokio::join!(sending, live.next());
    assert_eq!(told, Ok(reset("stuck", "harness_disconnected")));
    assert_eq!(received, Ok(data("live", 0, 1)));
    let waited = before.elapsed();
    assert!(
        waited >= limits::STALL && waited < limits::STALL * 2,
        "{waited:?}"
    );
    drop(stuck);
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_takes_too_little_is_closed_before_the_executor_is_lost() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut trickle = rig.stream(&mut executor, "trickle").await;
    let before = Instant::now();
    let sending = async {
        for seq in 0..flood() * 2 {
            executor.send(data("trickle", seq, FRAME)).await;
        }
        executor.next().await
    };
    let receiving = async {
        while trickle.next().await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if before.elapsed() > limits::STALL * 2 {
                break;
            }
        }
    };
    let told = tokio::select! {
        told = sending => told,
        () = receiving => panic!("nobody closed it"),
    };
    assert_eq!(told, Ok(reset("trickle", "harness_disconnected")));
    assert!(before.elapsed() < limits::STALL * 2);
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_takes_enough_may_hold_up_the_executor_for_long() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut steady = rig.stream(&mut executor, "steady").await;
    let begun = Instant::now();
    let sending = async {
        let mut sent = 0;
        // Not as long as an executor may leave pings unanswered: this one reads nothing.
        while begun.elapsed() < limits::STALL * 5 / 2 {
            executor.send(data("steady", sent, FRAME)).await;
            sent += 1;
        }
        sent
    };
    let (done, finished) = tokio::sync::watch::channel(None);
    let sending = async { done.send(Some(sending.await)).unwrap() };
    let receiving = async {
        let mut seq = 0;
        while *finished.borrow() != Some(seq) {
            assert_eq!(steady.next().await, Ok(data("steady", seq, FRAME)));
            seq += 1;
            // Ten a second: slower than the executor, and fast enough.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::join!(sending, receiving);
}

#[tokio::test(start_paused = true)]
async fn a_slow_executor_holds_up_the_harness_and_loses_nothing() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut harness = rig.stream(&mut executor, "s").await;
    let mut sent = 0;
    while timeout(Duration::from_secs(1), harness.send(data("s", sent, FRAME)))
        .await
        .is_ok()
    {
        sent += 1;
        assert!(sent < flood(), "somebody buffers without bound");
    }
    let sending = async {
        futures_util::SinkExt::flush(&mut harness.socket)
            .await
            .unwrap();
    };
    let receiving = async {
        for seq in 0..=sent {
            assert_eq!(executor.next().await, Ok(data("s", seq, FRAME)), "{seq}");
        }
    };
    tokio::join!(sending, receiving);
}

#[tokio::test(start_paused = true)]
async fn a_busy_harness_does_not_keep_a_quiet_one_waiting() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut busy = rig.stream(&mut executor, "busy").await;
    let mut quiet = rig.stream(&mut executor, "quiet").await;
    let mut sent = 0_u32;
    while timeout(
        Duration::from_millis(1),
        busy.send(data("busy", sent, 1 << 10)),
    )
    .await
    .is_ok()
    {
        sent += 1;
    }
    quiet.send(data("quiet", 0, 1)).await;
    let mut ahead = 0;
    while executor.next().await != Ok(data("quiet", 0, 1)) {
        ahead += 1;
    }
    // What the executor's own socket and its writer already held, and the frames of one share.
    let held = (limits::WRITE_AHEAD_BYTES + 2 * SOCKET_BYTES) / (1 << 10) + limits::SHARE_FRAMES;
    assert!(ahead <= held, "{ahead} of {sent} frames went first");
    assert!(sent as usize > held * 2, "{sent} frames are no pressure");
}
