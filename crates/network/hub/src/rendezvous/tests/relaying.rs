//! Tests of relay websockets: executors, harnesses and backpressure.

use std::time::Duration;

use bytes::Bytes;
use futures_util::SinkExt as _;
use http::StatusCode;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;

use super::{HubFixture, SOCKET_BYTES, StoreFailure, data, environment, handshake, reset, resume};
use crate::{circuit::CloseReason, limits};

#[tokio::test(start_paused = true)]
async fn lost_executor_closes_its_harnesses_and_its_presence() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut one = fixture.stream(&mut executor, "one").await;
    let mut two = fixture.stream(&mut executor, "two").await;
    executor.send(data("one", 0, 5)).await;
    assert!(fixture.store.is_attached());
    executor.cut().await;
    assert_eq!(
        one.next().await,
        Ok(data("one", 0, 5)),
        "sent before the end"
    );
    assert_eq!(one.next().await, Err(Some(1012)));
    assert_eq!(two.next().await, Err(Some(1012)));
    assert!(!fixture.store.is_attached());
    assert!(fixture.counts("exec_hub_sockets{role=\"executor\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn executor_is_attached_before_its_upgrade_is_answered() {
    let fixture = HubFixture::new();
    let admission = fixture.admit(&fixture.executor_url("reg-1")).await.unwrap();
    assert!(fixture.store.is_attached());
    assert_eq!(fixture.rendezvous.executor_table.attached().len(), 1);
    // A harness may be faster than the rest of the upgrade.
    let mut harness = fixture.harness().await;
    harness.send(resume("s")).await;
    let mut executor = fixture.open(admission).await;
    assert_eq!(executor.next().await, Ok(resume("s")));
}

#[tokio::test(start_paused = true)]
async fn failed_upgrade_detaches_the_executor() {
    let fixture = HubFixture::new();
    let admission = fixture.admit(&fixture.executor_url("reg-1")).await.unwrap();
    drop(admission);
    assert!(fixture.rendezvous.executor_table.attached().is_empty());
    fixture.until_detached().await;
}

#[tokio::test(start_paused = true)]
async fn store_failure_refuses_the_executor_without_presence() {
    for broken in [StoreFailure::Fails, StoreFailure::Hangs] {
        let fixture = HubFixture::new();
        *fixture.store.broken.lock().unwrap() = Some(broken);
        let refused = fixture
            .admit(&fixture.executor_url("reg-1"))
            .await
            .unwrap_err();
        // The executor keeps its URL and retries.
        let expected = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(refused.status(), expected, "{broken:?}");
        assert!(fixture.rendezvous.executor_table.attached().is_empty());
        // A leftover presence would block standby executors forever.
        fixture.until_detached().await;
    }
}

#[tokio::test(start_paused = true)]
async fn new_websocket_of_the_same_registration_replaces_the_old_one() {
    let fixture = HubFixture::new();
    let mut old = fixture.executor().await;
    let mut harness = fixture.stream(&mut old, "s").await;
    let mut new = fixture.executor().await;
    assert_eq!(old.next().await, Err(Some(1012)));
    assert_eq!(harness.next().await, Err(Some(1012)));
    old.cut().await;
    assert!(
        fixture.store.is_attached(),
        "the old socket leaves the new one alone"
    );
    let mut harness = fixture.stream(&mut new, "s").await;
    new.send(data("s", 0, 1)).await;
    assert_eq!(harness.next().await, Ok(data("s", 0, 1)));
}

#[tokio::test(start_paused = true)]
async fn malformed_frames_and_text_of_an_executor_are_dropped() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut harness = fixture.stream(&mut executor, "s").await;
    executor.send(Bytes::from_static(b"garbage")).await;
    executor.send_message(Message::Text("text".into())).await;
    executor.send(data("unknown", 0, 1)).await;
    executor.send(data("s", 0, 1)).await;
    assert_eq!(harness.next().await, Ok(data("s", 0, 1)));
    assert!(fixture.counts("exec_hub_frames_dropped_total{reason=\"garbage\"} 2"));
    assert!(fixture.counts("exec_hub_frames_dropped_total{reason=\"unknown_stream\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn executor_url_is_valid_while_its_registration_is_current() {
    let fixture = HubFixture::new();
    assert!(fixture.admit(&fixture.executor_url("reg-1")).await.is_ok());
    let refused = fixture
        .admit(&fixture.executor_url("reg-2"))
        .await
        .unwrap_err();
    assert_eq!(refused.status(), StatusCode::GONE);
}

#[tokio::test(start_paused = true)]
async fn forged_urls_are_refused_by_role() {
    let fixture = HubFixture::new();
    let status = async |url: &str| fixture.admit(url).await.unwrap_err().status();
    let executor = fixture.executor_url("reg-1").replace("env-1", "env-2");
    assert_eq!(status(&executor).await, StatusCode::FORBIDDEN);
    let harness = fixture.harness_url().replace("env-1", "env-2");
    assert_eq!(status(&harness).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn supersession_closes_the_websocket_and_invalidates_its_url() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut harness = fixture.stream(&mut executor, "s").await;
    let next: crate::store::RegistrationId = "reg-2".parse().unwrap();
    *fixture.store.current.lock().unwrap() = next;
    let dialer = &fixture.rendezvous.dialer;
    dialer.supersede(environment(), &*fixture.store).await;
    assert_eq!(executor.next().await, Err(Some(1012)));
    assert_eq!(harness.next().await, Err(Some(1012)));
    let refused = fixture
        .admit(&fixture.executor_url("reg-1"))
        .await
        .unwrap_err();
    assert_eq!(refused.status(), StatusCode::GONE);
}

#[tokio::test(start_paused = true)]
async fn registration_superseded_during_the_upgrade_is_closed() {
    let fixture = HubFixture::new();
    let admission = fixture.admit(&fixture.executor_url("reg-1")).await.unwrap();
    *fixture.store.current.lock().unwrap() = "reg-2".parse().unwrap();
    let dialer = &fixture.rendezvous.dialer;
    dialer.supersede(environment(), &*fixture.store).await;
    let mut executor = fixture.open(admission).await;
    assert_eq!(executor.next().await, Err(Some(1012)));
    assert!(fixture.rendezvous.executor_table.attached().is_empty());
}

#[tokio::test(start_paused = true)]
async fn hub_shutdown_closes_all_websockets() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut harness = fixture.stream(&mut executor, "s").await;
    fixture.stop.send(true).unwrap();
    fixture
        .rendezvous
        .executor_table
        .close_all(CloseReason::Stopping);
    assert_eq!(executor.next().await, Err(Some(1012)));
    assert_eq!(harness.next().await, Err(Some(1012)));
    let refused = fixture.admit(&fixture.harness_url()).await.unwrap_err();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn executor_admitted_just_before_shutdown_is_closed() {
    let fixture = HubFixture::new();
    let admission = fixture.admit(&fixture.executor_url("reg-1")).await.unwrap();
    fixture.stop.send(true).unwrap();
    fixture
        .rendezvous
        .executor_table
        .close_all(CloseReason::Stopping);
    assert_eq!(fixture.open(admission).await.next().await, Err(Some(1012)));
}

#[tokio::test(start_paused = true)]
async fn frames_pass_unchanged_in_order_to_their_harness_only() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut one = fixture.stream(&mut executor, "one").await;
    let mut two = fixture.stream(&mut executor, "two").await;
    for seq in 0..300 {
        executor.send(data("one", seq, 10)).await;
        executor.send(data("two", seq, 20)).await;
        one.send(data("one", seq, 30)).await;
        assert_eq!(one.next().await, Ok(data("one", seq, 10)));
        assert_eq!(two.next().await, Ok(data("two", seq, 20)));
        assert_eq!(executor.next().await, Ok(data("one", seq, 30)));
    }
    assert!(fixture.counts("exec_hub_frames_total{to=\"harness\"} 600"));
    assert!(fixture.counts("exec_hub_frames_total{to=\"executor\"} 302"));
}

#[tokio::test(start_paused = true)]
async fn largest_frame_passes_and_a_larger_one_closes_the_websocket() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut harness = fixture.stream(&mut executor, "s").await;
    let head = data("s", 0, 200_000).len() - 200_000;
    let largest = data("s", 0, limits::MAX_FRAME_BYTES - head);
    assert_eq!(largest.len(), limits::MAX_FRAME_BYTES);
    let (_, received) = tokio::join!(harness.send(largest.clone()), executor.next());
    assert_eq!(received, Ok(largest));
    let larger = Message::Binary(data("s", 0, limits::MAX_FRAME_BYTES - head + 1));
    // The websocket is closed at the frame header, so writing the rest may fail.
    drop(harness.socket.send(larger).await);
    assert_eq!(harness.next().await, Err(Some(1009)));
    assert_eq!(
        executor.next().await,
        Ok(reset("s", "harness_disconnected"))
    );
}

#[tokio::test(start_paused = true)]
async fn malformed_frame_closes_only_its_sender() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut good = fixture.stream(&mut executor, "good").await;
    for (message, code) in [
        (Message::Binary(Bytes::from_static(b"\xff\xff\xff")), 1007),
        (Message::Binary(Bytes::new()), 1007),
        (Message::Text("{}".into()), 1003),
    ] {
        let mut bad = fixture.stream(&mut executor, "bad").await;
        bad.send_message(message).await;
        assert_eq!(bad.next().await, Err(Some(code)));
        assert_eq!(
            executor.next().await,
            Ok(reset("bad", "harness_disconnected"))
        );
    }
    good.send(data("good", 0, 1)).await;
    assert_eq!(executor.next().await, Ok(data("good", 0, 1)));
    assert!(fixture.counts("exec_hub_frames_dropped_total{reason=\"garbage\"} 2"));
}

