//! Websocket specifics: frames, their limits, and control frames.

use futures_util::future::join;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};

use crate::{
    client::Client,
    http_listener::upgrade,
    over_every_socket,
    server::{Server, Transport},
};

over_every_socket!(
    binary_json_frame_is_accepted_and_answered_as_text,
    fragments_are_joined_into_one_message,
    fragmented_message_of_64_mib_is_accepted,
    message_above_64_mib_closes_the_connection,
    frame_of_64_mib_is_accepted,
    frame_above_64_mib_closes_the_connection,
    header_with_a_huge_length_closes_the_connection,
    control_frames_between_fragments_are_answered,
    ping_is_answered_with_its_payload,
    close_frame_closes_the_connection,
    invalid_frames_close_the_connection,
    no_subprotocol_and_no_extension_is_negotiated,
    protocol_error_does_not_affect_other_connections,
    large_messages_are_answered_like_small_ones,
);

/// Builds a request of exactly this many bytes.
fn padded(length: usize) -> Vec<u8> {
    let (head, tail) = (r#"{"id":1,"method":"environment/status","pad":""#, r#""}"#);
    let pad = "x".repeat(length - head.len() - tail.len());
    format!("{head}{pad}{tail}").into_bytes()
}

/// Splits a text message into frames of at most this many bytes.
fn fragments(text: &[u8], size: usize) -> Vec<Message> {
    let count = text.chunks(size).count();
    let frames = text.chunks(size).enumerate().map(|(index, part)| {
        let kind = if index == 0 {
            Data::Text
        } else {
            Data::Continue
        };
        Message::Frame(Frame::message(
            part.to_vec(),
            OpCode::Data(kind),
            index + 1 == count,
        ))
    });
    frames.collect()
}

async fn expect_status(client: &mut Client) {
    assert_eq!(client.answer(1).await["result"], json!({"status": "ready"}));
}

async fn binary_json_frame_is_accepted_and_answered_as_text(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let text = br#" {"id":1,"method":"environment/status"} "#;
    client.send_frame(Message::binary(text.to_vec())).await;
    assert_eq!(
        client.text().await,
        r#"{"id":1,"result":{"status":"ready"}}"#
    );
    client
        .send_frame(Message::binary(b"\xff\xfe{}".to_vec()))
        .await;
    assert_eq!(client.recv().await["id"], -1);
    client.send_frame(Message::binary(Vec::new())).await;
    assert_eq!(client.recv().await["id"], -1);
    client.send_frame(Message::text("")).await;
    assert_eq!(client.recv().await["id"], -1);
    client.expect_alive().await;
}

async fn fragments_are_joined_into_one_message(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (length, size) in [
        (60, 1),
        (1000, 7),
        (70_000, 65_536),
        (3 << 20, 1 << 20),
        (17 << 20, 8 << 20),
    ] {
        for frame in fragments(&padded(length), size) {
            client.send_frame(frame).await;
        }
        expect_status(&mut client).await;
    }
    // Empty fragments are valid.
    let message = padded(100);
    let parts = [
        (&message[..0], Data::Text),
        (&message[..], Data::Continue),
        (&[], Data::Continue),
    ];
    for (index, (part, kind)) in parts.into_iter().enumerate() {
        let frame = Frame::message(part.to_vec(), OpCode::Data(kind), index == 2);
        client.send_frame(Message::Frame(frame)).await;
    }
    expect_status(&mut client).await;
}

async fn fragmented_message_of_64_mib_is_accepted(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for frame in fragments(&padded(64 << 20), 16 << 20) {
        client.send_frame(frame).await;
    }
    expect_status(&mut client).await;
    client.expect_alive().await;
}

async fn message_above_64_mib_closes_the_connection(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for frame in fragments(&padded((64 << 20) + 1), 16 << 20) {
        client.try_send_frame(frame).await;
    }
    assert_eq!(client.packet().await, None, "unexpected response");
    server.ready().await.expect_alive().await;
}

async fn frame_of_64_mib_is_accepted(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .send_frame(fragments(&padded(64 << 20), 64 << 20).remove(0))
        .await;
    expect_status(&mut client).await;
}

async fn frame_above_64_mib_closes_the_connection(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let length = (64 << 20) + 1;
    client
        .try_send_frame(fragments(&padded(length), length).remove(0))
        .await;
    assert_eq!(client.packet().await, None, "unexpected response");
    server.ready().await.expect_alive().await;
}

/// Performs the upgrade by hand, sends these bytes, and waits for the connection to close.
async fn expect_hangup(server: &Server, bytes: &[u8]) {
    let mut stream = server.stream().await;
    let head = upgrade(&mut stream, "").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    stream.write_all(bytes).await.unwrap();
    let mut rest = Vec::new();
    let read = tokio::time::timeout(crate::server::TIMEOUT, stream.read_to_end(&mut rest));
    // A reset counts as a close.
    drop(read.await.expect("connection did not close in time"));
    assert!(!rest.contains(&b'{'), "unexpected response: {rest:?}");
}

async fn header_with_a_huge_length_closes_the_connection(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    for length in [(64_u64 << 20) + 1, 1 << 40, 1 << 63, u64::MAX] {
        let mut head = vec![0x81, 0xff];
        head.extend(length.to_be_bytes());
        head.extend([0; 4]);
        expect_hangup(&server, &head).await;
    }
}

async fn invalid_frames_close_the_connection(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let rules: [(&str, &[u8]); 7] = [
        ("a client must mask", b"\x81\x02{}"),
        ("reserved bits", b"\xc1\x82\0\0\0\0{}"),
        ("unknown opcode", b"\x83\x82\0\0\0\0{}"),
        ("unknown control opcode", b"\x8b\x80\0\0\0\0"),
        ("fragmented ping", b"\x09\x80\0\0\0\0"),
        ("a fragment of nothing", b"\x80\x82\0\0\0\0{}"),
        (
            "a message inside another",
            b"\x01\x81\0\0\0\0{\x81\x82\0\0\0\0{}",
        ),
    ];
    for (rule, bytes) in rules {
        println!("{rule}");
        expect_hangup(&server, bytes).await;
    }
}

async fn control_frames_between_fragments_are_answered(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for frame in fragments(&padded(5000), 1000) {
        client.send_frame(frame).await;
        client
            .send_frame(Message::Ping(b"in between".to_vec().into()))
            .await;
        client.send_frame(Message::Pong(Vec::new().into())).await;
    }
    expect_status(&mut client).await;
}

async fn ping_is_answered_with_its_payload(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let mut stream = server.stream().await;
    upgrade(&mut stream, "").await;
    let payload = [b'p'; 125];
    let mut frame = vec![0x89, 0x80 | 125, 0, 0, 0, 0];
    frame.extend(payload);
    stream.write_all(&frame).await.unwrap();
    let mut pong = [0; 127];
    let read = stream.read_exact(&mut pong);
    tokio::time::timeout(crate::server::TIMEOUT, read)
        .await
        .expect("no pong in time")
        .unwrap();
    assert_eq!(pong[..2], [0x8a, 125]);
    assert_eq!(pong[2..], payload);
}

async fn close_frame_closes_the_connection(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.send_frame(Message::Close(None)).await;
    client.expect_closed().await;
}

async fn no_subprotocol_and_no_extension_is_negotiated(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let offers = "Sec-WebSocket-Protocol: chat, v2\r\n\
        Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let head = upgrade(&mut server.stream().await, offers)
        .await
        .to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(!head.contains("sec-websocket-protocol"), "{head}");
    assert!(!head.contains("sec-websocket-extensions"), "{head}");
}

async fn protocol_error_does_not_affect_other_connections(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    join(
        expect_hangup(&server, b"\x81\x02{}"),
        expect_hangup(&server, b"\x83\x82\0\0\0\0{}"),
    )
    .await;
    client.expect_alive().await;
}

async fn large_messages_are_answered_like_small_ones(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    // Large messages are decoded on another thread.
    let mut answers = Vec::new();
    for size in [10, 300 << 10, 2 << 20] {
        let pad = "x".repeat(size);
        let mut received = Vec::new();
        for text in [
            format!(r#"{{"id":7,"method":"nope","params":"{pad}"}}"#),
            format!(
                r#"{{"id":8,"method":"process/read","params":{{"processId":7,"pad":"{pad}"}}}}"#
            ),
            format!(r#"{{"id":9,"method":"initialize","params":{{"clientName":"{pad}"}}}}"#),
            format!(r#"{{"method":"nope","params":"{pad}"}}"#),
            format!(r#"{{"method":"initialized","params":"{pad}"}}"#),
            format!(r#"{{"id":1,"result":"{pad}"}}"#),
            format!(r#"{{"id":1,"error":{{"code":1,"message":"{pad}"}}}}"#),
            format!(r#"{{"id":10,"method":"environment/status","pad":"{pad}"}}"#),
        ] {
            client.send(&text).await;
        }
        loop {
            let answer = client.recv().await;
            let is_last = answer["id"] == 10;
            received.push(answer);
            if is_last {
                break;
            }
        }
        answers.push(received);
    }
    assert_eq!(answers[0].len(), 5, "{:?}", answers[0]);
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}
