//! Blocks of open files: where they begin and end, and what a bad one costs.

use serde_json::{Value, json};

use crate::{
    client::{decode, encode, with},
    fs_handles::{first, open},
    over_every_transport, over_one_transport,
    scene::Scene,
    server::Transport,
};

over_every_transport!(a_large_file_is_streamed_both_ways);

over_one_transport!(
    the_end_of_a_file_is_told,
    blocks_have_1_byte_to_1_mib,
    a_bad_block_is_refused_before_its_handle_is_looked_up,
    offsets_end_below_2_to_the_63,
    argument_errors_keep_the_handle,
    numbers_are_integers,
    broken_base64_in_a_block_is_a_bad_parameter,
    holes_are_allowed_and_blocks_may_overlap,
    reading_a_replace_handle_closes_it,
    writing_a_read_handle_fails_and_keeps_it,
    a_file_that_grows_is_read_as_it_is,
);

fn read(offset: impl Into<Value>, len: impl Into<Value>) -> Value {
    json!({"handleId": "h", "offset": offset.into(), "len": len.into()})
}

fn write(offset: impl Into<Value>, data: &[u8]) -> Value {
    json!({"handleId": "h", "offset": offset.into(), "chunk": encode(data)})
}

async fn a_large_file_is_streamed_both_ways(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let data: Vec<u8> = (0..700_000_u32).flat_map(u32::to_le_bytes).collect();
    open(&mut scene, "h", "new", "replace").await;
    for (number, block) in data.chunks(1 << 20).enumerate() {
        let write = write(number << 20, block);
        assert_eq!(scene.client.call("fs/writeBlock", write).await, json!({}));
    }
    scene
        .client
        .call("fs/close", json!({"handleId": "h"}))
        .await;
    open(&mut scene, "h", "new", "read").await;
    let mut found = Vec::new();
    loop {
        let block = scene
            .client
            .call("fs/readBlock", read(found.len(), 1 << 20))
            .await;
        found.extend(decode(&block["chunk"]));
        if block["eof"] == true {
            break;
        }
    }
    assert!(found == data);
}

async fn the_end_of_a_file_is_told(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "file", "read").await;
    for (offset, len, chunk, eof) in [
        (0_u64, 5, "hello", false),
        (0, 6, "hello", true),
        (0, 1, "h", false),
        (2, 3, "llo", false),
        (3, 3, "lo", true),
        (4, 1, "o", false),
        (5, 1, "", true),
        (6, 1_048_576, "", true),
        (1 << 62, 1, "", true),
        ((1 << 63) - 4, 3, "", true),
    ] {
        let block = scene.client.call("fs/readBlock", read(offset, len)).await;
        let expected = json!({"chunk": encode(chunk.as_bytes()), "eof": eof});
        assert_eq!(block, expected, "{len} bytes at {offset}");
    }
    open(&mut scene, "empty", "dir/sub/empty", "replace").await;
    scene
        .client
        .call("fs/close", json!({"handleId": "empty"}))
        .await;
    open(&mut scene, "empty", "dir/sub/empty", "read").await;
    assert_eq!(first(&mut scene.client, "empty").await, "");
}

async fn blocks_have_1_byte_to_1_mib(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "file", "read").await;
    for len in [0, 1_048_577, u64::MAX] {
        let message = scene
            .client
            .expect_error(-32600, "fs/readBlock", read(0, len))
            .await;
        assert!(message.contains("1048576"), "{message}");
    }
    assert_eq!(first(&mut scene.client, "h").await, "hello");
    scene
        .client
        .call("fs/close", json!({"handleId": "h"}))
        .await;
    open(&mut scene, "h", "new", "replace").await;
    for length in [0, (1 << 20) + 1, 3 << 20] {
        let write = write(0, &vec![1; length]);
        let message = scene
            .client
            .expect_error(-32600, "fs/writeBlock", write)
            .await;
        assert!(message.contains("1048576"), "{message}");
    }
    assert_eq!(scene.content("new"), "", "nothing of them was written");
    for length in [1, 1 << 20] {
        let write = write(0, &vec![b'x'; length]);
        scene.client.call("fs/writeBlock", write).await;
        assert_eq!(scene.content("new").len(), length);
    }
}

async fn a_bad_block_is_refused_before_its_handle_is_looked_up(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for (method, params) in [
        ("fs/readBlock", read(0, 0)),
        ("fs/readBlock", read(0, 1_048_577)),
        ("fs/writeBlock", write(0, b"")),
    ] {
        scene.client.expect_error(-32600, method, params).await;
    }
    let broken = with(write(0, b""), json!({"chunk": "!"}));
    scene
        .client
        .expect_error(-32602, "fs/writeBlock", broken)
        .await;
}

