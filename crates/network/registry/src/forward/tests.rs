//! Streams and destinations without a relay between.

use std::{future::ready, io, time::Duration};

use exec_transport::{
    connect::ConnectError,
    link::{Encoding, Link},
    memory,
};
use exec_wire::outgoing::Outgoing;
use tokio::time::timeout;

use super::{PumpError, run, *};

fn push(link: &mut Link, message: &[u8]) {
    link.writer
        .push(Outgoing::Text(message.to_vec()), Encoding::Text);
}

async fn send(link: &mut Link, message: &[u8]) {
    push(link, message);
    link.writer.flush().await.unwrap();
}

#[tokio::test]
async fn what_was_said_before_the_destination_was_there_comes_first() {
    let ((stream, mut harness), (destination, mut there)) = (memory::pair(), memory::pair());
    for message in [b"1", b"2", b"3"] {
        send(&mut harness, message).await;
    }
    let (open, opened) = tokio::sync::oneshot::channel();
    let opening = async { opened.await.map_err(|_| ConnectError::Closed) };
    let pump = tokio::spawn(run(stream, opening));
    // It has taken what it keeps while it waits.
    tokio::task::yield_now().await;
    open.send(destination).unwrap();
    for message in ["1", "2", "3"] {
        assert_eq!(there.reader.next().await.unwrap().unwrap(), message);
    }
    drop(harness);
    pump.await.unwrap().unwrap();
    assert!(there.reader.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_stream_that_ends_before_the_destination_is_there_ends_the_wait() {
    let (stream, harness) = memory::pair();
    let pump = tokio::spawn(run(stream, std::future::pending()));
    drop(harness);
    pump.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_destination_that_does_not_open_ends_the_stream() {
    let (stream, mut harness) = memory::pair();
    let ended = run(stream, ready(Err(ConnectError::Closed))).await;
    assert!(matches!(ended, Err(PumpError::Open(_))), "{ended:?}");
    assert!(harness.reader.next().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_side_that_does_not_read_stops_the_other_and_loses_nothing() {
    let ((stream, mut harness), (destination, mut there)) = (memory::pair(), memory::pair());
    let pump = tokio::spawn(run(stream, ready(Ok(destination))));
    // Messages of 256 KiB: the links between take 64 each, the pump about four.
    let message = vec![b'x'; 256 << 10];
    let mut sent = 0;
    loop {
        push(&mut there, &message);
        sent += 1;
        // The clock moves when nobody has anything to do any more.
        if timeout(Duration::from_secs(1), there.writer.flush())
            .await
            .is_err()
        {
            break;
        }
        assert!(sent < 500, "nobody stops the destination");
    }
    assert!((128..140).contains(&sent), "{sent}");
    // The other direction is free meanwhile.
    send(&mut harness, b"still here").await;
    assert_eq!(there.reader.next().await.unwrap().unwrap(), "still here");
    let drain = async {
        for _ in 0..sent {
            let message = harness.reader.next().await.unwrap().unwrap();
            assert_eq!(message.len(), 256 << 10);
        }
    };
    let (flushed, ()) = tokio::join!(there.writer.flush(), drain);
    flushed.unwrap();
    drop(there);
    pump.await.unwrap().unwrap();
    assert!(harness.reader.next().await.unwrap().is_none());
}

#[tokio::test]
async fn what_a_destination_said_before_it_broke_is_still_delivered() {
    let ((stream, mut harness), (destination, mut there)) = (memory::pair(), memory::pair());
    for message in [b"1", b"2"] {
        send(&mut there, message).await;
    }
    // It reads no more, and what is sent to it fails.
    drop(there);
    send(&mut harness, b"too late").await;
    let pump = tokio::spawn(run(stream, ready(Ok(destination))));
    for message in ["1", "2"] {
        assert_eq!(harness.reader.next().await.unwrap().unwrap(), message);
    }
    let ended = pump.await.unwrap();
    let broken =
        matches!(&ended, Err(PumpError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe);
    assert!(broken || ended.is_ok(), "{ended:?}");
    assert!(harness.reader.next().await.unwrap().is_none());
}

#[test]
fn a_destination_is_a_websocket_on_a_network() {
    for url in ["ws://a.test:1/x", " wss://a.test ", "ws://[::1]:80/?q=s"] {
        assert!(url.parse::<Destination>().is_ok(), "{url}");
    }
    for url in [
        "",
        "a.test:1",
        "http://a.test",
        "ws://",
        "unix:///tmp/x",
        "ws://u:p@a.test",
    ] {
        assert!(url.parse::<Destination>().is_err(), "{url}");
    }
    let shown = "ws://a.test/s3cret?k=s3cret"
        .parse::<Destination>()
        .unwrap();
    assert_eq!(
        format!("{shown} {shown:?}"),
        "ws://a.test:80 Destination(ws://a.test:80)"
    );
}
