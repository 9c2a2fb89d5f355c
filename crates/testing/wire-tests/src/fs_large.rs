//! Large files and large messages.

use std::fs;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    client::{decode, encode},
    fs_fixture::FsFixture,
    http_listener::upgrade,
    over_every_transport, over_one_transport,
    server::{TIMEOUT, Transport},
};

over_every_transport!(forty_mib_are_read, thirty_mib_are_written);

over_one_transport!(
    large_response_is_split_into_frames,
    thirty_two_mib_in_one_text_frame_are_written,
    message_above_64_mib_closes_the_connection_and_writes_nothing,
    many_large_files_are_read_concurrently,
    client_that_does_not_read_uses_bounded_memory,
);

fn content(mib: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    block.repeat(mib)
}

async fn forty_mib_are_read(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let content = content(40);
    fs::write(fixture.path("large"), &content).unwrap();
    assert!(fixture.read("large").await == content);
}

async fn thirty_mib_are_written(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let content = content(30);
    fixture.write("large", &content).await;
    assert!(fs::read(fixture.path("large")).unwrap() == content);
}

async fn thirty_two_mib_in_one_text_frame_are_written(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let content = content(32);
    let params = fixture.params("large", json!({"dataBase64": encode(&content)}));
    let text = json!({"id": 1, "method": "fs/writeFile", "params": params}).to_string();
    assert!(text.len() > 32 << 20);
    fixture.client.send_frame(Message::text(text)).await;
    assert_eq!(fixture.client.recv().await, json!({"id": 1, "result": {}}));
    assert!(fs::read(fixture.path("large")).unwrap() == content);
}

async fn message_above_64_mib_closes_the_connection_and_writes_nothing(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let params = fixture.params("file", json!({"dataBase64": encode(&content(48))}));
    let text = json!({"id": 1, "method": "fs/writeFile", "params": params}).to_string();
    assert!(text.len() > 64 << 20);
    fixture.client.try_send_frame(Message::text(text)).await;
    assert_eq!(fixture.client.packet().await, None, "unexpected response");
    assert_eq!(fixture.content("file"), "hello");
    fixture.server.ready().await.expect_alive().await;
}

/// Reads one frame from the server and returns FIN, opcode and payload.
async fn frame(stream: &mut (impl AsyncReadExt + Unpin)) -> (bool, u8, Vec<u8>) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[1] & 0x80, 0, "a server does not mask");
    let length = match head[1] {
        126 => u64::from(stream.read_u16().await.unwrap()),
        127 => stream.read_u64().await.unwrap(),
        short => u64::from(short),
    };
    assert!(length <= 16 << 20, "a frame of {length} bytes");
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).await.unwrap();
    (head[0] & 0x80 != 0, head[0] & 0x0f, payload)
}

/// Builds a masked text frame with a zero mask.
fn text_frame(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81, 0x80 | 126];
    frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    frame
}

async fn large_response_is_split_into_frames(transport: Transport) {
    let fixture = FsFixture::new(transport).await;
    // The second exceeds the server's own receive limit.
    for mib in [20, 60] {
        let content = content(mib);
        fs::write(fixture.path("large"), &content).unwrap();
        let mut stream = fixture.server.stream().await;
        upgrade(&mut stream, "").await;
        let pad = "x".repeat(200);
        let read = fixture.params("large", json!({"pad": pad}));
        let messages = [
            json!({"id": 1, "method": "initialize", "params": {"clientName": pad}}),
            json!({"method": "initialized", "params": {"pad": pad}}),
            json!({"id": 2, "method": "fs/readFile", "params": read}),
        ];
        for message in &messages {
            let frame = text_frame(&message.to_string());
            stream.write_all(&frame).await.unwrap();
        }
        let receive = async {
            let (mut message, mut frames) = (Vec::new(), 0);
            loop {
                let (last, kind, payload) = frame(&mut stream).await;
                if kind > 2 {
                    continue;
                }
                frames += 1;
                message.extend(payload);
                if last {
                    let value: Value = serde_json::from_slice(&message).unwrap();
                    if value["id"] == 2 {
                        return (value, frames);
                    }
                    (message, frames) = (Vec::new(), 0);
                }
            }
        };
        let (answer, frames) = tokio::time::timeout(TIMEOUT, receive).await.unwrap();
        assert!(frames > 1, "one frame would be too large");
        assert!(decode(&answer["result"]["dataBase64"]) == content);
    }
}

async fn many_large_files_are_read_concurrently(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let content = content(6);
    fs::write(fixture.path("large"), &content).unwrap();
    let params = fixture.params("large", json!({}));
    let ids = fixture.client.pipeline(20, "fs/readFile", &params).await;
    for id in ids {
        let answer = fixture.client.answer(id).await;
        assert!(decode(&answer["result"]["dataBase64"]) == content);
    }
}

async fn client_that_does_not_read_uses_bounded_memory(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fs::write(fixture.path("large"), content(6)).unwrap();
    let mut lazy = fixture.server.ready().await;
    let params = fixture.params("large", json!({}));
    let ids = lazy.pipeline(200, "fs/readFile", &params).await;
    // Another client is served normally.
    for _ in 0..20 {
        assert_eq!(fixture.read("file").await, b"hello");
    }
    let resident = crate::server::proc_line(fixture.server.pid(), "status", "VmRSS");
    let kib: u64 = resident.trim_end_matches(" kB").trim().parse().unwrap();
    assert!(kib < 300 << 10, "{kib} KiB for 200 files of 6 MiB");
    // The responses arrive once the client reads them.
    let answer = lazy.answer(ids[0]).await;
    assert!(answer["result"]["dataBase64"].is_string());
}
