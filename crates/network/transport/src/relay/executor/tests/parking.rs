//! Reliable streams whose path is lost, and comes back or does not.

use std::{future::poll_fn, io};

use exec_relay::frame::RESET_CLOSED;

use super::*;

/// A stream with a message under way in both directions when its path is cut.
async fn cut(rig: &mut Rig) -> (Stream, Link) {
    let (mut stream, mut link) = rig.admit("a", Delivery::Reliable).await;
    rig.echo(&mut stream, &mut link).await;
    stream
        .push(|out| out.extend_from_slice(b"lost on its way"))
        .unwrap();
    while stream.poll_frame(now()).is_some() {}
    answer(&mut link, "lost too").await;
    assert_eq!(rig.hear().await.body.kind(), exec_relay::route::Kind::Data);
    stream.handle_disconnect(now());
    (stream, link)
}

/// Comes back on whatever connection there is, and takes what was lost.
async fn come_back(rig: &mut Rig, stream: &mut Stream, link: &mut Link) {
    stream.handle_reconnect(now());
    rig.send_all(stream).await;
    assert_eq!(rig.told(stream).await, note("lost too"));
    rig.send_all(stream).await;
    assert_eq!(read(link).await, "lost on its way");
    rig.tell(stream, "there").await;
    assert_eq!(read(link).await, "there");
}

#[tokio::test(start_paused = true)]
async fn a_reliable_stream_outlives_the_executors_connection() {
    let mut rig = rig();
    let (mut stream, mut link) = cut(&mut rig).await;
    rig.replace_relay().await;
    tokio::time::sleep(Duration::from_secs(19)).await;
    come_back(&mut rig, &mut stream, &mut link).await;
    assert!(rig.claims.try_recv().is_err(), "there is no new handshake");
}