#[tokio::test(start_paused = true)]
async fn executor_gets_a_reset_for_every_stream_of_a_lost_harness() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut harness = fixture.stream(&mut executor, "one").await;
    harness.send(resume("two")).await;
    assert_eq!(executor.next().await, Ok(resume("two")));
    harness.cut().await;
    for id in ["one", "two"] {
        assert_eq!(executor.next().await, Ok(reset(id, "harness_disconnected")));
    }
    executor.send(data("one", 0, 1)).await;
    let mut other = fixture.stream(&mut executor, "one").await;
    executor.send(data("one", 1, 1)).await;
    assert_eq!(other.next().await, Ok(data("one", 1, 1)));
    assert!(fixture.counts("exec_hub_frames_dropped_total{reason=\"unknown_stream\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn harness_without_an_executor_is_closed() {
    let fixture = HubFixture::new();
    let mut harness = fixture.harness().await;
    assert_eq!(harness.next().await, Err(Some(1013)));
}

#[tokio::test(start_paused = true)]
async fn excess_handshakes_are_reset_without_affecting_others() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut eager = fixture.stream(&mut executor, "s").await;
    let mut other = fixture.stream(&mut executor, "o").await;
    for _ in 0..limits::UNANSWERED_HANDSHAKES {
        eager.send(handshake("s")).await;
        assert_eq!(executor.next().await, Ok(handshake("s")));
    }
    eager.send(handshake("s")).await;
    assert_eq!(eager.next().await, Ok(reset("s", "relay_limit")));
    other.send(handshake("o")).await;
    assert_eq!(executor.next().await, Ok(handshake("o")));
}

