//! File handles: ids, limits and ownership.

use std::fs;

use serde_json::{Value, json};

use crate::{
    client::{Client, decode_text, encode},
    fs_fixture::FsFixture,
    over_every_transport, over_one_transport,
    server::{Transport, descriptors, until},
    sessions::resume,
};

over_every_transport!(
    file_is_opened_read_and_closed,
    file_is_opened_written_and_closed,
);

over_one_transport!(
    handles_belong_to_their_connection,
    handles_close_with_their_connection,
    open_outcome_of_each_file_type,
    open_of_a_special_file_is_refused_without_blocking,
    handle_ids_have_at_most_32_bytes,
    handle_id_in_use_is_refused,
    handle_id_in_use_is_refused_before_truncation,
    connection_has_at_most_128_handles,
    failed_open_does_not_count_against_the_limit,
    modes_are_read_and_replace,
    open_handle_outlives_its_path,
    unknown_handles_are_not_found,
    closing_frees_the_descriptor,
);

/// Opens a file.
pub(crate) async fn open(fixture: &mut FsFixture, handle: &str, name: &str, mode: &str) {
    let extra = json!({"handleId": handle, "mode": mode});
    let result = fixture.call("fs/open", name, extra).await;
    assert_eq!(result, json!({"handleId": handle}));
}

/// Reads from the start of an open file.
pub(crate) async fn first(client: &mut Client, handle: &str) -> String {
    let params = json!({"handleId": handle, "offset": 0, "len": 100});
    decode_text(&client.call("fs/readBlock", params).await["chunk"])
}

async fn close(fixture: &mut FsFixture, handle: &str) {
    let params = json!({"handleId": handle});
    assert_eq!(fixture.client.call("fs/close", params).await, json!({}));
}

async fn file_is_opened_read_and_closed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let result = fixture
        .call("fs/open", "file", json!({"handleId": "h1"}))
        .await;
    assert_eq!(result, json!({"handleId": "h1"}));
    let params = json!({"handleId": "h1", "offset": 0, "len": 1_048_576});
    assert_eq!(
        fixture.client.call("fs/readBlock", params.clone()).await,
        json!({"chunk": "aGVsbG8=", "eof": true})
    );
    close(&mut fixture, "h1").await;
    let message = fixture
        .client
        .expect_error(-32004, "fs/readBlock", params)
        .await;
    assert!(message.contains("h1"), "{message}");
}

async fn file_is_opened_written_and_closed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for name in ["new", "file"] {
        open(&mut fixture, "h", name, "replace").await;
        assert_eq!(fixture.content(name), "", "it is created or emptied");
        let params = json!({"handleId": "h", "offset": 0, "chunk": encode(b"data")});
        assert_eq!(
            fixture.client.call("fs/writeBlock", params).await,
            json!({})
        );
        assert_eq!(fixture.content(name), "data");
        close(&mut fixture, "h").await;
    }
}

async fn open_outcome_of_each_file_type(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
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
            fixture.reset();
            let params = fixture.params(name, json!({"handleId": "h", "mode": mode}));
            let id = fixture.client.request("fs/open", params).await;
            let answer = fixture.client.answer(id).await;
            let found = answer["error"]["code"].as_i64().unwrap_or(0);
            assert_eq!(found, code, "{mode} {name}: {answer}");
            close(&mut fixture, "h").await;
        }
    }
}

