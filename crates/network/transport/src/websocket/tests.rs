//! Messages through a pair of links, complete and fragmented.

mod cases;

use bytes::Bytes;
use exec_wire::{
    base64_bytes::decode,
    limits,
    message::{RequestId, split_binary},
    outgoing_message::OutgoingMessage,
};
use tokio::io::AsyncWriteExt;

use super::{LinkOptions, MessageBudget, MessageBudgetLimits, UpgradedStream};
use crate::link::{DataEncoding, Link, LinkReadError, LinkRole};

/// Two ends with a pipe between them that is shorter than the messages.
fn ends() -> [Link; 2] {
    let (server, client) = tokio::io::duplex(50_000);
    let ends = [(server, LinkRole::Server), (client, LinkRole::Client)];
    ends.map(|(end, role)| {
        let stream = UpgradedStream::new(tokio::io::split(end), Bytes::new());
        stream.into_link(role, "test".to_owned(), LinkOptions::of(role))
    })
}

fn pattern(length: usize) -> Bytes {
    (0u32..)
        .map(|index| index.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .take(length)
        .collect()
}

fn message(data: &Bytes) -> OutgoingMessage {
    let id = RequestId::Number(7);
    OutgoingMessage::result(&id, &serde_json::json!({"eof": true})).with_data("chunk", data.clone())
}

/// Sends a large message between two small ones.
async fn exchange(from: &mut Link, to: &mut Link, data: &Bytes, encoding: DataEncoding) -> Bytes {
    let small = || OutgoingMessage::notification("small", &());
    let send = async {
        from.writer.push(small(), encoding);
        from.writer.push(message(data), encoding);
        from.writer.push(small(), encoding);
        from.writer.flush().await.unwrap();
        assert_eq!(from.writer.buffered(), 0);
    };
    let receive = async {
        let mut received = Vec::new();
        for _ in 0..3 {
            received.push(to.reader.next().await.unwrap().unwrap());
        }
        assert_eq!(received[0], received[2]);
        assert_eq!(received[0], r#"{"method":"small","params":null}"#);
        received.swap_remove(1)
    };
    tokio::join!(send, receive).1
}

const SIZES: [usize; 9] = [
    0,
    1,
    (192 << 10) - 1,
    192 << 10,
    (192 << 10) + 1,
    1 << 20,
    31 * (192 << 10),
    31 * (192 << 10) + 1,
    (9 << 20) + 5,
];

#[tokio::test]
async fn data_of_any_size_arrives_as_text_in_both_directions() {
    for size in SIZES {
        let data = pattern(size);
        let [mut server, mut client] = ends();
        let down = exchange(&mut server, &mut client, &data, DataEncoding::Text).await;
        assert_text(&down, &data);
        let up = exchange(&mut client, &mut server, &data, DataEncoding::Text).await;
        assert_text(&up, &data);
    }
}

fn assert_text(text: &Bytes, data: &Bytes) {
    let (head, tail) = (br#"{"id":7,"result":{"eof":true,"chunk":""#, b"\"}}");
    let text = text.strip_prefix(head).unwrap();
    let text = text.strip_suffix(tail).unwrap();
    assert!(decode(text).unwrap() == *data, "{} bytes", data.len());
}

#[tokio::test]
async fn data_of_any_size_arrives_raw_in_both_directions() {
    for size in SIZES {
        let data = pattern(size);
        let [mut server, mut client] = ends();
        let down = exchange(&mut server, &mut client, &data, DataEncoding::Binary).await;
        let up = exchange(&mut client, &mut server, &data, DataEncoding::Binary).await;
        for frame in [down, up] {
            let (header, raw) = split_binary(&frame).unwrap().unwrap();
            assert_eq!(header, r#"{"id":7,"result":{"eof":true}}"#);
            assert!(raw == data, "{size} bytes");
        }
    }
}

#[tokio::test]
async fn large_message_is_not_encoded_before_it_is_written() {
    let [mut server, _client] = ends();
    let data = pattern(limits::OUTGOING_FRAME_BYTES * 2);
    server.writer.push(message(&data), DataEncoding::Text);
    assert_eq!(server.writer.buffered(), data.len());
}

/// Polls a reader with complete input; returns the number of messages before each yield.
fn messages_between_yields(frames: &[u8]) -> Vec<usize> {
    let input = std::io::Cursor::new(frames.to_vec());
    let stream = UpgradedStream::new((input, tokio::io::sink()), Bytes::new());
    let options = LinkOptions::of(LinkRole::Client);
    let link = stream.into_link(LinkRole::Client, "test".to_owned(), options);
    let (mut reader, waker) = (link.reader, std::task::Waker::noop());
    let mut cx = std::task::Context::from_waker(waker);
    let mut counts = vec![0];
    loop {
        match reader.poll_message(&mut cx) {
            std::task::Poll::Ready(Ok(Some(_))) => *counts.last_mut().unwrap() += 1,
            std::task::Poll::Ready(end) => {
                assert!(end.unwrap().is_none());
                return counts;
            }
            std::task::Poll::Pending => counts.push(0),
        }
    }
}

#[tokio::test]
async fn reader_yields_after_its_frame_budget() {
    // One-byte texts, which are delivered, and pings, which are not.
    let messages = [0x81, 1, b'x'].repeat(200);
    assert_eq!(messages_between_yields(&messages), [64, 64, 64, 8]);
    let pings = [&[0x89, 0].repeat(200)[..], &[0x81, 1, b'x']].concat();
    assert_eq!(messages_between_yields(&pings), [0, 0, 0, 1]);
    let fragments = [&[0x01, 0][..], &[0x00, 0].repeat(200), &[0x80, 0]].concat();
    assert_eq!(messages_between_yields(&fragments), [0, 0, 0, 1]);
}

#[tokio::test]
async fn reader_yields_after_its_byte_budget() {
    let length = 4_u64 << 20;
    let mut message = vec![0x82, 127];
    message.extend(length.to_be_bytes());
    message.resize(message.len() + (4 << 20), b'x');
    let yields = messages_between_yields(&message).len() - 1;
    assert!((3..=8).contains(&yields), "{yields} yields");
}

/// The first half of a message of `length` bytes, with a mask of zeroes.
fn half_sent(length: usize) -> Vec<u8> {
    let mut frame = vec![0x82, 0xff];
    frame.extend((length as u64).to_be_bytes());
    frame.extend([0; 4]);
    frame.resize(frame.len() + length / 2, b'x');
    frame
}

#[tokio::test(start_paused = true)]
async fn stalled_large_message_releases_memory_to_waiting_ones() {
    let budget = MessageBudget::new(MessageBudgetLimits {
        total_bytes: 4 << 20,
        base_timeout: std::time::Duration::from_secs(10),
        bytes_per_second: 1 << 20,
    });
    let open = || {
        let (near, far) = tokio::io::duplex(64 << 10);
        let stream = UpgradedStream::new(tokio::io::split(near), Bytes::new());
        let options = LinkOptions {
            budget: Some(budget.clone()),
            ..LinkOptions::of(LinkRole::Server)
        };
        let link = stream.into_link(LinkRole::Server, "t".to_owned(), options);
        (link, far)
    };
    let (mut first, mut first_peer) = open();
    let (mut second, mut second_peer) = open();
    let (mut small, mut small_peer) = open();
    let length = 3 << 20;
    let stalled_write = async {
        first_peer.write_all(&half_sent(length)).await.unwrap();
        std::future::pending::<()>().await;
    };
    // Nothing is read from this connection while the first one holds the budget.
    let waiting_write = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        second_peer.write_all(&half_sent(length)).await.unwrap();
        second_peer
            .write_all(&vec![b'x'; length / 2])
            .await
            .unwrap();
    };
    let began = tokio::time::Instant::now();
    let outcome = async {
        let (stalled, arrived) = tokio::join!(first.reader.next(), second.reader.next());
        assert!(
            matches!(stalled, Err(LinkReadError::Stalled)),
            "{stalled:?}"
        );
        assert_eq!(arrived.unwrap().unwrap().len(), length);
        assert!(began.elapsed() >= std::time::Duration::from_secs(13));
    };
    let unaffected = async {
        small_peer.write_all(b"\x82\x81\0\0\0\0x").await.unwrap();
        assert_eq!(small.reader.next().await.unwrap().unwrap(), "x");
        assert!(began.elapsed() < std::time::Duration::from_secs(1));
    };
    tokio::select! {
        () = stalled_write => {}
        _ = async { tokio::join!(waiting_write, outcome, unaffected) } => {}
    }
}
