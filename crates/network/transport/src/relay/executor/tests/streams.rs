//! Frames of streams that are there, and of such that are not.

use tokio::io::AsyncWriteExt;

use super::*;

#[tokio::test(start_paused = true)]
async fn data_for_a_stream_that_is_not_there_is_reset() {
    let mut rig = rig();
    rig.say(data("nobody", 0)).await;
    rig.expect_reset("nobody").await;
}

#[tokio::test(start_paused = true)]
async fn resume_ack_and_heartbeat_are_ignored_on_plain_and_unknown_streams() {
    let mut rig = rig();
    let (mut stream, mut link) = rig.admit("a", Delivery::Plain).await;
    for name in ["a", "nobody"] {
        for body in [Body::Resume { next_seq: 0 }, Body::Ack, Body::Heartbeat] {
            rig.say(Frame::new(id(name), body)).await;
        }
        rig.say(Frame::announcement(id(name))).await;
    }
    rig.expect_silence().await;
    rig.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_valid_frame_is_dropped_in_silence() {
    let mut rig = rig();
    let (mut stream, mut link) = rig.admit("a", Delivery::Plain).await;
    rig.say_raw(Bytes::from_static(b"\xff\xff\xff")).await;
    rig.say_raw(Bytes::from_static(&[8, 2, 18, 1, b'a', 0x4a, 0]))
        .await;
    let mut segmented = data("a", 0);
    if let Body::Data(data) = &mut segmented.body {
        data.segment_count = 2;
    }
    rig.say(segmented).await;
    rig.expect_silence().await;
    rig.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn a_forged_record_ends_its_stream_and_no_other() {
    let mut rig = rig();
    let (_, mut forged) = rig.admit("forged", Delivery::Plain).await;
    let (mut stream, mut link) = rig.admit("other", Delivery::Plain).await;
    rig.say(data("forged", 0)).await;
    rig.expect_reset("forged").await;
    let end = end_of(&mut forged).await;
    assert!(matches!(end, Err(ReadError::Stream(_))), "{end:?}");
    rig.say(data("forged", 1)).await;
    rig.expect_reset("forged").await;
    rig.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_ends_a_plain_stream_without_an_answer_and_its_name_is_free() {
    let mut rig = rig();
    let (_, mut link) = rig.admit("a", Delivery::Plain).await;
    rig.say(reset("a")).await;
    let end = end_of(&mut link).await;
    assert!(matches!(end, Err(ReadError::Io(_))), "{end:?}");
    assert!(link.writer.flush().await.is_err());
    rig.expect_silence().await;
    let (mut stream, mut link) = rig.admit("a", Delivery::Plain).await;
    rig.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn an_application_that_ends_resets_its_stream() {
    let mut rig = rig();
    let (_, dropped) = rig.admit("dropped", Delivery::Plain).await;
    drop(dropped);
    rig.expect_reset("dropped").await;

    let (mut stream, mut closed) = rig.admit("closed", Delivery::Plain).await;
    answer(&mut closed, "last words").await;
    within("closed", closed.writer.close()).await.unwrap();
    assert_eq!(rig.told(&mut stream).await, note("last words"));
    rig.expect_reset("closed").await;
    assert!(matches!(end_of(&mut closed).await, Ok(None)));
}

#[tokio::test(start_paused = true)]
async fn a_plain_stream_whose_application_does_not_read_is_reset_at_the_129th_message() {
    let mut rig = rig();
    let (mut slow, mut slow_link) = rig.admit("slow", Delivery::Plain).await;
    let (mut stream, mut link) = rig.admit("other", Delivery::Plain).await;
    for _ in 0..128 {
        rig.tell(&mut slow, "x").await;
    }
    rig.echo(&mut stream, &mut link).await;
    rig.tell(&mut slow, "x").await;
    rig.expect_reset("slow").await;
    for _ in 0..128 {
        assert_eq!(read(&mut slow_link).await, "x");
    }
    let end = end_of(&mut slow_link).await;
    assert!(matches!(end, Err(ReadError::Stream(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_connection_ends_plain_streams_and_waiting_handshakes() {
    let mut rig = rig();
    let (_, mut link) = rig.admit("a", Delivery::Plain).await;
    let (_, waiting) = rig.knock("b").await;
    assert!(matches!(rig.replace_relay().await, Ended::Closed));
    let end = end_of(&mut link).await;
    assert!(matches!(end, Err(ReadError::Io(_))), "{end:?}");
    assert!(
        waiting.send(ValidationOutcome::Accepted).is_err(),
        "nobody waits for the answer"
    );
    rig.admit("a", Delivery::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn the_connection_ends_when_its_messages_are_too_long_or_its_pings_unanswered() {
    let mut rig = rig();
    rig.relay.writer.push(Bytes::from(vec![0; (256 << 10) + 1]));
    let (ended, _) = tokio::join!(&mut rig.serving, rig.relay.writer.flush());
    let (_, ended) = ended.unwrap();
    assert!(
        matches!(ended, Ended::Read(ReadError::TooLong(_))),
        "{ended:?}"
    );

    let mut silent = super::rig();
    let start = Instant::now();
    let (_, ended) = within("the end", &mut silent.serving).await.unwrap();
    assert!(matches!(ended, Ended::Write(_)), "{ended:?}");
    assert_eq!(start.elapsed(), Duration::from_secs(90));
}

#[tokio::test(start_paused = true)]
async fn when_nobody_takes_links_the_connection_ends() {
    let mut rig = rig();
    rig.links.close();
    let (_, ended) = within("the end", &mut rig.serving).await.unwrap();
    assert!(matches!(ended, Ended::Unwanted), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_no_stream_carries_ends_the_stream() {
    let mut rig = rig();
    let (_, mut link) = rig.admit("a", Delivery::Plain).await;
    let huge = Outgoing::Text(vec![b' '; (64 << 20) + 1]);
    link.writer.push(huge, Encoding::Text);
    assert!(link.writer.flush().await.is_err());
    rig.expect_reset("a").await;
    let end = end_of(&mut link).await;
    assert!(matches!(end, Err(ReadError::TooLong(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn text_is_ignored() {
    let mut rig = rig();
    let (mut server, client) = tokio::io::duplex(1 << 20);
    server.write_all(&[0x81, 1, b'x']).await.unwrap();
    let [relay, socket] = [(server, Role::Server), (client, Role::Client)].map(socket);
    rig.replace_relay_with(relay, socket).await;
    let (mut stream, mut link) = rig.admit("a", Delivery::Plain).await;
    rig.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn a_link_of_the_past_does_not_end_a_new_stream_of_its_name() {
    let mut rig = rig();
    let (_, old) = rig.admit("a", Delivery::Plain).await;
    rig.say(reset("a")).await;
    let (mut stream, mut link) = rig.admit("a", Delivery::Plain).await;
    // What is left of it keeps it from being forgotten.
    let Link {
        reader: _reader,
        writer,
        ..
    } = old;
    drop(writer);
    rig.expect_silence().await;
    rig.echo(&mut stream, &mut link).await;
}

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