#[tokio::test(start_paused = true)]
async fn a_reliable_stream_outlives_its_harnesss_connection() {
    let mut rig = rig();
    let (mut stream, mut link) = cut(&mut rig).await;
    rig.say(reset("a")).await;
    rig.expect_silence().await;
    tokio::time::sleep(Duration::from_secs(19)).await;
    come_back(&mut rig, &mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn a_harness_may_be_back_before_its_loss_was_noticed() {
    let mut rig = rig();
    let (mut stream, mut link) = cut(&mut rig).await;
    come_back(&mut rig, &mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_stream_ends_after_twenty_seconds_with_and_without_a_connection() {
    let mut rig = rig();
    let (_, mut link) = cut(&mut rig).await;
    let start = Instant::now();
    rig.say(reset("a")).await;
    assert!(matches!(end_of(&mut link).await, Err(ReadError::Io(_))));
    assert_eq!(start.elapsed().as_secs(), 20);

    let (_, mut link) = rig.admit("b", Delivery::Reliable).await;
    let start = Instant::now();
    let [relay, _unserved] = pipe(1000);
    rig.relay = relay;
    assert!(matches!(end_of(&mut link).await, Err(ReadError::Io(_))));
    assert_eq!(start.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_the_executors_connection_prolongs_nothing() {
    let mut rig = rig();
    let (_, mut link) = cut(&mut rig).await;
    let start = Instant::now();
    rig.say(reset("a")).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let [relay, _unserved] = pipe(1000);
    rig.relay = relay;
    assert!(matches!(end_of(&mut link).await, Err(ReadError::Io(_))));
    assert_eq!(start.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_too_late_is_reset() {
    let mut rig = rig();
    let (mut stream, _link) = cut(&mut rig).await;
    rig.replace_relay().await;
    tokio::time::sleep(Duration::from_secs(21)).await;
    stream.handle_reconnect(now());
    rig.send_all(&mut stream).await;
    rig.expect_reset("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_closes_on_purpose_leaves_nothing_parked() {
    let mut rig = rig();
    let (_, mut link) = rig.admit("a", Delivery::Reliable).await;
    let start = Instant::now();
    let reason = RESET_CLOSED.to_owned();
    rig.say(Frame::new(id("a"), Body::Reset { reason })).await;
    assert!(end_of(&mut link).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_stream_of_the_same_harness_ends_its_parked_ones() {
    let mut rig = rig();
    let (_, mut parked) = rig.admit("parked", Delivery::Reliable).await;
    let (mut alive, mut alive_link) = rig.admit("alive", Delivery::Reliable).await;
    rig.say(reset("parked")).await;
    let start = Instant::now();
    rig.admit("new", Delivery::Reliable).await;
    assert!(end_of(&mut parked).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 0);
    rig.tell(&mut alive, "there").await;
    assert_eq!(read(&mut alive_link).await, "there");
}

/// An executor that has nothing but parked streams, and as many as it may.
async fn crowd() -> (Rig, Vec<Link>) {
    let mut rig = rig();
    let mut links = Vec::new();
    for index in 0..128 {
        let name = format!("parked {index}");
        rig.harness = Identity::generate();
        links.push(rig.admit(&name, Delivery::Reliable).await.1);
        rig.say(reset(&name)).await;
    }
    rig.harness = Identity::generate();
    (rig, links)
}

#[tokio::test(start_paused = true)]
async fn parked_streams_make_room_for_new_ones() {
    let (mut rig, mut links) = crowd().await;
    rig.admit("new", Delivery::Reliable).await;
    assert!(end_of(&mut links[0]).await.is_err(), "the oldest is gone");
    let next = timeout(Duration::from_millis(1), links[1].reader.next());
    assert!(next.await.is_err(), "and no other");
}

#[tokio::test(start_paused = true)]
async fn who_is_not_let_in_ends_no_parked_stream() {
    let (mut rig, mut links) = crowd().await;
    rig.botch("garbage").await;
    let (_, answer) = rig.knock("a stranger").await;
    answer.send(ValidationOutcome::Refused).unwrap();
    rig.expect_reset("a stranger").await;
    for link in &mut links[..3] {
        let end = timeout(Duration::from_millis(1), link.reader.next()).await;
        assert!(end.is_err(), "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_is_dropped_ends_what_it_has_parked() {
    let mut rig = rig();
    let (_, mut link) = cut(&mut rig).await;
    let [relay, _unserved] = pipe(1000);
    rig.relay = relay;
    let (executor, _) = rig.serving.await.unwrap();
    let start = Instant::now();
    drop(executor);
    assert!(end_of(&mut link).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 0);
}

/// Lets the relay read, and answer pings, for a while. Returns how many frames came.
async fn answer_pings(rig: &mut Rig, seconds: u64) -> usize {
    let until = Instant::now() + Duration::from_secs(seconds);
    let Socket { reader, writer } = &mut rig.relay;
    let mut frames = 0;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(until) => return frames,
            read = reader.next() => {
                read.unwrap().unwrap();
                frames += 1;
            }
            alive = poll_fn(|cx| writer.poll_upkeep(cx)) => {
                alive.unwrap();
                writer.flush().await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_silent_while_a_reliable_stream_is_open_is_given_up_after_twenty_seconds() {
    let mut rig = rig();
    let (mut stream, mut link) = rig.admit("a", Delivery::Reliable).await;
    rig.echo(&mut stream, &mut link).await;
    let start = Instant::now();
    let gone = tokio::spawn(std::future::pending());
    let serving = std::mem::replace(&mut rig.serving, gone);
    let (executor, ended) = within("the end", serving).await.unwrap();
    assert!(
        matches!(&ended, Ended::Write(error) if error.kind() == io::ErrorKind::TimedOut),
        "{ended:?}"
    );
    assert_eq!(start.elapsed().as_secs(), 20);
    // The stream is parked, and goes on over the next connection.
    let [relay, socket] = pipe(1 << 20);
    rig.relay = relay;
    rig.serving = serve(executor, socket);
    stream.handle_disconnect(now());
    stream.handle_reconnect(now());
    rig.send_all(&mut stream).await;
    answer(&mut link, "back").await;
    assert_eq!(rig.told(&mut stream).await, note("back"));
    rig.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_answers_is_kept_however_silent_its_harnesses_are() {
    let mut rig = rig();
    let (_, mut link) = rig.admit("a", Delivery::Reliable).await;
    // Two heartbeats, and the reset after half a minute.
    assert_eq!(answer_pings(&mut rig, 100).await, 3);
    assert!(end_of(&mut link).await.is_err());
    assert!(!rig.serving.is_finished());
    rig.admit("b", Delivery::Reliable).await;
}

#[tokio::test(start_paused = true)]
async fn whoever_has_plain_streams_only_waits_as_long_as_a_stock_executor() {
    let mut rig = rig();
    let (_, _link) = rig.admit("a", Delivery::Plain).await;
    let start = Instant::now();
    within("the end", &mut rig.serving).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 90);
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_takes_nothing_more_is_given_up_as_fast() {
    let mut rig = rig_with(20_000);
    let (_, mut link) = rig.admit("a", Delivery::Reliable).await;
    let start = Instant::now();
    let text = Outgoing::notification("much", &"x".repeat(100_000));
    link.writer.push(text, Encoding::Text);
    within("flushed", link.writer.flush()).await.unwrap();
    within("the end", &mut rig.serving).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 20);
}
