//! Reliable streams across connection loss, and the keepalive that detects it.

use std::{future::poll_fn, io};

use exec_relay::frame::RESET_CLOSED;

use super::*;

/// Opens a stream and cuts its path with a message in flight in each direction.
async fn cut_stream(fixture: &mut ExecutorFixture) -> (RelayStream, Link) {
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Reliable).await;
    fixture.echo(&mut stream, &mut link).await;
    stream
        .push(|out| out.extend_from_slice(b"lost on its way"))
        .unwrap();
    while stream.poll_frame(now()).is_some() {}
    respond(&mut link, "lost too").await;
    assert_eq!(
        fixture.next_frame().await.body.kind(),
        exec_relay::frame::FrameKind::Data
    );
    stream.handle_disconnect(now());
    (stream, link)
}

/// Resumes a stream and receives what was lost.
async fn resume_stream(fixture: &mut ExecutorFixture, stream: &mut RelayStream, link: &mut Link) {
    stream.handle_reconnect(now());
    fixture.send_all(stream).await;
    assert_eq!(fixture.next_message(stream).await, note("lost too"));
    fixture.send_all(stream).await;
    assert_eq!(read(link).await, "lost on its way");
    fixture.send_message(stream, "there").await;
    assert_eq!(read(link).await, "there");
}

#[tokio::test(start_paused = true)]
async fn reliable_stream_survives_loss_of_the_executor_connection() {
    let mut fixture = fixture();
    let (mut stream, mut link) = cut_stream(&mut fixture).await;
    fixture.replace_relay().await;
    tokio::time::sleep(Duration::from_secs(19)).await;
    resume_stream(&mut fixture, &mut stream, &mut link).await;
    assert!(
        fixture.claims.try_recv().is_err(),
        "there is no new handshake"
    );
}

