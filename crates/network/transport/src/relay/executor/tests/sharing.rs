//! Streams that share a connection: who is slow or loud is so at its own cost.

use super::*;

/// A message of this many bytes.
fn bulk(bytes: usize) -> Outgoing {
    Outgoing::Text(vec![b' '; bytes])
}

/// Writes until the link takes no more.
async fn fill(link: &mut Link) -> usize {
    let mut written = 0;
    loop {
        link.writer.push(bulk(64 << 10), Encoding::Text);
        if timeout(Duration::from_millis(1), link.writer.flush())
            .await
            .is_err()
        {
            return written;
        }
        written += 64 << 10;
        assert!(written < 64 << 20, "it takes everything");
    }
}

#[tokio::test(start_paused = true)]
async fn a_keystroke_does_not_wait_behind_megabytes() {
    let mut rig = rig_with(1000);
    let (mut loud, mut loud_link) = rig.admit("loud", Delivery::Plain).await;
    let (mut quiet, mut quiet_link) = rig.admit("quiet", Delivery::Plain).await;
    loud_link.writer.push(bulk(8 << 20), Encoding::Text);
    let held_up = timeout(Duration::from_millis(1), loud_link.writer.flush()).await;
    assert!(held_up.is_err(), "the relay reads nothing");
    answer(&mut quiet_link, "key").await;
    let mut before = 0;
    let key = loop {
        let frame = rig.hear().await;
        if frame.stream_id == id("quiet") {
            quiet.handle_frame(frame, now()).unwrap();
            break quiet.poll_message().unwrap();
        }
        before += frame.encode().len();
        loud.handle_frame(frame, now()).unwrap();
    };
    assert_eq!(key, note("key"));
    assert!(before <= 400 << 10, "{before} bytes came before the key");
    assert_eq!(rig.told(&mut loud).await.len(), 8 << 20);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_relay_that_does_not_read_is_bounded() {
    let mut rig = rig_with(1000);
    let (_, mut link) = rig.admit("a", Delivery::Plain).await;
    let written = fill(&mut link).await;
    assert!(written <= 1 << 20, "{written} bytes wait");
}

#[tokio::test(start_paused = true)]
async fn a_reliable_stream_is_held_back_while_its_harness_does_not_acknowledge() {
    let mut rig = rig_with(16 << 20);
    let (_, mut link) = rig.admit("a", Delivery::Reliable).await;
    let written = fill(&mut link).await;
    assert!(
        (3 << 20..6 << 20).contains(&written),
        "{written} bytes wait"
    );
}

#[tokio::test(start_paused = true)]
async fn an_application_that_does_not_read_holds_back_its_harness_and_nobody_else() {
    let mut rig = rig_with(1 << 20);
    let (mut slow, mut slow_link) = rig.admit("slow", Delivery::Reliable).await;
    let (mut stream, mut link) = rig.admit("other", Delivery::Plain).await;
    let message = vec![b'x'; 50_000];
    let mut sent = 0;
    loop {
        slow.push(|out| out.extend_from_slice(&message)).unwrap();
        rig.send_all(&mut slow).await;
        if slow.buffered() > 0 {
            break;
        }
        sent += 1;
        while let Ok(frame) = timeout(Duration::from_millis(30), rig.hear()).await {
            slow.handle_frame(frame, now()).unwrap();
        }
        assert!(sent < 1000, "nobody holds it back");
    }
    assert!(sent >= 20, "{sent} messages");
    rig.tell(&mut stream, "there").await;
    assert_eq!(read(&mut link).await, "there");
    for _ in 0..sent {
        assert_eq!(read(&mut slow_link).await, message);
    }
    // Room is told at once: the sender goes on, and nothing was lost.
    while slow.buffered() > 0 {
        let frame = rig.hear().await;
        slow.handle_frame(frame, now()).unwrap();
        rig.send_all(&mut slow).await;
    }
    assert_eq!(read(&mut slow_link).await, message);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_data_for_nobody_does_not_fill_our_memory() {
    let mut rig = rig_with(1000);
    let (mut stream, mut link) = rig.admit("a", Delivery::Plain).await;
    for seq in 0..20_000 {
        rig.say(data("nobody", seq)).await;
    }
    rig.tell(&mut stream, "there").await;
    assert_eq!(read(&mut link).await, "there");
    let mut resets = 0;
    while let Ok(frame) = timeout(Duration::from_millis(1), rig.hear()).await {
        assert_eq!(frame, reset("nobody"));
        resets += 1;
    }
    assert!((1000..10_000).contains(&resets), "{resets} resets");
}
