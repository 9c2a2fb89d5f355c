//! Tests of forwarding executors.

use std::time::Duration;

use exec_registry::{executor::ExecutorError, forward::Forwarder};
use exec_transport::{link::DataEncoding, tls::TrustStore};
use exec_wire::{limits, outgoing_message::OutgoingMessage};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
    task::JoinHandle,
    time::Instant,
};

use crate::{
    registry_server::{RegistryServer, admit, executor, frame, register},
    relay_client::{ExecutorInfo, RelayPeer, RelayStream},
};

/// A running forwarder with its registry and destination.
struct Running {
    server: RegistryServer,
    destination: RegistryServer,
    relay: RelayPeer,
    known: ExecutorInfo,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ExecutorError>>,
}

async fn run() -> Running {
    let (mut server, destination) = (RegistryServer::start().await, RegistryServer::start().await);
    let to = destination.ws("/there?k=v").parse().unwrap();
    let forwarder = Forwarder::new(executor(&server), to, TrustStore::default());
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(forwarder.run(async {
        drop(stopped.await);
    }));
    let known = register(&mut server, "/r", "reg-1").await;
    let relay = RelayPeer::new(server.expect("GET", "/r").await.socket().await);
    Running {
        server,
        destination,
        relay,
        known,
        stop,
        task,
    }
}

impl Running {
    async fn admit(&mut self, id: &str) -> RelayStream {
        admit(&mut self.server, &mut self.relay, &self.known, id).await
    }
}

#[tokio::test(start_paused = true)]
async fn messages_are_forwarded_unchanged() {
    let mut running = run().await;
    let mut stream = running.admit("stream-1").await;
    // The destination is dialled at once, before the harness sends anything.
    let request = running.destination.expect("GET", "/there?k=v").await;
    for name in ["authorization", "x-request-id", "traceparent", "origin"] {
        assert_eq!(request.header(name), None);
    }
    let mut remote = request.upgrade().await;
    for message in [&b"{}"[..], b"not JSON", b"\xff\x00"] {
        running.relay.send_message(&mut stream, message).await;
        assert_eq!(frame(&mut remote).await, Some((0x82, message.to_vec())));
    }
    // A text message, a binary message and a fragmented one; then an empty one and a pong, which
    // are not forwarded.
    remote
        .write_all(b"\x81\x02ab\x8a\x00\x82\x00\x82\x02\xfe\xff")
        .await
        .unwrap();
    remote
        .write_all(b"\x01\x01c\x89\x01p\x80\x01d")
        .await
        .unwrap();
    for message in [&b"ab"[..], b"\xfe\xff", b"cd"] {
        assert_eq!(running.relay.receive_message(&mut stream).await, message);
    }
    assert_eq!(frame(&mut remote).await, Some((0x8a, b"p".to_vec())));
}

#[tokio::test(start_paused = true)]
async fn every_stream_has_its_own_destination() {
    let mut running = run().await;
    let mut one = running.admit("stream-1").await;
    let mut first = running.destination.next().await.upgrade().await;
    let mut two = running.admit("stream-2").await;
    let mut second = running.destination.next().await.upgrade().await;
    running.relay.send_message(&mut two, b"2").await;
    running.relay.send_message(&mut one, b"1").await;
    assert_eq!(frame(&mut first).await, Some((0x82, b"1".to_vec())));
    assert_eq!(frame(&mut second).await, Some((0x82, b"2".to_vec())));
    // The streams are independent.
    drop(first);
    running.relay.expect_reset("stream-1").await;
    second.write_all(b"\x81\x01x").await.unwrap();
    assert_eq!(running.relay.receive_message(&mut two).await, b"x");
}

