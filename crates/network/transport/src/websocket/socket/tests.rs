//! Binary messages between two sockets, and silent peers.

use std::{future::poll_fn, io, task::Poll, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, split},
    time::{Instant, timeout},
};

use super::*;
use crate::link::LinkReadError;

fn socket(end: DuplexStream, role: LinkRole) -> BinarySocket {
    let (input, output) = split(end);
    BinarySocket::new(input, output, &[], role, SocketLimits::default())
}

fn ends(pipe: usize) -> [BinarySocket; 2] {
    let (server, client) = tokio::io::duplex(pipe);
    [
        socket(server, LinkRole::Server),
        socket(client, LinkRole::Client),
    ]
}

async fn upkeep(writer: &mut SocketWriter) -> io::Result<()> {
    poll_fn(|cx| writer.poll_keepalive(cx)).await
}

#[tokio::test]
async fn messages_arrive_complete_and_in_order() {
    let [mut server, mut client] = ends(1000);
    let messages: Vec<Bytes> = [0, 1, 125, 126, 5000, 65_536, 256 << 10]
        .map(|length: usize| Bytes::from(vec![length.to_le_bytes()[0]; length]))
        .into();
    for _ in 0..2 {
        let send = async {
            messages
                .iter()
                .for_each(|one| client.writer.push(one.clone()));
            client.writer.flush().await.unwrap();
            assert_eq!(client.writer.buffered(), 0);
        };
        let receive = async {
            for message in &messages {
                let next = server.reader.next().await.unwrap().unwrap();
                assert!(
                    next == RawMessage::Binary(message.clone()),
                    "{} bytes",
                    message.len()
                );
            }
        };
        tokio::join!(send, receive);
        std::mem::swap(&mut server, &mut client);
    }
}

#[tokio::test]
async fn oversized_message_is_rejected_by_its_header() {
    let [mut server, mut client] = ends(64 << 10);
    client.writer.push(Bytes::from(vec![0; (256 << 10) + 1]));
    let sent = timeout(Duration::from_millis(10), client.writer.flush()).await;
    assert!(sent.is_err(), "the pipe is shorter than the message");
    let refused = server.reader.next().await;
    assert!(matches!(refused, Err(LinkReadError::TooLong(262_144))));
}

#[tokio::test]
async fn text_is_distinguished_and_close_ends_the_socket() {
    let (mut peer, end) = tokio::io::duplex(1000);
    let mut client = socket(end, LinkRole::Client);
    peer.write_all(&[0x01, 1, b'a', 0x80, 1, b'b', 0x82, 1, 7, 0x88, 0])
        .await
        .unwrap();
    assert_eq!(client.reader.next().await.unwrap(), Some(RawMessage::Text));
    let binary = RawMessage::Binary(Bytes::from_static(&[7]));
    assert_eq!(client.reader.next().await.unwrap(), Some(binary));
    assert_eq!(client.reader.next().await.unwrap(), None);
    upkeep(&mut client.writer).await.unwrap();
    client.writer.flush().await.unwrap();
    let mut answer = [0; 2];
    peer.read_exact(&mut answer).await.unwrap();
    assert_eq!(
        answer,
        [0x88, 0x80],
        "a close frame is answered by a close frame"
    );
}

