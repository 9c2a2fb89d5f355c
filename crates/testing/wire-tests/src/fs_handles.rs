//! Open files: their names, how many there may be, and whose they are.

use std::fs;

use serde_json::{Value, json};

use crate::{
    client::{Client, decode_text, encode},
    over_every_transport, over_one_transport,
    scene::Scene,
    server::{Transport, descriptors, until},
    sessions::resume,
};

over_every_transport!(
    a_file_is_opened_read_and_closed,
    a_file_is_opened_written_and_closed,
);

over_one_transport!(
    handles_belong_to_their_connection,
    handles_end_with_their_connection,
    each_kind_of_file_is_opened_in_its_way,
    what_is_no_file_is_refused_without_waiting,
    names_of_handles_have_at_most_32_bytes,
    a_name_is_used_once,
    a_used_name_is_refused_before_the_file_is_emptied,
    a_connection_has_at_most_128_handles,
    a_failed_open_takes_no_place,
    modes_are_read_and_replace,
    an_open_file_outlives_its_name,
    unknown_handles_are_not_found,
    closing_frees_the_descriptor,
);

/// Opens a file.
pub(crate) async fn open(scene: &mut Scene, handle: &str, name: &str, mode: &str) {
    let more = json!({"handleId": handle, "mode": mode});
    let result = scene.call("fs/open", name, more).await;
    assert_eq!(result, json!({"handleId": handle}));
}

/// Reads from the start of an open file.
pub(crate) async fn first(client: &mut Client, handle: &str) -> String {
    let params = json!({"handleId": handle, "offset": 0, "len": 100});
    decode_text(&client.call("fs/readBlock", params).await["chunk"])
}

async fn close(scene: &mut Scene, handle: &str) {
    let params = json!({"handleId": handle});
    assert_eq!(scene.client.call("fs/close", params).await, json!({}));
}

async fn a_file_is_opened_read_and_closed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let result = scene
        .call("fs/open", "file", json!({"handleId": "h1"}))
        .await;
    assert_eq!(result, json!({"handleId": "h1"}));
    let params = json!({"handleId": "h1", "offset": 0, "len": 1_048_576});
    assert_eq!(
        scene.client.call("fs/readBlock", params.clone()).await,
        json!({"chunk": "aGVsbG8=", "eof": true})
    );
    close(&mut scene, "h1").await;
    let message = scene
        .client
        .expect_error(-32004, "fs/readBlock", params)
        .await;
    assert!(message.contains("h1"), "{message}");
}

async fn a_file_is_opened_written_and_closed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for name in ["new", "file"] {
        open(&mut scene, "h", name, "replace").await;
        assert_eq!(scene.content(name), "", "it is created or emptied");
        let params = json!({"handleId": "h", "offset": 0, "chunk": encode(b"data")});
        assert_eq!(scene.client.call("fs/writeBlock", params).await, json!({}));
        assert_eq!(scene.content(name), "data");
        close(&mut scene, "h").await;
    }
}

async fn each_kind_of_file_is_opened_in_its_way(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for (name, read, replace) in [
        ("none", -32004, 0),
        ("none/x", -32004, -32004),
        ("to-none", -32004, 0),
        ("file", 0, 0),
        ("to-file", 0, 0),
        ("dir", -32600, -32603),
        ("to-dir", -32600, -32603),
        ("file/x", -32603, -32603),
        ("to-itself", -32603, -32603),
        ("file:///dev/null", -32600, -32600),
    ] {
        for (mode, code) in [("read", read), ("replace", replace)] {
            scene.reset();
            let params = scene.params(name, json!({"handleId": "h", "mode": mode}));
            let id = scene.client.request("fs/open", params).await;
            let answer = scene.client.answer(id).await;
            let found = answer["error"]["code"].as_i64().unwrap_or(0);
            assert_eq!(found, code, "{mode} {name}: {answer}");
            close(&mut scene, "h").await;
        }
    }
}

