//! Messages through a pair of links, whole and in frames.

use bytes::Bytes;
use exec_wire::{
    bytes::decode,
    limits,
    message::{RequestId, split_binary},
    outgoing::Outgoing,
};

use super::link;
use crate::link::{Encoding, Link, Role};

/// Two ends, with a pipe between them that is shorter than any message of interest.
fn ends() -> [Link; 2] {
    let (server, client) = tokio::io::duplex(50_000);
    let ends = [(server, Role::Server), (client, Role::Client)];
    ends.map(|(end, role)| {
        let (input, output) = tokio::io::split(end);
        link(input, output, &[], role, "test".to_owned())
    })
}

fn pattern(length: usize) -> Bytes {
    (0u32..)
        .map(|index| index.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .take(length)
        .collect()
}

fn message(data: &Bytes) -> Outgoing {
    let id = RequestId::Number(7);
    Outgoing::result_with_data(
        &id,
        &serde_json::json!({"eof": true}),
        "chunk",
        data.clone(),
    )
}

/// Sends a large message between two small ones.
async fn exchange(from: &mut Link, to: &mut Link, data: &Bytes, encoding: Encoding) -> Bytes {
    let small = || Outgoing::notification("small", &());
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
async fn data_of_any_size_arrives_as_text_both_ways() {
    for size in SIZES {
        let data = pattern(size);
        let [mut server, mut client] = ends();
        let down = exchange(&mut server, &mut client, &data, Encoding::Text).await;
        assert_text(&down, &data);
        let up = exchange(&mut client, &mut server, &data, Encoding::Text).await;
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
async fn data_of_any_size_arrives_raw_both_ways() {
    for size in SIZES {
        let data = pattern(size);
        let [mut server, mut client] = ends();
        let down = exchange(&mut server, &mut client, &data, Encoding::Binary).await;
        let up = exchange(&mut client, &mut server, &data, Encoding::Binary).await;
        for frame in [down, up] {
            let (header, raw) = split_binary(&frame).unwrap().unwrap();
            assert_eq!(header, r#"{"id":7,"result":{"eof":true}}"#);
            assert!(raw == data, "{size} bytes");
        }
    }
}

#[tokio::test]
async fn a_large_message_is_not_encoded_before_it_is_written() {
    let [mut server, _client] = ends();
    let data = pattern(limits::OUTGOING_FRAME_BYTES * 2);
    server.writer.push(message(&data), Encoding::Text);
    assert_eq!(server.writer.buffered(), data.len());
}