#[tokio::test(start_paused = true)]
async fn harness_with_failed_handshakes_is_closed_after_the_last_reset() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut harness = fixture.stream(&mut executor, "s").await;
    let refusal = reset("s", "noise_relay_protocol_error");
    for _ in 0..limits::FAILED_HANDSHAKES {
        harness.send(handshake("s")).await;
        assert_eq!(executor.next().await, Ok(handshake("s")));
        executor.send(refusal.clone()).await;
        assert_eq!(harness.next().await, Ok(refusal.clone()));
    }
    assert_eq!(harness.next().await, Err(Some(1008)));
}

#[tokio::test(start_paused = true)]
async fn stream_continues_when_its_harness_reconnects_first() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut old = fixture.stream(&mut executor, "s").await;
    let mut new = fixture.stream(&mut executor, "s").await;
    assert_eq!(old.next().await, Err(Some(1000)));
    executor.send(data("s", 0, 1)).await;
    assert_eq!(new.next().await, Ok(data("s", 0, 1)));
    new.send(data("s", 0, 2)).await;
    assert_eq!(executor.next().await, Ok(data("s", 0, 2)));
}

#[tokio::test(start_paused = true)]
async fn silent_harness_is_closed() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let harness = fixture.stream(&mut executor, "s").await;
    // It neither reads nor answers pings; the executor does while waiting.
    assert_eq!(
        executor.next().await,
        Ok(reset("s", "harness_disconnected"))
    );
    drop(harness);
}

