//! Frames of existing and unknown streams, and streams that share a connection.

use tokio::io::AsyncWriteExt;

use super::*;

#[tokio::test(start_paused = true)]
async fn data_for_an_unknown_stream_is_reset() {
    let mut fixture = fixture();
    fixture.send_frame(data("nobody", 0)).await;
    fixture.expect_reset("nobody").await;
}

#[tokio::test(start_paused = true)]
async fn resume_ack_and_heartbeat_are_ignored_on_plain_and_unknown_streams() {
    let mut fixture = fixture();
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    for name in ["a", "nobody"] {
        for body in [
            FrameBody::Resume { next_seq: 0 },
            FrameBody::Ack,
            FrameBody::Heartbeat,
        ] {
            fixture.send_frame(RelayFrame::new(id(name), body)).await;
        }
        fixture.send_frame(RelayFrame::announcement(id(name))).await;
    }
    fixture.expect_silence().await;
    fixture.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn invalid_frames_are_ignored() {
    let mut fixture = fixture();
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    fixture.send_raw(Bytes::from_static(b"\xff\xff\xff")).await;
    fixture
        .send_raw(Bytes::from_static(&[8, 2, 18, 1, b'a', 0x4a, 0]))
        .await;
    let mut segmented = data("a", 0);
    if let FrameBody::Data(data) = &mut segmented.body {
        data.segment_count = 2;
    }
    fixture.send_frame(segmented).await;
    fixture.expect_silence().await;
    fixture.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn forged_record_ends_only_its_stream() {
    let mut fixture = fixture();
    let (_, mut forged) = fixture.open_stream("forged", DeliveryMode::Plain).await;
    let (mut stream, mut link) = fixture.open_stream("other", DeliveryMode::Plain).await;
    fixture.send_frame(data("forged", 0)).await;
    fixture.expect_reset("forged").await;
    let end = end_of(&mut forged).await;
    assert!(matches!(end, Err(LinkReadError::Stream(_))), "{end:?}");
    fixture.send_frame(data("forged", 1)).await;
    fixture.expect_reset("forged").await;
    fixture.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn reset_ends_a_plain_stream_and_frees_its_id() {
    let mut fixture = fixture();
    let (_, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    fixture.send_frame(reset("a")).await;
    let end = end_of(&mut link).await;
    assert!(matches!(end, Err(LinkReadError::Io(_))), "{end:?}");
    assert!(link.writer.flush().await.is_err());
    fixture.expect_silence().await;
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    fixture.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn dropped_or_closed_link_resets_its_stream() {
    let mut fixture = fixture();
    let (_, dropped) = fixture.open_stream("dropped", DeliveryMode::Plain).await;
    drop(dropped);
    fixture.expect_reset("dropped").await;

    let (mut stream, mut closed) = fixture.open_stream("closed", DeliveryMode::Plain).await;
    respond(&mut closed, "last words").await;
    within("closed", closed.writer.close()).await.unwrap();
    assert_eq!(fixture.next_message(&mut stream).await, note("last words"));
    fixture.expect_reset("closed").await;
    assert!(matches!(end_of(&mut closed).await, Ok(None)));
}

#[tokio::test(start_paused = true)]
async fn unread_plain_stream_is_reset_at_the_129th_message() {
    let mut fixture = fixture();
    let (mut slow, mut slow_link) = fixture.open_stream("slow", DeliveryMode::Plain).await;
    let (mut stream, mut link) = fixture.open_stream("other", DeliveryMode::Plain).await;
    for _ in 0..128 {
        fixture.send_message(&mut slow, "x").await;
    }
    fixture.echo(&mut stream, &mut link).await;
    fixture.send_message(&mut slow, "x").await;
    fixture.expect_reset("slow").await;
    for _ in 0..128 {
        assert_eq!(read(&mut slow_link).await, "x");
    }
    let end = end_of(&mut slow_link).await;
    assert!(matches!(end, Err(LinkReadError::Stream(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn connection_loss_ends_plain_streams_and_pending_handshakes() {
    let mut fixture = fixture();
    let (_, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    let (_, waiting) = fixture.start_handshake("b").await;
    assert!(matches!(
        fixture.replace_relay().await,
        ExecutorDisconnect::Closed
    ));
    let end = end_of(&mut link).await;
    assert!(matches!(end, Err(LinkReadError::Io(_))), "{end:?}");
    assert!(
        waiting.send(ValidationOutcome::Accepted).is_err(),
        "the validation was cancelled"
    );
    fixture.open_stream("a", DeliveryMode::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn oversized_message_or_unanswered_ping_ends_the_connection() {
    let mut fixture = fixture();
    fixture
        .relay
        .writer
        .push(Bytes::from(vec![0; (256 << 10) + 1]));
    let (ended, _) = tokio::join!(&mut fixture.serving, fixture.relay.writer.flush());
    let (_, ended) = ended.unwrap();
    assert!(
        matches!(ended, ExecutorDisconnect::Read(LinkReadError::TooLong(_))),
        "{ended:?}"
    );

    let mut silent = super::fixture();
    let start = Instant::now();
    let (_, ended) = within("the end", &mut silent.serving).await.unwrap();
    assert!(matches!(ended, ExecutorDisconnect::Write(_)), "{ended:?}");
    assert_eq!(start.elapsed(), Duration::from_secs(90));
}

#[tokio::test(start_paused = true)]
async fn connection_ends_when_the_link_receiver_is_dropped() {
    let mut fixture = fixture();
    fixture.links.close();
    let (_, ended) = within("the end", &mut fixture.serving).await.unwrap();
    assert!(
        matches!(ended, ExecutorDisconnect::ReceiverClosed),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn oversized_message_ends_the_stream() {
    let mut fixture = fixture();
    let (_, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    let huge = OutgoingMessage::Text(vec![b' '; (64 << 20) + 1]);
    link.writer.push(huge, DataEncoding::Text);
    assert!(link.writer.flush().await.is_err());
    fixture.expect_reset("a").await;
    let end = end_of(&mut link).await;
    assert!(matches!(end, Err(LinkReadError::TooLong(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn text_messages_are_ignored() {
    let mut fixture = fixture();
    let (mut server, client) = tokio::io::duplex(1 << 20);
    server.write_all(&[0x81, 1, b'x']).await.unwrap();
    let [relay, socket] = [(server, LinkRole::Server), (client, LinkRole::Client)].map(socket);
    fixture.replace_relay_with(relay, socket).await;
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    fixture.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn stale_link_does_not_end_a_new_stream_with_its_id() {
    let mut fixture = fixture();
    let (_, old) = fixture.open_stream("a", DeliveryMode::Plain).await;
    fixture.send_frame(reset("a")).await;
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    // The remaining half keeps the shared state alive.
    let Link {
        reader: _reader,
        writer,
        ..
    } = old;
    drop(writer);
    fixture.expect_silence().await;
    fixture.echo(&mut stream, &mut link).await;
}

/// Makes a message of this size.
fn bulk(bytes: usize) -> OutgoingMessage {
    OutgoingMessage::Text(vec![b' '; bytes])
}

/// Writes until the link blocks.
async fn fill_send_buffer(link: &mut Link) -> usize {
    let mut written = 0;
    loop {
        link.writer.push(bulk(64 << 10), DataEncoding::Text);
        if timeout(Duration::from_millis(1), link.writer.flush())
            .await
            .is_err()
        {
            return written;
        }
        written += 64 << 10;
        assert!(written < 64 << 20, "the link never blocks");
    }
}

#[tokio::test(start_paused = true)]
async fn small_message_is_not_delayed_by_bulk_data() {
    let mut fixture = fixture_with(1000);
    let (mut bulk_stream, mut bulk_link) = fixture.open_stream("loud", DeliveryMode::Plain).await;
    let (mut small_stream, mut small_link) =
        fixture.open_stream("quiet", DeliveryMode::Plain).await;
    bulk_link.writer.push(bulk(8 << 20), DataEncoding::Text);
    let flushed = timeout(Duration::from_millis(1), bulk_link.writer.flush()).await;
    assert!(flushed.is_err(), "the relay reads nothing");
    respond(&mut small_link, "key").await;
    let mut before = 0;
    let key = loop {
        let frame = fixture.next_frame().await;
        if frame.stream_id == id("quiet") {
            small_stream.handle_frame(frame, now()).unwrap();
            break small_stream.poll_message().unwrap();
        }
        before += frame.encode().len();
        bulk_stream.handle_frame(frame, now()).unwrap();
    };
    assert_eq!(key, note("key"));
    assert!(before <= 400 << 10, "{before} bytes came before the key");
    assert_eq!(fixture.next_message(&mut bulk_stream).await.len(), 8 << 20);
}

#[tokio::test(start_paused = true)]
async fn send_buffer_is_bounded_when_the_relay_does_not_read() {
    let mut fixture = fixture_with(1000);
    let (_, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    let written = fill_send_buffer(&mut link).await;
    assert!(written <= 1 << 20, "{written} bytes wait");
}

#[tokio::test(start_paused = true)]
async fn reliable_stream_blocks_without_acknowledgements() {
    let mut fixture = fixture_with(16 << 20);
    let (_, mut link) = fixture.open_stream("a", DeliveryMode::Reliable).await;
    let written = fill_send_buffer(&mut link).await;
    assert!(
        (3 << 20..6 << 20).contains(&written),
        "{written} bytes wait"
    );
}

#[tokio::test(start_paused = true)]
async fn unread_stream_blocks_only_its_own_harness() {
    let mut fixture = fixture_with(1 << 20);
    let (mut slow, mut slow_link) = fixture.open_stream("slow", DeliveryMode::Reliable).await;
    let (mut stream, mut link) = fixture.open_stream("other", DeliveryMode::Plain).await;
    let message = vec![b'x'; 50_000];
    let mut sent = 0;
    loop {
        slow.push(|out| out.extend_from_slice(&message)).unwrap();
        fixture.send_all(&mut slow).await;
        if slow.buffered() > 0 {
            break;
        }
        sent += 1;
        while let Ok(frame) = timeout(Duration::from_millis(30), fixture.next_frame()).await {
            slow.handle_frame(frame, now()).unwrap();
        }
        assert!(sent < 1000, "the sender is never blocked");
    }
    assert!(sent >= 20, "{sent} messages");
    fixture.send_message(&mut stream, "there").await;
    assert_eq!(read(&mut link).await, "there");
    for _ in 0..sent {
        assert_eq!(read(&mut slow_link).await, message);
    }
    // Freed space is acknowledged at once: the sender continues, and nothing was lost.
    while slow.buffered() > 0 {
        let frame = fixture.next_frame().await;
        slow.handle_frame(frame, now()).unwrap();
        fixture.send_all(&mut slow).await;
    }
    assert_eq!(read(&mut slow_link).await, message);
}

#[tokio::test(start_paused = true)]
async fn resets_for_unknown_streams_are_bounded() {
    let mut fixture = fixture_with(1000);
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    for seq in 0..20_000 {
        fixture.send_frame(data("nobody", seq)).await;
    }
    fixture.send_message(&mut stream, "there").await;
    assert_eq!(read(&mut link).await, "there");
    let mut resets = 0;
    while let Ok(frame) = timeout(Duration::from_millis(1), fixture.next_frame()).await {
        assert_eq!(frame, reset("nobody"));
        resets += 1;
    }
    assert!((1000..10_000).contains(&resets), "{resets} resets");
}
