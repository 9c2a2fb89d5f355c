//! What is special about websockets: frames, their limits, and their control.

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
    http::upgrade,
    over_every_socket,
    server::{Server, Transport},
};

over_every_socket!(
    binary_json_is_taken_and_text_is_sent,
    fragments_make_one_message,
    a_message_of_64_mib_in_fragments_is_taken,
    a_message_above_64_mib_ends_the_connection,
    a_frame_of_64_mib_is_taken,
    a_frame_above_64_mib_ends_the_connection,
    a_header_that_promises_too_much_ends_the_connection,
    control_frames_between_fragments_are_answered,
    a_ping_is_answered_with_its_payload,
    a_close_ends_the_connection,
    frames_against_the_rules_end_the_connection,
    no_subprotocol_and_no_extension_is_negotiated,
    other_connections_live_on,
    large_messages_are_answered_as_small_ones,
);

/// A request whose text has exactly this many bytes.
fn padded(length: usize) -> Vec<u8> {
    let (head, tail) = (r#"{"id":1,"method":"environment/status","pad":""#, r#""}"#);
    let pad = "x".repeat(length - head.len() - tail.len());
    format!("{head}{pad}{tail}").into_bytes()
}

/// Cuts a text message into frames of at most this many bytes.
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

async fn binary_json_is_taken_and_text_is_sent(transport: Transport) {
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

async fn fragments_make_one_message(transport: Transport) {
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
    // Empty fragments are fragments, too.
    let whole = padded(100);
    let parts = [
        (&whole[..0], Data::Text),
        (&whole[..], Data::Continue),
        (&[], Data::Continue),
    ];
    for (index, (part, kind)) in parts.into_iter().enumerate() {
        let frame = Frame::message(part.to_vec(), OpCode::Data(kind), index == 2);
        client.send_frame(Message::Frame(frame)).await;
    }
    expect_status(&mut client).await;
}

async fn a_message_of_64_mib_in_fragments_is_taken(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for frame in fragments(&padded(64 << 20), 16 << 20) {
        client.send_frame(frame).await;
    }
    expect_status(&mut client).await;
    client.expect_alive().await;
}

async fn a_message_above_64_mib_ends_the_connection(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for frame in fragments(&padded((64 << 20) + 1), 16 << 20) {
        client.try_send_frame(frame).await;
    }
    assert_eq!(client.packet().await, None, "there is no answer");
    server.ready().await.expect_alive().await;
}

async fn a_frame_of_64_mib_is_taken(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .send_frame(fragments(&padded(64 << 20), 64 << 20).remove(0))
        .await;
    expect_status(&mut client).await;
}

async fn a_frame_above_64_mib_ends_the_connection(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let length = (64 << 20) + 1;
    client
        .try_send_frame(fragments(&padded(length), length).remove(0))
        .await;
    assert_eq!(client.packet().await, None, "there is no answer");
    server.ready().await.expect_alive().await;
}

/// Upgrades by hand, sends these bytes, and waits for the end.
async fn expect_hangup(server: &Server, bytes: &[u8]) {
    let mut stream = server.stream().await;
    let head = upgrade(&mut stream, "").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    stream.write_all(bytes).await.unwrap();
    let mut rest = Vec::new();
    let read = tokio::time::timeout(crate::server::PATIENCE, stream.read_to_end(&mut rest));
    // A reset is an end as good as any.
    drop(read.await.expect("the connection ends in time"));
    assert!(!rest.contains(&b'{'), "there is no answer: {rest:?}");
}

async fn a_header_that_promises_too_much_ends_the_connection(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    for length in [(64_u64 << 20) + 1, 1 << 40, 1 << 63, u64::MAX] {
        let mut head = vec![0x81, 0xff];
        head.extend(length.to_be_bytes());
        head.extend([0; 4]);
        expect_hangup(&server, &head).await;
    }
}

async fn frames_against_the_rules_end_the_connection(transport: Transport) {
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

async fn a_ping_is_answered_with_its_payload(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let mut stream = server.stream().await;
    upgrade(&mut stream, "").await;
    let payload = [b'p'; 125];
    let mut frame = vec![0x89, 0x80 | 125, 0, 0, 0, 0];
    frame.extend(payload);
    stream.write_all(&frame).await.unwrap();
    let mut pong = [0; 127];
    let read = stream.read_exact(&mut pong);
    tokio::time::timeout(crate::server::PATIENCE, read)
        .await
        .expect("a pong in time")
        .unwrap();
    assert_eq!(pong[..2], [0x8a, 125]);
    assert_eq!(pong[2..], payload);
}

async fn a_close_ends_the_connection(transport: Transport) {
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

async fn other_connections_live_on(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    join(
        expect_hangup(&server, b"\x81\x02{}"),
        expect_hangup(&server, b"\x83\x82\0\0\0\0{}"),
    )
    .await;
    client.expect_alive().await;
}

async fn large_messages_are_answered_as_small_ones(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    // Large ones are decoded on another thread.
    let mut answers = Vec::new();
    for size in [10, 300 << 10, 2 << 20] {
        let pad = "x".repeat(size);
        let mut came = Vec::new();
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
            came.push(answer);
            if is_last {
                break;
            }
        }
        answers.push(came);
    }
    assert_eq!(answers[0].len(), 5, "{:?}", answers[0]);
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}
