//! Relays that fall silent: the path to them may be dead, and nobody says so.

use std::{future::poll_fn, io};

use super::*;

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