#[tokio::test(start_paused = true)]
async fn failure_to_open_the_destination_resets_the_stream() {
    let mut running = run().await;
    running.admit("refused").await;
    running.destination.next().await.reply(404, "").await;
    running.relay.expect_reset("refused").await;
    running.admit("cut").await;
    drop(running.destination.next().await);
    running.relay.expect_reset("cut").await;
    running.admit("silent").await;
    let silent = running.destination.next().await;
    let started_at = Instant::now();
    running.relay.expect_reset("silent").await;
    let waited = started_at.elapsed().as_secs_f64();
    assert!((10.0..10.1).contains(&waited), "{waited}");
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn closing_destination_is_drained_and_acknowledged() {
    let mut running = run().await;
    let mut stream = running.admit("stream-1").await;
    let mut remote = running.destination.next().await.upgrade().await;
    remote
        .write_all(b"\x81\x03one\x82\x03two\x88\x02\x03\xe8")
        .await
        .unwrap();
    assert_eq!(running.relay.receive_message(&mut stream).await, b"one");
    assert_eq!(running.relay.receive_message(&mut stream).await, b"two");
    running.relay.expect_reset("stream-1").await;
    assert_eq!(frame(&mut remote).await.unwrap().0, 0x88);
    assert_eq!(frame(&mut remote).await, None);
}

#[tokio::test(start_paused = true)]
async fn ended_stream_drops_its_destination_without_close_frame() {
    let mut running = run().await;
    // One stream is reset by the relay, the other ends with the relay.
    for lost in [false, true] {
        let stream = running.admit(if lost { "lost" } else { "reset" }).await;
        let mut remote = running.destination.next().await.upgrade().await;
        if lost {
            drop(running);
            expect_end(&mut remote).await;
            return;
        }
        running.relay.reset(stream).await;
        expect_end(&mut remote).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stop_drops_all_connections_without_close_frame() {
    let mut running = run().await;
    running.admit("stream-1").await;
    let mut remote = running.destination.next().await.upgrade().await;
    running.stop.send(()).unwrap();
    assert!(running.task.await.unwrap().is_ok());
    expect_end(&mut remote).await;
}

async fn expect_end(remote: &mut tokio::net::TcpStream) {
    let mut received = Vec::new();
    drop(remote.read_to_end(&mut received).await);
    assert_eq!(received, b"");
}

#[tokio::test]
async fn large_messages_are_sent_in_pieces_of_eight_mebibytes() {
    let mut running = run().await;
    let mut stream = running.admit("stream-1").await;
    let mut remote = running.destination.next().await.upgrade().await;
    let large: Vec<u8> = (0..9 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
    let read = tokio::spawn(async move {
        let pieces = [
            frame(&mut remote).await.unwrap(),
            frame(&mut remote).await.unwrap(),
        ];
        (pieces, remote)
    });
    running.relay.send_message(&mut stream, &large).await;
    let ([one, two], _remote) = read.await.unwrap();
    assert_eq!((one.0, one.1.len()), (0x02, limits::OUTGOING_FRAME_BYTES));
    assert_eq!(two.0, 0x80);
    assert!([one.1, two.1].concat() == large);
}

#[tokio::test]
async fn oversized_message_of_the_destination_resets_the_stream() {
    let mut running = run().await;
    let mut stream = running.admit("stream-1").await;
    let mut remote = running.destination.next().await.link().await;
    // The frame header alone triggers the limit; no payload is read.
    let most = vec![b' '; limits::OUTGOING_FRAME_BYTES + 1];
    remote
        .writer
        .push(OutgoingMessage::Text(most.clone()), DataEncoding::Text);
    remote.writer.flush().await.unwrap();
    assert_eq!(
        running.relay.receive_message(&mut stream).await.len(),
        most.len()
    );
    running.admit("stream-2").await;
    let mut remote = running.destination.next().await.upgrade().await;
    let length = u64::try_from(limits::MAX_MESSAGE_BYTES).unwrap() + 1;
    remote
        .write_all(&[&b"\x82\x7f"[..], &length.to_be_bytes()].concat())
        .await
        .unwrap();
    running.relay.expect_reset("stream-2").await;
}

#[tokio::test(start_paused = true)]
async fn early_disconnect_of_the_harness_closes_the_destination() {
    let mut running = run().await;
    let stream = running.admit("stream-1").await;
    let waiting = running.destination.next().await;
    running.relay.reset(stream).await;
    let mut remote = waiting.upgrade().await;
    let ended = tokio::time::timeout(Duration::from_secs(1), expect_end(&mut remote)).await;
    assert!(ended.is_ok());
}

#[tokio::test]
async fn disconnect_of_the_harness_is_noticed_behind_a_blocked_destination() {
    let mut running = run().await;
    let mut stream = running.admit("stream-1").await;
    let mut remote = running.destination.next().await.upgrade().await;
    // More than the sockets and the forwarder buffer.
    for _ in 0..3 {
        running
            .relay
            .send_message(&mut stream, &vec![b'x'; 8 << 20])
            .await;
    }
    running.relay.reset(stream).await;
    // Without reads, only a failing write reveals that the peer is gone.
    let pongs = async { while remote.write_all(b"\x8a\x00").await.is_ok() {} };
    let ended = tokio::time::timeout(Duration::from_secs(10), pongs).await;
    assert!(ended.is_ok());
}