const FRAME: usize = 60 << 10;

/// More frames than all queues between an executor and one harness hold.
fn flood() -> u32 {
    let buffered = limits::TO_HARNESS.bytes + limits::WRITE_AHEAD_BYTES + 4 * SOCKET_BYTES;
    u32::try_from(buffered / FRAME).unwrap() + 20
}

#[tokio::test(start_paused = true)]
async fn slow_harness_applies_backpressure_without_loss() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut slow = fixture.stream(&mut executor, "slow").await;
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
        assert!(sent < flood(), "buffering is unbounded");
    }
    assert!(before.elapsed() < Duration::from_secs(2));
    assert!(sent as usize * FRAME > limits::TO_HARNESS.bytes, "{sent}");
    // The frame that did not fit was sent in part; the rest follows with the next flush.
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
async fn stalled_harness_is_closed_and_others_continue() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let stuck = fixture.stream(&mut executor, "stuck").await;
    let mut live = fixture.stream(&mut executor, "live").await;
    let before = Instant::now();
    let sending = async {
        for seq in 0..flood() {
            executor.send(data("stuck", seq, FRAME)).await;
        }
        executor.send(data("live", 0, 1)).await;
        executor.next().await
    };
    let (result, received) = tokio::join!(sending, live.next());
    assert_eq!(result, Ok(reset("stuck", "harness_disconnected")));
    assert_eq!(received, Ok(data("live", 0, 1)));
    let waited = before.elapsed();
    assert!(
        waited >= limits::STALL && waited < limits::STALL * 2,
        "{waited:?}"
    );
    drop(stuck);
}

#[tokio::test(start_paused = true)]
async fn too_slow_harness_is_closed_before_the_executor_times_out() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut trickle = fixture.stream(&mut executor, "trickle").await;
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
    let result = tokio::select! {
        result = sending => result,
        () = receiving => panic!("the harness was not closed"),
    };
    assert_eq!(result, Ok(reset("trickle", "harness_disconnected")));
    assert!(before.elapsed() < limits::STALL * 2);
}

#[tokio::test(start_paused = true)]
async fn slow_but_progressing_harness_is_not_closed() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut steady = fixture.stream(&mut executor, "steady").await;
    let started_at = Instant::now();
    let sending = async {
        let mut sent = 0;
        // Shorter than the executor's keepalive timeout: this one reads nothing.
        while started_at.elapsed() < limits::STALL * 5 / 2 {
            executor.send(data("steady", sent, FRAME)).await;
            sent += 1;
        }
        sent
    };
    let (completed, finished) = tokio::sync::watch::channel(None);
    let sending = async { completed.send(Some(sending.await)).unwrap() };
    let receiving = async {
        let mut seq = 0;
        while *finished.borrow() != Some(seq) {
            assert_eq!(steady.next().await, Ok(data("steady", seq, FRAME)));
            seq += 1;
            // Ten a second: slower than the executor, but fast enough.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::join!(sending, receiving);
}

#[tokio::test(start_paused = true)]
async fn slow_executor_applies_backpressure_without_loss() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut harness = fixture.stream(&mut executor, "s").await;
    let mut sent = 0;
    while timeout(Duration::from_secs(1), harness.send(data("s", sent, FRAME)))
        .await
        .is_ok()
    {
        sent += 1;
        assert!(sent < flood(), "buffering is unbounded");
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
async fn busy_harness_does_not_delay_a_quiet_one() {
    let fixture = HubFixture::new();
    let mut executor = fixture.executor().await;
    let mut busy = fixture.stream(&mut executor, "busy").await;
    let mut quiet = fixture.stream(&mut executor, "quiet").await;
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
    // Frames already buffered for the executor's websocket, plus one share.
    let buffered =
        (limits::WRITE_AHEAD_BYTES + 2 * SOCKET_BYTES) / (1 << 10) + limits::SHARE_FRAMES;
    assert!(ahead <= buffered, "{ahead} of {sent} frames went first");
    assert!(
        sent as usize > buffered * 2,
        "{sent} frames are no pressure"
    );
}