#[tokio::test(start_paused = true)]
async fn one_ping_is_outstanding_and_its_pong_restarts_the_interval() {
    let [mut server, mut client] = ends(1000);
    let start = Instant::now();
    for _ in 0..2 {
        upkeep(&mut server.writer).await.unwrap();
        server.writer.flush().await.unwrap();
        let read = async { timeout(Duration::from_millis(1), client.reader.next()).await };
        assert!(read.await.is_err(), "a ping is not delivered as a message");
        upkeep(&mut client.writer).await.unwrap();
        client.writer.flush().await.unwrap();
        let read = async { timeout(Duration::from_millis(1), server.reader.next()).await };
        assert!(read.await.is_err(), "a pong is not delivered as a message");
    }
    assert_eq!(start.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn deferred_and_immediate_pings_keep_one_outstanding() {
    let [mut server, _client] = ends(1000);
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    server.writer.defer_ping();
    upkeep(&mut server.writer).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 40);
    let one = server.writer.buffered();
    server.writer.ping();
    assert_eq!(
        server.writer.buffered(),
        one,
        "a ping is already outstanding"
    );
    server.writer.flush().await.unwrap();
    server.writer.defer_ping();
    assert!(upkeep(&mut server.writer).await.is_err());
    assert_eq!(
        start.elapsed().as_secs(),
        100,
        "deferring does not extend the pong timeout"
    );

    let [mut server, _client] = ends(1000);
    server.writer.ping();
    assert_eq!(server.writer.buffered(), one);
}

#[tokio::test(start_paused = true)]
async fn unanswered_ping_times_out_after_a_minute() {
    let [mut server, _client] = ends(1000);
    let start = Instant::now();
    upkeep(&mut server.writer).await.unwrap();
    server.writer.flush().await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(30));
    let error = upkeep(&mut server.writer).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(start.elapsed(), Duration::from_secs(90));
}

#[tokio::test(start_paused = true)]
async fn stalled_flush_times_out_after_a_minute() {
    let (mut peer, end) = tokio::io::duplex(10);
    let mut client = socket(end, LinkRole::Client);
    client.writer.push(Bytes::from(vec![0; 100]));
    let start = Instant::now();
    let slow = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            peer.read_exact(&mut [0; 10]).await.unwrap();
        }
    };
    let (flushed, ()) = tokio::join!(client.writer.flush(), slow);
    assert_eq!(flushed.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(start.elapsed(), Duration::from_secs(5 * 50 + 60));
}

#[tokio::test]
async fn memory_stays_bounded_when_the_peer_never_drains_the_buffer() {
    for role in [LinkRole::Client, LinkRole::Server] {
        let (mut peer, end) = tokio::io::duplex(10_000);
        let mut near = socket(end, role);
        let mut chunk = vec![0; 10_000];
        for round in 0..1000 {
            // Yield, because the pipe would otherwise exhaust tokio's cooperative budget.
            tokio::task::yield_now().await;
            near.writer.push(Bytes::from(vec![7; 10_000]));
            let flushed = poll_fn(|cx| Poll::Ready(near.writer.poll_flush(cx))).await;
            assert!(flushed.is_pending(), "it takes everything in round {round}");
            peer.read_exact(&mut chunk).await.unwrap();
        }
        assert!(near.writer.buffered() < 50_000);
        let capacity = near.writer.output.encoded.capacity();
        assert!(capacity <= 512 << 10, "{capacity} bytes are kept");
    }
}

#[tokio::test]
async fn frames_survive_buffer_compaction() {
    let (mut near, far) = tokio::io::duplex(100_000);
    let mut far = socket(far, LinkRole::Client);
    let mut received = Vec::new();
    for number in 0..200_u8 {
        tokio::task::yield_now().await;
        far.writer
            .push(Bytes::from(vec![number; 9_000 + usize::from(number)]));
        drop(poll_fn(|cx| Poll::Ready(far.writer.poll_flush(cx))).await);
        let mut some = [0; 8_000];
        let read = near.read(&mut some).await.unwrap();
        received.extend_from_slice(&some[..read]);
    }
    let flush_all = async {
        far.writer.flush().await.unwrap();
        drop(far);
    };
    let ((), read) = tokio::join!(flush_all, near.read_to_end(&mut received));
    read.unwrap();
    let (input, output) = split(tokio::io::duplex(1).0);
    let mut decoded = BinarySocket::new(
        input,
        output,
        &received,
        LinkRole::Server,
        SocketLimits::default(),
    );
    for number in 0..200_u8 {
        let message = decoded.reader.next().await.unwrap().unwrap();
        let expected = Bytes::from(vec![number; 9_000 + usize::from(number)]);
        assert!(message == RawMessage::Binary(expected), "message {number}");
    }
}
