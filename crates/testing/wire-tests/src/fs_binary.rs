//! File data as raw bytes after their header.

use std::fs;

use serde_json::{Value, json};

use crate::{
    binary::{frame, granted, split},
    client::{Client, Packet, encode, error_message},
    fs_fixture::FsFixture,
    over_every_socket,
    server::{Server, Transport},
};

over_every_socket!(
    files_are_binary_in_both_directions,
    blocks_are_binary_in_both_directions,
    inline_data_is_accepted_with_the_extension,
    errors_and_other_responses_stay_text,
    without_the_extension_everything_is_text,
    inline_and_binary_data_together_are_refused,
    only_methods_with_data_accept_binary,
    binary_blocks_have_1_byte_to_1_mib,
    large_file_arrives_in_one_message,
    binary_and_text_requests_keep_their_order,
);

/// Sends a request with binary data.
async fn send(client: &mut Client, id: i64, method: &str, params: Value, data: &[u8]) {
    let header = json!({"id": id, "method": method, "params": params});
    client.send_frame(frame(&header, data)).await;
}

/// Receives a binary response and returns its result and data.
async fn raw(client: &mut Client, id: i64) -> (Value, Vec<u8>) {
    match client.packet().await.expect("connection closed") {
        Packet::Binary(frame) => {
            let (mut header, data) = split(&frame);
            assert_eq!(header["id"], id, "{header}");
            (header["result"].take(), data.to_vec())
        }
        Packet::Text(text) => panic!("text {:?}", text.get(..200).unwrap_or(&text)),
    }
}

/// Creates a fixture whose client has the `binaryData` extension.
async fn fixture(transport: Transport) -> (FsFixture, Client) {
    let mut fixture = FsFixture::on(Server::start(transport, &[]).await).await;
    let client = granted(&mut fixture.server).await;
    (fixture, client)
}

async fn files_are_binary_in_both_directions(transport: Transport) {
    let (fixture, mut client) = fixture(transport).await;
    let contents: [&[u8]; 4] = [b"", b"raw\0\xff\n", b"{}", &[1; 300_000]];
    for content in contents {
        send(
            &mut client,
            1,
            "fs/writeFile",
            fixture.params("new", json!({})),
            content,
        )
        .await;
        assert_eq!(client.recv().await, json!({"id": 1, "result": {}}));
        assert_eq!(fs::read(fixture.path("new")).unwrap(), content);
        let read = client
            .request("fs/readFile", fixture.params("new", json!({})))
            .await;
        let (result, data) = raw(&mut client, read).await;
        assert_eq!(result, json!({}), "the data member is beside it");
        assert_eq!(data, content);
    }
}

async fn blocks_are_binary_in_both_directions(transport: Transport) {
    let (fixture, mut client) = fixture(transport).await;
    let open = fixture.params("new", json!({"handleId": "w", "mode": "replace"}));
    client.call("fs/open", open).await;
    let open = fixture.params("new", json!({"handleId": "r"}));
    client.call("fs/open", open).await;
    let block: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let params = json!({"handleId": "w", "offset": 3});
    send(&mut client, 1, "fs/writeBlock", params, &block).await;
    assert_eq!(client.recv().await, json!({"id": 1, "result": {}}));
    let params = json!({"handleId": "r", "offset": 3, "len": 1 << 20});
    let read = client.request("fs/readBlock", params).await;
    let (result, data) = raw(&mut client, read).await;
    assert_eq!(result, json!({"eof": false}));
    assert!(data == block);
    let params = json!({"handleId": "r", "offset": 3 << 20, "len": 7});
    let read = client.request("fs/readBlock", params).await;
    assert_eq!(
        raw(&mut client, read).await,
        (json!({"eof": true}), Vec::new())
    );
}

async fn inline_data_is_accepted_with_the_extension(transport: Transport) {
    let (fixture, mut client) = fixture(transport).await;
    let write = fixture.params("new", json!({"dataBase64": encode(b"text")}));
    assert_eq!(client.call("fs/writeFile", write).await, json!({}));
    assert_eq!(fixture.content("new"), "text");
    let broken = fixture.params("new", json!({"dataBase64": "!"}));
    client.expect_error(-32600, "fs/writeFile", broken).await;
    let extra = json!({"atomic": true, "createParents": true, "mode": 0o600});
    send(
        &mut client,
        1,
        "fs/writeFile",
        fixture.params("a/b", extra),
        b"raw",
    )
    .await;
    assert_eq!(client.recv().await, json!({"id": 1, "result": {}}));
    assert_eq!(fixture.content("a/b"), "raw");
}

async fn errors_and_other_responses_stay_text(transport: Transport) {
    let (fixture, mut client) = fixture(transport).await;
    let missing = fixture.params("none", json!({}));
    client.expect_error(-32004, "fs/readFile", missing).await;
    let dir = fixture.params("dir", json!({}));
    client.call("fs/readDirectory", dir.clone()).await;
    client.call("fs/getMetadata", dir.clone()).await;
    send(&mut client, 1, "fs/writeFile", dir, b"raw").await;
    error_message(-32603, &client.recv().await, "a directory");
    let block = json!({"handleId": "none", "offset": 0, "len": 1});
    client.expect_error(-32004, "fs/readBlock", block).await;
}

