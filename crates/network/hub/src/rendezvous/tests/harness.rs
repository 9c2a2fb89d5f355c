//! What a harness sees.

use bytes::Bytes;
use futures_util::SinkExt as _;
use tokio_tungstenite::tungstenite::Message;

use super::rig::{Rig, data, handshake, reset, resume};
use crate::limits;

#[tokio::test(start_paused = true)]
async fn frames_pass_unchanged_in_order_and_only_to_their_harness() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut one = rig.stream(&mut executor, "one").await;
    let mut two = rig.stream(&mut executor, "two").await;
    for seq in 0..300 {
        executor.send(data("one", seq, 10)).await;
        executor.send(data("two", seq, 20)).await;
        one.send(data("one", seq, 30)).await;
        assert_eq!(one.next().await, Ok(data("one", seq, 10)));
        assert_eq!(two.next().await, Ok(data("two", seq, 20)));
        assert_eq!(executor.next().await, Ok(data("one", seq, 30)));
    }
    assert!(rig.counts("exec_hub_frames_total{to=\"harness\"} 600"));
    assert!(rig.counts("exec_hub_frames_total{to=\"executor\"} 302"));
}

#[tokio::test(start_paused = true)]
async fn the_largest_frame_passes_and_a_larger_one_ends_the_socket() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut harness = rig.stream(&mut executor, "s").await;
    let head = data("s", 0, 200_000).len() - 200_000;
    let largest = data("s", 0, limits::MAX_FRAME_BYTES - head);
    assert_eq!(largest.len(), limits::MAX_FRAME_BYTES);
    let (_, received) = tokio::join!(harness.send(largest.clone()), executor.next());
    assert_eq!(received, Ok(largest));
    let larger = Message::Binary(data("s", 0, limits::MAX_FRAME_BYTES - head + 1));
    // The socket is closed at the frame's head, so the rest may find nobody to read it.
    drop(harness.socket.send(larger).await);
    assert_eq!(harness.next().await, Err(Some(1009)));
    assert_eq!(
        executor.next().await,
        Ok(reset("s", "harness_disconnected"))
    );
}

#[tokio::test(start_paused = true)]
async fn garbage_ends_the_socket_that_sent_it_and_no_other() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut good = rig.stream(&mut executor, "good").await;
    for (message, code) in [
        (Message::Binary(Bytes::from_static(b"\xff\xff\xff")), 1007),
        (Message::Binary(Bytes::new()), 1007),
        (Message::Text("{}".into()), 1003),
    ] {
        let mut bad = rig.stream(&mut executor, "bad").await;
        bad.send_message(message).await;
        assert_eq!(bad.next().await, Err(Some(code)));
        assert_eq!(
            executor.next().await,
            Ok(reset("bad", "harness_disconnected"))
        );
    }
    good.send(data("good", 0, 1)).await;
    assert_eq!(executor.next().await, Ok(data("good", 0, 1)));
    assert!(rig.counts("exec_hub_frames_dropped_total{reason=\"garbage\"} 2"));
}

#[tokio::test(start_paused = true)]
async fn the_executor_hears_of_every_stream_of_a_harness_that_is_gone() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut harness = rig.stream(&mut executor, "one").await;
    harness.send(resume("two")).await;
    assert_eq!(executor.next().await, Ok(resume("two")));
    harness.cut().await;
    for id in ["one", "two"] {
        assert_eq!(executor.next().await, Ok(reset(id, "harness_disconnected")));
    }
    executor.send(data("one", 0, 1)).await;
    let mut other = rig.stream(&mut executor, "one").await;
    executor.send(data("one", 1, 1)).await;
    assert_eq!(other.next().await, Ok(data("one", 1, 1)));
    assert!(rig.counts("exec_hub_frames_dropped_total{reason=\"unknown_stream\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn without_an_executor_there_is_nothing_to_talk_to() {
    let rig = Rig::new();
    let mut harness = rig.harness().await;
    assert_eq!(harness.next().await, Err(Some(1013)));
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_handshakes_too_much_is_told_and_nobody_else_suffers() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut eager = rig.stream(&mut executor, "s").await;
    let mut other = rig.stream(&mut executor, "o").await;
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
async fn a_harness_whose_handshakes_fail_is_closed_behind_the_last_reset() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut harness = rig.stream(&mut executor, "s").await;
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
async fn a_stream_goes_on_when_its_harness_comes_back_before_the_old_socket_is_noticed() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut old = rig.stream(&mut executor, "s").await;
    let mut new = rig.stream(&mut executor, "s").await;
    assert_eq!(old.next().await, Err(Some(1000)));
    executor.send(data("s", 0, 1)).await;
    assert_eq!(new.next().await, Ok(data("s", 0, 1)));
    new.send(data("s", 0, 2)).await;
    assert_eq!(executor.next().await, Ok(data("s", 0, 2)));
}

#[tokio::test(start_paused = true)]
async fn a_silent_harness_is_dropped() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let harness = rig.stream(&mut executor, "s").await;
    // It neither reads nor answers pings; the executor does while it waits.
    assert_eq!(
        executor.next().await,
        Ok(reset("s", "harness_disconnected"))
    );
    drop(harness);
}