async fn open_of_a_special_file_is_refused_without_blocking(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let open = |mode: &str| json!({"handleId": "h", "mode": mode});
    fixture
        .refused(-32600, "fs/open", "fifo", open("read"))
        .await;
    fixture
        .refused(-32603, "fs/open", "socket", open("read"))
        .await;
    for name in ["fifo", "socket"] {
        fixture
            .refused(-32603, "fs/open", name, open("replace"))
            .await;
        for follow in [true, false] {
            let write = json!({"dataBase64": "eA==", "followSymlinks": follow});
            fixture.refused(-32603, "fs/writeFile", name, write).await;
        }
        let copy = json!({
            "sourcePath": fixture.uri("file"), "destinationPath": fixture.uri(name),
            "recursive": false,
        });
        fixture.client.expect_error(-32603, "fs/copy", copy).await;
    }
    // A reader exists, so that the FIFO could be opened.
    let _reader = fs::File::options()
        .read(true)
        .write(true)
        .open(fixture.path("fifo"))
        .unwrap();
    fixture
        .refused(-32600, "fs/open", "fifo", open("replace"))
        .await;
    let write = json!({"dataBase64": "eA=="});
    fixture.refused(-32600, "fs/writeFile", "fifo", write).await;
}

async fn handle_ids_have_at_most_32_bytes(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for handle in [
        "",
        " ",
        "x".repeat(32).as_str(),
        "\u{e9}".repeat(16).as_str(),
        "\0\n\"`",
    ] {
        open(&mut fixture, handle, "file", "read").await;
        assert_eq!(first(&mut fixture.client, handle).await, "hello");
        close(&mut fixture, handle).await;
    }
    for handle in ["x".repeat(33), "\u{e9}".repeat(17), "x".repeat(100_000)] {
        for name in ["file", "none"] {
            let extra = json!({"handleId": handle, "mode": "replace"});
            let message = fixture.refused(-32600, "fs/open", name, extra).await;
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
            fixture.client.expect_error(-32600, method, params).await;
        }
    }
    assert_eq!(fixture.content("file"), "hello");
    assert!(!fixture.path("none").exists());
}

async fn handle_id_in_use_is_refused(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "file", "read").await;
    for name in ["file", "dir/inner", "none", "dir"] {
        let message = fixture
            .refused(-32600, "fs/open", name, json!({"handleId": "h"}))
            .await;
        assert!(message.contains("already"), "{message}");
    }
    assert_eq!(first(&mut fixture.client, "h").await, "hello");
    close(&mut fixture, "h").await;
    open(&mut fixture, "h", "dir/inner", "read").await;
    assert_eq!(first(&mut fixture.client, "h").await, "x");
}

async fn handle_id_in_use_is_refused_before_truncation(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "dir/inner", "read").await;
    let replace = json!({"handleId": "h", "mode": "replace"});
    fixture
        .refused(-32600, "fs/open", "file", replace.clone())
        .await;
    fixture.refused(-32600, "fs/open", "new", replace).await;
    assert_eq!(fixture.content("file"), "hello");
    assert!(!fixture.path("new").exists());
}

async fn connection_has_at_most_128_handles(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for number in 0..128 {
        open(&mut fixture, &number.to_string(), "file", "read").await;
    }
    let extra = json!({"handleId": "128", "mode": "replace"});
    for name in ["dir/inner", "none"] {
        let message = fixture
            .refused(-32600, "fs/open", name, extra.clone())
            .await;
        assert!(message.contains("128"), "{message}");
    }
    assert_eq!(fixture.content("dir/inner"), "x");
    assert!(!fixture.path("none").exists());
    let message = fixture
        .refused(-32600, "fs/open", "file", json!({"handleId": "5"}))
        .await;
    assert!(message.contains("already"), "{message}");
    close(&mut fixture, "7").await;
    open(&mut fixture, "128", "file", "read").await;
    for number in (0..=128).filter(|number| *number != 7) {
        assert_eq!(
            first(&mut fixture.client, &number.to_string()).await,
            "hello"
        );
    }
    // Other connections have their own limit.
    let mut other = fixture.server.ready().await;
    let params = fixture.params("file", json!({"handleId": "5"}));
    other.call("fs/open", params).await;
}

async fn failed_open_does_not_count_against_the_limit(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for number in 0..200 {
        let handle = json!({"handleId": number.to_string()});
        fixture.refused(-32004, "fs/open", "none", handle).await;
    }
    let handle = json!({"handleId": "0"});
    fixture.refused(-32600, "fs/open", "dir", handle).await;
    open(&mut fixture, "0", "file", "read").await;
}