async fn what_is_no_file_is_refused_without_waiting(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let open = |mode: &str| json!({"handleId": "h", "mode": mode});
    scene.refused(-32600, "fs/open", "fifo", open("read")).await;
    scene
        .refused(-32603, "fs/open", "socket", open("read"))
        .await;
    for name in ["fifo", "socket"] {
        scene
            .refused(-32603, "fs/open", name, open("replace"))
            .await;
        for follow in [true, false] {
            let write = json!({"dataBase64": "eA==", "followSymlinks": follow});
            scene.refused(-32603, "fs/writeFile", name, write).await;
        }
        let copy = json!({
            "sourcePath": scene.uri("file"), "destinationPath": scene.uri(name),
            "recursive": false,
        });
        scene.client.expect_error(-32603, "fs/copy", copy).await;
    }
    // Somebody reads the pipe, so that it could be opened.
    let _reader = fs::File::options()
        .read(true)
        .write(true)
        .open(scene.path("fifo"))
        .unwrap();
    scene
        .refused(-32600, "fs/open", "fifo", open("replace"))
        .await;
    let write = json!({"dataBase64": "eA=="});
    scene.refused(-32600, "fs/writeFile", "fifo", write).await;
}

async fn names_of_handles_have_at_most_32_bytes(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for handle in [
        "",
        " ",
        "x".repeat(32).as_str(),
        "\u{e9}".repeat(16).as_str(),
        "\0\n\"`",
    ] {
        open(&mut scene, handle, "file", "read").await;
        assert_eq!(first(&mut scene.client, handle).await, "hello");
        close(&mut scene, handle).await;
    }
    for handle in ["x".repeat(33), "\u{e9}".repeat(17), "x".repeat(100_000)] {
        for name in ["file", "none"] {
            let more = json!({"handleId": handle, "mode": "replace"});
            let message = scene.refused(-32600, "fs/open", name, more).await;
            assert!(message.contains("32"), "{message}");
        }
        let read = json!({"handleId": handle, "offset": 0, "len": 1});
        let write = json!({"handleId": handle, "offset": 0, "chunk": "eA=="});
        let close = json!({"handleId": handle});
        for (method, params) in [
            ("fs/readBlock", read),
            ("fs/writeBlock", write),
            ("fs/close", close),
        ] {
            scene.client.expect_error(-32600, method, params).await;
        }
    }
    assert_eq!(scene.content("file"), "hello");
    assert!(!scene.path("none").exists());
}

async fn a_name_is_used_once(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "file", "read").await;
    for name in ["file", "dir/inner", "none", "dir"] {
        let message = scene
            .refused(-32600, "fs/open", name, json!({"handleId": "h"}))
            .await;
        assert!(message.contains("already"), "{message}");
    }
    assert_eq!(first(&mut scene.client, "h").await, "hello");
    close(&mut scene, "h").await;
    open(&mut scene, "h", "dir/inner", "read").await;
    assert_eq!(first(&mut scene.client, "h").await, "x");
}

async fn a_used_name_is_refused_before_the_file_is_emptied(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "dir/inner", "read").await;
    let replace = json!({"handleId": "h", "mode": "replace"});
    scene
        .refused(-32600, "fs/open", "file", replace.clone())
        .await;
    scene.refused(-32600, "fs/open", "new", replace).await;
    assert_eq!(scene.content("file"), "hello");
    assert!(!scene.path("new").exists());
}

async fn a_connection_has_at_most_128_handles(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for number in 0..128 {
        open(&mut scene, &number.to_string(), "file", "read").await;
    }
    let more = json!({"handleId": "128", "mode": "replace"});
    for name in ["dir/inner", "none"] {
        let message = scene.refused(-32600, "fs/open", name, more.clone()).await;
        assert!(message.contains("128"), "{message}");
    }
    assert_eq!(scene.content("dir/inner"), "x");
    assert!(!scene.path("none").exists());
    let message = scene
        .refused(-32600, "fs/open", "file", json!({"handleId": "5"}))
        .await;
    assert!(message.contains("already"), "{message}");
    close(&mut scene, "7").await;
    open(&mut scene, "128", "file", "read").await;
    for number in (0..=128).filter(|number| *number != 7) {
        assert_eq!(first(&mut scene.client, &number.to_string()).await, "hello");
    }
    // Others have their own.
    let mut other = scene.server.ready().await;
    let params = scene.params("file", json!({"handleId": "5"}));
    other.call("fs/open", params).await;
}