async fn offsets_end_below_2_to_the_63(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for offset in [(1_u64 << 63) - 3, (1 << 63) - 1, 1 << 63, u64::MAX] {
        open(&mut scene, "h", "file", "read").await;
        scene
            .client
            .expect_error(-32600, "fs/readBlock", read(offset, 3))
            .await;
        scene
            .client
            .call("fs/close", json!({"handleId": "h"}))
            .await;
        open(&mut scene, "h", "new", "replace").await;
        scene
            .client
            .expect_error(-32600, "fs/writeBlock", write(offset, b"abc"))
            .await;
        scene.client.call("fs/writeBlock", write(0, b"abc")).await;
        assert_eq!(scene.content("new"), "abc", "the handle is kept");
        scene
            .client
            .call("fs/close", json!({"handleId": "h"}))
            .await;
    }
    // In range, but more than any file system holds.
    open(&mut scene, "h", "new", "replace").await;
    let far = write((1_u64 << 63) - 4, b"abc");
    scene
        .client
        .expect_error(-32603, "fs/writeBlock", far)
        .await;
    scene.client.call("fs/writeBlock", write(0, b"abc")).await;
}

async fn argument_errors_keep_the_handle(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "file", "read").await;
    for (code, params) in [
        (-32600, read(0, 0)),
        (-32600, read(0, 1_048_577)),
        (-32602, read(0, json!(null))),
        (-32602, read(-1, 1)),
        (-32602, read(0, "1")),
    ] {
        scene
            .client
            .expect_error(code, "fs/readBlock", params)
            .await;
        assert_eq!(first(&mut scene.client, "h").await, "hello");
    }
}

async fn numbers_are_integers(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "file", "read").await;
    let bad = [
        json!(null),
        json!(-1),
        json!(1.0),
        json!(1.5),
        json!(1e300),
        json!("0"),
        json!([]),
        json!(true),
    ];
    for number in bad {
        for member in ["offset", "len"] {
            let params = with(read(0, 1), json!({member: number}));
            let message = scene
                .client
                .expect_error(-32602, "fs/readBlock", params)
                .await;
            assert!(message.contains(member), "{message}");
        }
        let params = with(write(0, b"x"), json!({"offset": number}));
        scene
            .client
            .expect_error(-32602, "fs/writeBlock", params)
            .await;
    }
    // Beyond 64 bits, as raw text.
    for (number, member) in ["offset", "len"].into_iter().enumerate() {
        let params = with(read(0, 1), json!({member: 12_345_678}));
        let id = 5000 + number;
        let text = json!({"id": id, "method": "fs/readBlock", "params": params}).to_string();
        let text = text.replace("12345678", "18446744073709551616");
        scene.client.send(&text).await;
        let answer = scene.client.answer(i64::try_from(id).unwrap()).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
}

async fn broken_base64_in_a_block_is_a_bad_parameter(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "new", "replace").await;
    for chunk in [
        json!("!"),
        json!("YQ"),
        json!("YR=="),
        json!("_-8="),
        json!(null),
        json!(1),
    ] {
        let params = with(write(0, b""), json!({"chunk": chunk}));
        let message = scene
            .client
            .expect_error(-32602, "fs/writeBlock", params)
            .await;
        assert!(message.contains("chunk"), "{message}");
    }
    let params = json!({"handleId": "h", "offset": 0});
    scene
        .client
        .expect_error(-32602, "fs/writeBlock", params)
        .await;
    scene.client.call("fs/writeBlock", write(0, b"fine")).await;
    assert_eq!(scene.content("new"), "fine");
}

async fn holes_are_allowed_and_blocks_may_overlap(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "new", "replace").await;
    for (offset, data) in [(8_u64, "abc"), (0, "xyz"), (1, "--"), (9, "!")] {
        let write = write(offset, data.as_bytes());
        scene.client.call("fs/writeBlock", write).await;
    }
    assert_eq!(scene.content("new"), "x--\0\0\0\0\0a!c");
    let far = write(1_u64 << 40, b"far");
    scene.client.call("fs/writeBlock", far).await;
    let metadata = scene.call("fs/getMetadata", "new", json!({})).await;
    assert_eq!(metadata["size"], (1_u64 << 40) + 3);
}

async fn reading_a_replace_handle_closes_it(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "new", "replace").await;
    // The arguments are looked at first.
    scene
        .client
        .expect_error(-32600, "fs/readBlock", read(0, 0))
        .await;
    scene.client.call("fs/writeBlock", write(0, b"abc")).await;
    scene
        .client
        .expect_error(-32603, "fs/readBlock", read(0, 1))
        .await;
    scene
        .client
        .expect_error(-32004, "fs/writeBlock", write(0, b"xyz"))
        .await;
    open(&mut scene, "h", "file", "read").await;
    assert_eq!(scene.content("new"), "abc");
}

async fn writing_a_read_handle_fails_and_keeps_it(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "file", "read").await;
    scene
        .client
        .expect_error(-32603, "fs/writeBlock", write(0, b"xyz"))
        .await;
    assert_eq!(first(&mut scene.client, "h").await, "hello");
    assert_eq!(scene.content("file"), "hello");
}

async fn a_file_that_grows_is_read_as_it_is(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    open(&mut scene, "h", "file", "read").await;
    assert_eq!(first(&mut scene.client, "h").await, "hello");
    std::fs::write(scene.path("file"), "hello again").unwrap();
    assert_eq!(first(&mut scene.client, "h").await, "hello again");
    std::fs::write(scene.path("file"), "").unwrap();
    assert_eq!(first(&mut scene.client, "h").await, "");
}