async fn modes_are_read_and_replace(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let bad = [
        json!(null),
        json!("append"),
        json!("Read"),
        json!(""),
        json!(1),
        json!([]),
    ];
    for mode in bad {
        let extra = json!({"handleId": "h", "mode": mode});
        let message = fixture.refused(-32602, "fs/open", "file", extra).await;
        assert!(message.contains("mode"), "{message}");
    }
    for handle in [json!(null), json!(1), json!(["h"])] {
        let extra = json!({"handleId": handle});
        let message = fixture.refused(-32602, "fs/open", "file", extra).await;
        assert!(message.contains("handleId"), "{message}");
    }
    assert_eq!(fixture.content("file"), "hello");
}

async fn open_handle_outlives_its_path(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "r", "file", "read").await;
    open(&mut fixture, "w", "new", "replace").await;
    fixture.done("fs/remove", "file", json!({})).await;
    fs::rename(fixture.path("new"), fixture.path("elsewhere")).unwrap();
    assert_eq!(first(&mut fixture.client, "r").await, "hello");
    let params = json!({"handleId": "w", "offset": 0, "chunk": encode(b"data")});
    fixture.client.call("fs/writeBlock", params).await;
    assert_eq!(fixture.content("elsewhere"), "data");
}

async fn unknown_handles_are_not_found(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let read = json!({"handleId": "nope", "offset": 0, "len": 1});
    let write = json!({"handleId": "nope", "offset": 0, "chunk": "eA=="});
    for (method, params) in [("fs/readBlock", read), ("fs/writeBlock", write)] {
        let message = fixture.client.expect_error(-32004, method, params).await;
        assert!(message.contains("nope"), "{message}");
    }
    close(&mut fixture, "nope").await;
}

async fn closing_frees_the_descriptor(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    // Descriptors that the server opens once are open after this.
    open(&mut fixture, "h", "file", "read").await;
    close(&mut fixture, "h").await;
    let before = descriptors(fixture.server.pid());
    for number in 0..100 {
        open(&mut fixture, &number.to_string(), "file", "read").await;
    }
    assert!(descriptors(fixture.server.pid()) >= before + 100);
    for number in 0..100 {
        close(&mut fixture, &number.to_string()).await;
    }
    let pid = fixture.server.pid();
    until("descriptors are closed", || descriptors(pid) <= before).await;
}

async fn expect_unknown(client: &mut Client, handle: &str) {
    let params = json!({"handleId": handle, "offset": 0, "len": 1});
    client.expect_error(-32004, "fs/readBlock", params).await;
}

async fn handles_belong_to_their_connection(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "file", "read").await;
    let mut other = fixture.server.ready().await;
    expect_unknown(&mut other, "h").await;
    let params: Value = fixture.params("dir/inner", json!({"handleId": "h"}));
    other.call("fs/open", params).await;
    assert_eq!(first(&mut other, "h").await, "x");
    assert_eq!(first(&mut fixture.client, "h").await, "hello");
    other.call("fs/close", json!({"handleId": "h"})).await;
    assert_eq!(first(&mut fixture.client, "h").await, "hello");
}

async fn handles_close_with_their_connection(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mut client = fixture.server.connect().await;
    let session = client.handshake().await;
    let before = descriptors(fixture.server.pid());
    for number in 0..50 {
        let params = fixture.params("file", json!({"handleId": number.to_string()}));
        client.call("fs/open", params).await;
    }
    drop(client);
    let pid = fixture.server.pid();
    until("files are closed", || descriptors(pid) < before).await;
    // The session continues without the handles.
    let mut client = resume(&mut fixture.server, &session).await;
    client.send(r#"{"method":"initialized"}"#).await;
    expect_unknown(&mut client, "0").await;
    let params = fixture.params("file", json!({"handleId": "0"}));
    client.call("fs/open", params).await;
    assert_eq!(first(&mut client, "0").await, "hello");
}