async fn a_failed_open_takes_no_place(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for number in 0..200 {
        let handle = json!({"handleId": number.to_string()});
        scene.refused(-32004, "fs/open", "none", handle).await;
    }
    let handle = json!({"handleId": "0"});
    scene.refused(-32600, "fs/open", "dir", handle).await;
    open(&mut scene, "0", "file", "read").await;
}

async fn modes_are_read_and_replace(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let bad = [
        json!(null),
        json!("append"),
        json!("Read"),
        json!(""),
        json!(1),
        json!([]),
    ];
    for mode in bad {
        let more = json!({"handleId": "h", "mode": mode});
        let message = scene.refused(-32602, "fs/open", "file", more).await;
        assert!(message.contains("mode"), "{message}");
    }
    for handle in [json!(null), json!(1), json!(["h"])] {
        let more = json!({"handleId": handle});
        let message = scene.refused(-32602, "fs/open", "file", more).await;
        assert!(message.contains("handleId"), "{message}");
    }
    assert_eq!(scene.content("file"), "hello");
}

async fn an_open_file_outlives_its_name(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "r", "file", "read").await;
    open(&mut scene, "w", "new", "replace").await;
    scene.done("fs/remove", "file", json!({})).await;
    fs::rename(scene.path("new"), scene.path("elsewhere")).unwrap();
    assert_eq!(first(&mut scene.client, "r").await, "hello");
    let params = json!({"handleId": "w", "offset": 0, "chunk": encode(b"data")});
    scene.client.call("fs/writeBlock", params).await;
    assert_eq!(scene.content("elsewhere"), "data");
}

async fn unknown_handles_are_not_found(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let read = json!({"handleId": "nope", "offset": 0, "len": 1});
    let write = json!({"handleId": "nope", "offset": 0, "chunk": "eA=="});
    for (method, params) in [("fs/readBlock", read), ("fs/writeBlock", write)] {
        let message = scene.client.expect_error(-32004, method, params).await;
        assert!(message.contains("nope"), "{message}");
    }
    close(&mut scene, "nope").await;
}

async fn closing_frees_the_descriptor(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    // What the server opens once for itself is open after this.
    open(&mut scene, "h", "file", "read").await;
    close(&mut scene, "h").await;
    let before = descriptors(scene.server.pid());
    for number in 0..100 {
        open(&mut scene, &number.to_string(), "file", "read").await;
    }
    assert!(descriptors(scene.server.pid()) >= before + 100);
    for number in 0..100 {
        close(&mut scene, &number.to_string()).await;
    }
    let pid = scene.server.pid();
    until("descriptors are closed", || descriptors(pid) <= before).await;
}

async fn expect_unknown(client: &mut Client, handle: &str) {
    let params = json!({"handleId": handle, "offset": 0, "len": 1});
    client.expect_error(-32004, "fs/readBlock", params).await;
}

async fn handles_belong_to_their_connection(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "file", "read").await;
    let mut other = scene.server.ready().await;
    expect_unknown(&mut other, "h").await;
    let params: Value = scene.params("dir/inner", json!({"handleId": "h"}));
    other.call("fs/open", params).await;
    assert_eq!(first(&mut other, "h").await, "x");
    assert_eq!(first(&mut scene.client, "h").await, "hello");
    other.call("fs/close", json!({"handleId": "h"})).await;
    assert_eq!(first(&mut scene.client, "h").await, "hello");
}

async fn handles_end_with_their_connection(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let mut client = scene.server.connect().await;
    let session = client.handshake().await;
    let before = descriptors(scene.server.pid());
    for number in 0..50 {
        let params = scene.params("file", json!({"handleId": number.to_string()}));
        client.call("fs/open", params).await;
    }
    drop(client);
    let pid = scene.server.pid();
    until("files are closed", || descriptors(pid) < before).await;
    // The session lives on, without them.
    let mut client = resume(&mut scene.server, &session).await;
    client.send(r#"{"method":"initialized"}"#).await;
    expect_unknown(&mut client, "0").await;
    let params = scene.params("file", json!({"handleId": "0"}));
    client.call("fs/open", params).await;
    assert_eq!(first(&mut client, "0").await, "hello");
}
