//! Files as raw bytes beside their header.

use std::fs;

use serde_json::{Value, json};

use crate::{
    binary::{frame, granted, split},
    client::{Client, Packet, encode, error_message},
    over_every_socket,
    scene::Scene,
    server::{Server, Transport},
};

over_every_socket!(
    whole_files_travel_raw_both_ways,
    blocks_travel_raw_both_ways,
    text_is_taken_beside_raw_data,
    errors_and_other_answers_stay_text,
    without_the_grant_everything_is_text,
    data_inside_and_beside_is_refused,
    only_methods_with_data_take_it,
    raw_blocks_have_1_byte_to_1_mib,
    a_large_file_arrives_in_one_message,
    order_is_kept_among_raw_and_text,
);

/// Sends a request with raw data.
async fn send(client: &mut Client, id: i64, method: &str, params: Value, data: &[u8]) {
    let header = json!({"id": id, "method": method, "params": params});
    client.send_frame(frame(&header, data)).await;
}

/// Receives a raw answer: its result and its data.
async fn raw(client: &mut Client, id: i64) -> (Value, Vec<u8>) {
    match client.packet().await.expect("the connection is open") {
        Packet::Binary(frame) => {
            let (mut header, data) = split(&frame);
            assert_eq!(header["id"], id, "{header}");
            (header["result"].take(), data.to_vec())
        }
        Packet::Text(text) => panic!("text {:?}", text.get(..200).unwrap_or(&text)),
    }
}

/// Sets a scene whose client may use binary data.
async fn scene(transport: Transport) -> (Scene, Client) {
    let mut scene = Scene::on(Server::start(transport, &[]).await).await;
    let client = granted(&mut scene.server).await;
    (scene, client)
}

async fn whole_files_travel_raw_both_ways(transport: Transport) {
    let (scene, mut client) = scene(transport).await;
    let contents: [&[u8]; 4] = [b"", b"raw\0\xff\n", b"{}", &[1; 300_000]];
    for content in contents {
        send(
            &mut client,
            1,
            "fs/writeFile",
            scene.params("new", json!({})),
            content,
        )
        .await;
        assert_eq!(client.recv().await, json!({"id": 1, "result": {}}));
        assert_eq!(fs::read(scene.path("new")).unwrap(), content);
        let read = client
            .request("fs/readFile", scene.params("new", json!({})))
            .await;
        let (result, data) = raw(&mut client, read).await;
        assert_eq!(result, json!({}), "the data member is beside it");
        assert_eq!(data, content);
    }
}

