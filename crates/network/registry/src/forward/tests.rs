//! Tests of forwarding between in-memory links, without a relay.

use std::{future::ready, io, time::Duration};

use exec_transport::{
    connect::ConnectError,
    link::{DataEncoding, Link},
    memory,
};
use exec_wire::outgoing_message::OutgoingMessage;
use tokio::time::timeout;

use super::{ForwardError, pump_stream, *};

fn push(link: &mut Link, message: &[u8]) {
    link.writer
        .push(OutgoingMessage::Text(message.to_vec()), DataEncoding::Text);
}

async fn send(link: &mut Link, message: &[u8]) {
    push(link, message);
    link.writer.flush().await.unwrap();
}

#[tokio::test]
async fn messages_sent_before_the_destination_opens_arrive_first() {
    let ((stream, mut harness), (destination, mut remote)) = (memory::pair(), memory::pair());
    for message in [b"1", b"2", b"3"] {
        send(&mut harness, message).await;
    }
    let (open, opened) = tokio::sync::oneshot::channel();
    let opening = async { opened.await.map_err(|_| ConnectError::Closed) };
    let pump = tokio::spawn(pump_stream(stream, opening));
    // The pump has taken the one message that it buffers while waiting.
    tokio::task::yield_now().await;
    open.send(destination).unwrap();
    for message in ["1", "2", "3"] {
        assert_eq!(remote.reader.next().await.unwrap().unwrap(), message);
    }
    drop(harness);
    pump.await.unwrap().unwrap();
    assert!(remote.reader.next().await.unwrap().is_none());
}

#[tokio::test]
async fn stream_end_cancels_opening_the_destination() {
    let (stream, harness) = memory::pair();
    let pump = tokio::spawn(pump_stream(stream, std::future::pending()));
    drop(harness);
    pump.await.unwrap().unwrap();
}

#[tokio::test]
async fn failure_to_open_the_destination_ends_the_stream() {
    let (stream, mut harness) = memory::pair();
    let ended = pump_stream(stream, ready(Err(ConnectError::Closed))).await;
    assert!(matches!(ended, Err(ForwardError::Open(_))), "{ended:?}");
    assert!(harness.reader.next().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn slow_reader_applies_backpressure_without_loss() {
    let ((stream, mut harness), (destination, mut remote)) = (memory::pair(), memory::pair());
    let pump = tokio::spawn(pump_stream(stream, ready(Ok(destination))));
    // Messages of 256 KiB: each link buffers 64 of them, the pump about four.
    let message = vec![b'x'; 256 << 10];
    let mut sent = 0;
    loop {
        push(&mut remote, &message);
        sent += 1;
        // The paused clock advances only when all tasks are idle.
        if timeout(Duration::from_secs(1), remote.writer.flush())
            .await
            .is_err()
        {
            break;
        }
        assert!(sent < 500, "backpressure does not reach the destination");
    }
    assert!((128..140).contains(&sent), "{sent}");
    // The other direction is not affected.
    send(&mut harness, b"still here").await;
    assert_eq!(remote.reader.next().await.unwrap().unwrap(), "still here");
    let drain = async {
        for _ in 0..sent {
            let message = harness.reader.next().await.unwrap().unwrap();
            assert_eq!(message.len(), 256 << 10);
        }
    };
    let (flushed, ()) = tokio::join!(remote.writer.flush(), drain);
    flushed.unwrap();
    drop(remote);
    pump.await.unwrap().unwrap();
    assert!(harness.reader.next().await.unwrap().is_none());
}

#[tokio::test]
async fn messages_before_a_destination_failure_are_delivered() {
    let ((stream, mut harness), (destination, mut remote)) = (memory::pair(), memory::pair());
    for message in [b"1", b"2"] {
        send(&mut remote, message).await;
    }
    // The destination reads no more, and writes to it fail.
    drop(remote);
    send(&mut harness, b"too late").await;
    let pump = tokio::spawn(pump_stream(stream, ready(Ok(destination))));
    for message in ["1", "2"] {
        assert_eq!(harness.reader.next().await.unwrap().unwrap(), message);
    }
    let ended = pump.await.unwrap();
    let broken = matches!(&ended, Err(ForwardError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe);
    assert!(broken || ended.is_ok(), "{ended:?}");
    assert!(harness.reader.next().await.unwrap().is_none());
}

#[test]
fn destination_must_be_a_network_websocket() {
    for url in ["ws://a.test:1/x", " wss://a.test ", "ws://[::1]:80/?q=s"] {
        assert!(url.parse::<ForwardDestination>().is_ok(), "{url}");
    }
    for url in [
        "",
        "a.test:1",
        "http://a.test",
        "ws://",
        "unix:///tmp/x",
        "ws://u:p@a.test",
    ] {
        assert!(url.parse::<ForwardDestination>().is_err(), "{url}");
    }
    let shown = "ws://a.test/s3cret?k=s3cret"
        .parse::<ForwardDestination>()
        .unwrap();
    assert_eq!(
        format!("{shown} {shown:?}"),
        "ws://a.test:80 Destination(ws://a.test:80)"
    );
}