async fn without_the_extension_everything_is_text(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let params = fixture.params("file", json!({}));
    send(&mut fixture.client, 7, "fs/writeFile", params, b"raw").await;
    let answer = fixture.client.recv().await;
    assert_eq!(answer["id"], 7);
    error_message(-32600, &answer, "raw data");
    assert_eq!(fixture.read("file").await, b"hello");
    let open = json!({"handleId": "w", "mode": "replace"});
    fixture.call("fs/open", "new", open).await;
    let params = json!({"handleId": "w", "offset": 0});
    send(&mut fixture.client, 8, "fs/writeBlock", params, b"raw").await;
    error_message(-32600, &fixture.client.recv().await, "raw data");
    assert_eq!(fixture.content("new"), "");
}

async fn inline_and_binary_data_together_are_refused(transport: Transport) {
    let (fixture, mut client) = fixture(transport).await;
    let params = fixture.params("file", json!({"dataBase64": "eA=="}));
    send(&mut client, 1, "fs/writeFile", params, b"raw").await;
    let message = error_message(-32602, &client.recv().await, "twice");
    assert!(message.contains("dataBase64"), "{message}");
    assert_eq!(fixture.content("file"), "hello");
    let open = fixture.params("new", json!({"handleId": "w", "mode": "replace"}));
    client.call("fs/open", open).await;
    let params = json!({"handleId": "w", "offset": 0, "chunk": "eA=="});
    send(&mut client, 2, "fs/writeBlock", params, b"raw").await;
    let message = error_message(-32602, &client.recv().await, "twice");
    assert!(message.contains("chunk"), "{message}");
    assert_eq!(fixture.content("new"), "");
}

async fn only_methods_with_data_accept_binary(transport: Transport) {
    let (fixture, mut client) = fixture(transport).await;
    let path = fixture.params("file", json!({}));
    for (id, method) in [
        "fs/readFile",
        "fs/getMetadata",
        "fs/remove",
        "fs/createDirectory",
        "fs/canonicalize",
        "fs/readDirectory",
    ]
    .into_iter()
    .enumerate()
    {
        let id = i64::try_from(id).unwrap();
        send(&mut client, id, method, path.clone(), b"raw").await;
        let answer = client.recv().await;
        assert_eq!(answer["id"], id);
        error_message(-32602, &answer, method);
    }
    let block = json!({"handleId": "h", "offset": 0, "len": 1});
    send(&mut client, 9, "fs/readBlock", block, b"raw").await;
    error_message(-32602, &client.recv().await, "fs/readBlock");
    assert_eq!(fixture.content("file"), "hello");
}

async fn binary_blocks_have_1_byte_to_1_mib(transport: Transport) {
    let (fixture, mut client) = fixture(transport).await;
    let open = fixture.params("new", json!({"handleId": "w", "mode": "replace"}));
    client.call("fs/open", open).await;
    for length in [0, (1 << 20) + 1] {
        let params = json!({"handleId": "w", "offset": 0});
        send(&mut client, 1, "fs/writeBlock", params, &vec![1; length]).await;
        let message = error_message(-32600, &client.recv().await, "length");
        assert!(message.contains("1048576"), "{message}");
    }
    assert_eq!(fixture.content("new"), "");
}

async fn large_file_arrives_in_one_message(transport: Transport) {
    let (fixture, mut client) = fixture(transport).await;
    let data: Vec<u8> = (0..5_u32 << 20).flat_map(u32::to_le_bytes).collect();
    send(
        &mut client,
        1,
        "fs/writeFile",
        fixture.params("new", json!({})),
        &data,
    )
    .await;
    assert_eq!(client.recv().await, json!({"id": 1, "result": {}}));
    assert!(fs::read(fixture.path("new")).unwrap() == data);
    let read = client
        .request("fs/readFile", fixture.params("new", json!({})))
        .await;
    assert!(raw(&mut client, read).await.1 == data);
}

async fn binary_and_text_requests_keep_their_order(transport: Transport) {
    let (fixture, mut client) = fixture(transport).await;
    for round in 0..30 {
        let (raw_text, text) = (format!("raw {round}"), format!("text {round}"));
        let params = fixture.params("file", json!({}));
        send(
            &mut client,
            -5,
            "fs/writeFile",
            params.clone(),
            raw_text.as_bytes(),
        )
        .await;
        let first = client.request("fs/readFile", params.clone()).await;
        let write = fixture.params("file", json!({"dataBase64": encode(text.as_bytes())}));
        let write = client.request("fs/writeFile", write).await;
        let second = client.request("fs/readFile", params).await;
        assert_eq!(client.recv().await["id"], -5);
        assert_eq!(raw(&mut client, first).await.1, raw_text.as_bytes());
        assert_eq!(client.recv().await["id"], write);
        assert_eq!(raw(&mut client, second).await.1, text.as_bytes());
    }
}