async fn blocks_travel_raw_both_ways(transport: Transport) {
    let (scene, mut client) = scene(transport).await;
    let open = scene.params("new", json!({"handleId": "w", "mode": "replace"}));
    client.call("fs/open", open).await;
    let open = scene.params("new", json!({"handleId": "r"}));
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

async fn text_is_taken_beside_raw_data(transport: Transport) {
    let (scene, mut client) = scene(transport).await;
    let write = scene.params("new", json!({"dataBase64": encode(b"text")}));
    assert_eq!(client.call("fs/writeFile", write).await, json!({}));
    assert_eq!(scene.content("new"), "text");
    let broken = scene.params("new", json!({"dataBase64": "!"}));
    client.expect_error(-32600, "fs/writeFile", broken).await;
    let more = json!({"atomic": true, "createParents": true, "mode": 0o600});
    send(
        &mut client,
        1,
        "fs/writeFile",
        scene.params("a/b", more),
        b"raw",
    )
    .await;
    assert_eq!(client.recv().await, json!({"id": 1, "result": {}}));
    assert_eq!(scene.content("a/b"), "raw");
}

async fn errors_and_other_answers_stay_text(transport: Transport) {
    let (scene, mut client) = scene(transport).await;
    let missing = scene.params("none", json!({}));
    client.expect_error(-32004, "fs/readFile", missing).await;
    let dir = scene.params("dir", json!({}));
    client.call("fs/readDirectory", dir.clone()).await;
    client.call("fs/getMetadata", dir.clone()).await;
    send(&mut client, 1, "fs/writeFile", dir, b"raw").await;
    error_message(-32603, &client.recv().await, "a directory");
    let block = json!({"handleId": "none", "offset": 0, "len": 1});
    client.expect_error(-32004, "fs/readBlock", block).await;
}

async fn without_the_grant_everything_is_text(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let params = scene.params("file", json!({}));
    send(&mut scene.client, 7, "fs/writeFile", params, b"raw").await;
    let answer = scene.client.recv().await;
    assert_eq!(answer["id"], 7);
    error_message(-32600, &answer, "raw data");
    assert_eq!(scene.read("file").await, b"hello");
    let open = json!({"handleId": "w", "mode": "replace"});
    scene.call("fs/open", "new", open).await;
    let params = json!({"handleId": "w", "offset": 0});
    send(&mut scene.client, 8, "fs/writeBlock", params, b"raw").await;
    error_message(-32600, &scene.client.recv().await, "raw data");
    assert_eq!(scene.content("new"), "");
}

async fn data_inside_and_beside_is_refused(transport: Transport) {
    let (scene, mut client) = scene(transport).await;
    let params = scene.params("file", json!({"dataBase64": "eA=="}));
    send(&mut client, 1, "fs/writeFile", params, b"raw").await;
    let message = error_message(-32602, &client.recv().await, "twice");
    assert!(message.contains("dataBase64"), "{message}");
    assert_eq!(scene.content("file"), "hello");
    let open = scene.params("new", json!({"handleId": "w", "mode": "replace"}));
    client.call("fs/open", open).await;
    let params = json!({"handleId": "w", "offset": 0, "chunk": "eA=="});
    send(&mut client, 2, "fs/writeBlock", params, b"raw").await;
    let message = error_message(-32602, &client.recv().await, "twice");
    assert!(message.contains("chunk"), "{message}");
    assert_eq!(scene.content("new"), "");
}

async fn only_methods_with_data_take_it(transport: Transport) {
    let (scene, mut client) = scene(transport).await;
    let path = scene.params("file", json!({}));
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
    assert_eq!(scene.content("file"), "hello");
}

async fn raw_blocks_have_1_byte_to_1_mib(transport: Transport) {
    let (scene, mut client) = scene(transport).await;
    let open = scene.params("new", json!({"handleId": "w", "mode": "replace"}));
    client.call("fs/open", open).await;
    for length in [0, (1 << 20) + 1] {
        let params = json!({"handleId": "w", "offset": 0});
        send(&mut client, 1, "fs/writeBlock", params, &vec![1; length]).await;
        let message = error_message(-32600, &client.recv().await, "length");
        assert!(message.contains("1048576"), "{message}");
    }
    assert_eq!(scene.content("new"), "");
}

async fn a_large_file_arrives_in_one_message(transport: Transport) {
    let (scene, mut client) = scene(transport).await;
    let data: Vec<u8> = (0..5_u32 << 20).flat_map(u32::to_le_bytes).collect();
    send(
        &mut client,
        1,
        "fs/writeFile",
        scene.params("new", json!({})),
        &data,
    )
    .await;
    assert_eq!(client.recv().await, json!({"id": 1, "result": {}}));
    assert!(fs::read(scene.path("new")).unwrap() == data);
    let read = client
        .request("fs/readFile", scene.params("new", json!({})))
        .await;
    assert!(raw(&mut client, read).await.1 == data);
}

async fn order_is_kept_among_raw_and_text(transport: Transport) {
    let (scene, mut client) = scene(transport).await;
    for round in 0..30 {
        let (raw_text, text) = (format!("raw {round}"), format!("text {round}"));
        let params = scene.params("file", json!({}));
        send(
            &mut client,
            -5,
            "fs/writeFile",
            params.clone(),
            raw_text.as_bytes(),
        )
        .await;
        let first = client.request("fs/readFile", params.clone()).await;
        let write = scene.params("file", json!({"dataBase64": encode(text.as_bytes())}));
        let write = client.request("fs/writeFile", write).await;
        let second = client.request("fs/readFile", params).await;
        assert_eq!(client.recv().await["id"], -5);
        assert_eq!(raw(&mut client, first).await.1, raw_text.as_bytes());
        assert_eq!(client.recv().await["id"], write);
        assert_eq!(raw(&mut client, second).await.1, text.as_bytes());
    }
}