#[tokio::test(start_paused = true)]
async fn reliable_stream_survives_loss_of_the_harness_connection() {
    let mut fixture = fixture();
    let (mut stream, mut link) = cut_stream(&mut fixture).await;
    fixture.send_frame(reset("a")).await;
    fixture.expect_silence().await;
    tokio::time::sleep(Duration::from_secs(19)).await;
    resume_stream(&mut fixture, &mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn harness_may_resume_before_its_loss_is_noticed() {
    let mut fixture = fixture();
    let (mut stream, mut link) = cut_stream(&mut fixture).await;
    resume_stream(&mut fixture, &mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn parked_stream_expires_after_twenty_seconds() {
    let mut fixture = fixture();
    let (_, mut link) = cut_stream(&mut fixture).await;
    let start = Instant::now();
    fixture.send_frame(reset("a")).await;
    assert!(matches!(end_of(&mut link).await, Err(LinkReadError::Io(_))));
    assert_eq!(start.elapsed().as_secs(), 20);

    let (_, mut link) = fixture.open_stream("b", DeliveryMode::Reliable).await;
    let start = Instant::now();
    let [relay, _unserved] = pipe(1000);
    fixture.relay = relay;
    assert!(matches!(end_of(&mut link).await, Err(LinkReadError::Io(_))));
    assert_eq!(start.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn losing_the_executor_connection_does_not_extend_parking() {
    let mut fixture = fixture();
    let (_, mut link) = cut_stream(&mut fixture).await;
    let start = Instant::now();
    fixture.send_frame(reset("a")).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let [relay, _unserved] = pipe(1000);
    fixture.relay = relay;
    assert!(matches!(end_of(&mut link).await, Err(LinkReadError::Io(_))));
    assert_eq!(start.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn late_resume_is_reset() {
    let mut fixture = fixture();
    let (mut stream, _link) = cut_stream(&mut fixture).await;
    fixture.replace_relay().await;
    tokio::time::sleep(Duration::from_secs(21)).await;
    stream.handle_reconnect(now());
    fixture.send_all(&mut stream).await;
    fixture.expect_reset("a").await;
}

#[tokio::test(start_paused = true)]
async fn deliberate_close_is_not_parked() {
    let mut fixture = fixture();
    let (_, mut link) = fixture.open_stream("a", DeliveryMode::Reliable).await;
    let start = Instant::now();
    let reason = RESET_CLOSED.to_owned();
    fixture
        .send_frame(RelayFrame::new(id("a"), FrameBody::Reset { reason }))
        .await;
    assert!(end_of(&mut link).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn new_stream_of_a_harness_ends_its_parked_streams() {
    let mut fixture = fixture();
    let (_, mut parked) = fixture.open_stream("parked", DeliveryMode::Reliable).await;
    let (mut alive, mut alive_link) = fixture.open_stream("alive", DeliveryMode::Reliable).await;
    fixture.send_frame(reset("parked")).await;
    let start = Instant::now();
    fixture.open_stream("new", DeliveryMode::Reliable).await;
    assert!(end_of(&mut parked).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 0);
    fixture.send_message(&mut alive, "there").await;
    assert_eq!(read(&mut alive_link).await, "there");
}

/// Returns an executor that is full of parked streams.
async fn full_of_parked_streams() -> (ExecutorFixture, Vec<Link>) {
    let mut fixture = fixture();
    let mut links = Vec::new();
    for index in 0..128 {
        let name = format!("parked {index}");
        fixture.harness = NoiseIdentity::generate();
        links.push(fixture.open_stream(&name, DeliveryMode::Reliable).await.1);
        fixture.send_frame(reset(&name)).await;
    }
    fixture.harness = NoiseIdentity::generate();
    (fixture, links)
}

#[tokio::test(start_paused = true)]
async fn oldest_parked_stream_is_evicted_for_a_new_one() {
    let (mut fixture, mut links) = full_of_parked_streams().await;
    fixture.open_stream("new", DeliveryMode::Reliable).await;
    assert!(end_of(&mut links[0]).await.is_err(), "the oldest is gone");
    let next = timeout(Duration::from_millis(1), links[1].reader.next());
    assert!(next.await.is_err(), "only the oldest is evicted");
}

#[tokio::test(start_paused = true)]
async fn refused_harness_evicts_no_parked_stream() {
    let (mut fixture, mut links) = full_of_parked_streams().await;
    fixture.send_garbage_handshake("garbage").await;
    let (_, validation) = fixture.start_handshake("a stranger").await;
    validation.send(ValidationOutcome::Refused).unwrap();
    fixture.expect_reset("a stranger").await;
    for link in &mut links[..3] {
        let end = timeout(Duration::from_millis(1), link.reader.next()).await;
        assert!(end.is_err(), "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_executor_ends_parked_streams() {
    let mut fixture = fixture();
    let (_, mut link) = cut_stream(&mut fixture).await;
    let [relay, _unserved] = pipe(1000);
    fixture.relay = relay;
    let (executor, _) = fixture.serving.await.unwrap();
    let start = Instant::now();
    drop(executor);
    assert!(end_of(&mut link).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 0);
}

/// Lets the relay read and answer pings for a while. Returns the number of frames.
async fn respond_to_pings(fixture: &mut ExecutorFixture, seconds: u64) -> usize {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let BinarySocket { reader, writer } = &mut fixture.relay;
    let mut frames = 0;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => return frames,
            read = reader.next() => {
                read.unwrap().unwrap();
                frames += 1;
            }
            alive = poll_fn(|cx| writer.poll_keepalive(cx)) => {
                alive.unwrap();
                writer.flush().await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silent_relay_with_reliable_streams_is_dropped_after_twenty_seconds() {
    let mut fixture = fixture();
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Reliable).await;
    fixture.echo(&mut stream, &mut link).await;
    let start = Instant::now();
    let placeholder = tokio::spawn(std::future::pending());
    let serving = std::mem::replace(&mut fixture.serving, placeholder);
    let (executor, ended) = within("the end", serving).await.unwrap();
    assert!(
        matches!(&ended, ExecutorDisconnect::Write(error) if error.kind() == io::ErrorKind::TimedOut),
        "{ended:?}"
    );
    assert_eq!(start.elapsed().as_secs(), 20);
    // The stream is parked and resumes on the next connection.
    let [relay, socket] = pipe(1 << 20);
    fixture.relay = relay;
    fixture.serving = serve(executor, socket);
    stream.handle_disconnect(now());
    stream.handle_reconnect(now());
    fixture.send_all(&mut stream).await;
    respond(&mut link, "back").await;
    assert_eq!(fixture.next_message(&mut stream).await, note("back"));
    fixture.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn responsive_relay_is_kept_when_harnesses_are_silent() {
    let mut fixture = fixture();
    let (_, mut link) = fixture.open_stream("a", DeliveryMode::Reliable).await;
    // Two heartbeats, and the reset after thirty seconds.
    assert_eq!(respond_to_pings(&mut fixture, 100).await, 3);
    assert!(end_of(&mut link).await.is_err());
    assert!(!fixture.serving.is_finished());
    fixture.open_stream("b", DeliveryMode::Reliable).await;
}

#[tokio::test(start_paused = true)]
async fn plain_streams_use_the_stock_ping_timeout() {
    let mut fixture = fixture();
    let (_, _link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    let start = Instant::now();
    within("the end", &mut fixture.serving).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 90);
}

#[tokio::test(start_paused = true)]
async fn relay_that_stops_reading_is_dropped_after_twenty_seconds() {
    let mut fixture = fixture_with(20_000);
    let (_, mut link) = fixture.open_stream("a", DeliveryMode::Reliable).await;
    let start = Instant::now();
    let text = OutgoingMessage::notification("much", &"x".repeat(100_000));
    link.writer.push(text, DataEncoding::Text);
    within("flushed", link.writer.flush()).await.unwrap();
    within("the end", &mut fixture.serving).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 20);
}
