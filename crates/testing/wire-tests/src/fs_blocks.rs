//! Block reads and writes of file handles: offsets, sizes and invalid requests.

use serde_json::{Value, json};

use crate::{
    client::{decode, encode, with},
    fs_fixture::FsFixture,
    fs_handles::{first, open},
    over_every_transport, over_one_transport,
    server::Transport,
};

over_every_transport!(large_file_is_streamed_in_both_directions);

over_one_transport!(
    end_of_file_is_reported,
    blocks_have_1_byte_to_1_mib,
    invalid_block_is_refused_before_the_handle_lookup,
    offsets_end_below_2_to_the_63,
    argument_errors_keep_the_handle_open,
    numbers_are_integers,
    invalid_base64_in_a_block_is_an_invalid_parameter,
    holes_are_allowed_and_blocks_may_overlap,
    read_from_a_replace_handle_closes_it,
    write_to_a_read_handle_fails_and_keeps_it_open,
    growing_file_is_read_at_its_current_size,
);

fn read(offset: impl Into<Value>, len: impl Into<Value>) -> Value {
    json!({"handleId": "h", "offset": offset.into(), "len": len.into()})
}

fn write(offset: impl Into<Value>, data: &[u8]) -> Value {
    json!({"handleId": "h", "offset": offset.into(), "chunk": encode(data)})
}

async fn large_file_is_streamed_in_both_directions(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let data: Vec<u8> = (0..700_000_u32).flat_map(u32::to_le_bytes).collect();
    open(&mut fixture, "h", "new", "replace").await;
    for (number, block) in data.chunks(1 << 20).enumerate() {
        let write = write(number << 20, block);
        assert_eq!(fixture.client.call("fs/writeBlock", write).await, json!({}));
    }
    fixture
        .client
        .call("fs/close", json!({"handleId": "h"}))
        .await;
    open(&mut fixture, "h", "new", "read").await;
    let mut found = Vec::new();
    loop {
        let block = fixture
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

async fn end_of_file_is_reported(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "file", "read").await;
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
        let block = fixture.client.call("fs/readBlock", read(offset, len)).await;
        let expected = json!({"chunk": encode(chunk.as_bytes()), "eof": eof});
        assert_eq!(block, expected, "{len} bytes at {offset}");
    }
    open(&mut fixture, "empty", "dir/sub/empty", "replace").await;
    fixture
        .client
        .call("fs/close", json!({"handleId": "empty"}))
        .await;
    open(&mut fixture, "empty", "dir/sub/empty", "read").await;
    assert_eq!(first(&mut fixture.client, "empty").await, "");
}

async fn blocks_have_1_byte_to_1_mib(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "file", "read").await;
    for len in [0, 1_048_577, u64::MAX] {
        let message = fixture
            .client
            .expect_error(-32600, "fs/readBlock", read(0, len))
            .await;
        assert!(message.contains("1048576"), "{message}");
    }
    assert_eq!(first(&mut fixture.client, "h").await, "hello");
    fixture
        .client
        .call("fs/close", json!({"handleId": "h"}))
        .await;
    open(&mut fixture, "h", "new", "replace").await;
    for length in [0, (1 << 20) + 1, 3 << 20] {
        let write = write(0, &vec![1; length]);
        let message = fixture
            .client
            .expect_error(-32600, "fs/writeBlock", write)
            .await;
        assert!(message.contains("1048576"), "{message}");
    }
    assert_eq!(fixture.content("new"), "", "nothing of them was written");
    for length in [1, 1 << 20] {
        let write = write(0, &vec![b'x'; length]);
        fixture.client.call("fs/writeBlock", write).await;
        assert_eq!(fixture.content("new").len(), length);
    }
}

async fn invalid_block_is_refused_before_the_handle_lookup(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (method, params) in [
        ("fs/readBlock", read(0, 0)),
        ("fs/readBlock", read(0, 1_048_577)),
        ("fs/writeBlock", write(0, b"")),
    ] {
        fixture.client.expect_error(-32600, method, params).await;
    }
    let broken = with(write(0, b""), json!({"chunk": "!"}));
    fixture
        .client
        .expect_error(-32602, "fs/writeBlock", broken)
        .await;
}

async fn offsets_end_below_2_to_the_63(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for offset in [(1_u64 << 63) - 3, (1 << 63) - 1, 1 << 63, u64::MAX] {
        open(&mut fixture, "h", "file", "read").await;
        fixture
            .client
            .expect_error(-32600, "fs/readBlock", read(offset, 3))
            .await;
        fixture
            .client
            .call("fs/close", json!({"handleId": "h"}))
            .await;
        open(&mut fixture, "h", "new", "replace").await;
        fixture
            .client
            .expect_error(-32600, "fs/writeBlock", write(offset, b"abc"))
            .await;
        fixture.client.call("fs/writeBlock", write(0, b"abc")).await;
        assert_eq!(fixture.content("new"), "abc", "the handle is kept");
        fixture
            .client
            .call("fs/close", json!({"handleId": "h"}))
            .await;
    }
    // In range, but beyond any file system's maximum.
    open(&mut fixture, "h", "new", "replace").await;
    let distant = write((1_u64 << 63) - 4, b"abc");
    fixture
        .client
        .expect_error(-32603, "fs/writeBlock", distant)
        .await;
    fixture.client.call("fs/writeBlock", write(0, b"abc")).await;
}

async fn argument_errors_keep_the_handle_open(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "file", "read").await;
    for (code, params) in [
        (-32600, read(0, 0)),
        (-32600, read(0, 1_048_577)),
        (-32602, read(0, json!(null))),
        (-32602, read(-1, 1)),
        (-32602, read(0, "1")),
    ] {
        fixture
            .client
            .expect_error(code, "fs/readBlock", params)
            .await;
        assert_eq!(first(&mut fixture.client, "h").await, "hello");
    }
}

async fn numbers_are_integers(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "file", "read").await;
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
            let message = fixture
                .client
                .expect_error(-32602, "fs/readBlock", params)
                .await;
            assert!(message.contains(member), "{message}");
        }
        let params = with(write(0, b"x"), json!({"offset": number}));
        fixture
            .client
            .expect_error(-32602, "fs/writeBlock", params)
            .await;
    }
    // Beyond 64 bits, so sent as raw text.
    for (number, member) in ["offset", "len"].into_iter().enumerate() {
        let params = with(read(0, 1), json!({member: 12_345_678}));
        let id = 5000 + number;
        let text = json!({"id": id, "method": "fs/readBlock", "params": params}).to_string();
        let text = text.replace("12345678", "18446744073709551616");
        fixture.client.send(&text).await;
        let answer = fixture.client.answer(i64::try_from(id).unwrap()).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
}

async fn invalid_base64_in_a_block_is_an_invalid_parameter(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "new", "replace").await;
    for chunk in [
        json!("!"),
        json!("YQ"),
        json!("YR=="),
        json!("_-8="),
        json!(null),
        json!(1),
    ] {
        let params = with(write(0, b""), json!({"chunk": chunk}));
        let message = fixture
            .client
            .expect_error(-32602, "fs/writeBlock", params)
            .await;
        assert!(message.contains("chunk"), "{message}");
    }
    let params = json!({"handleId": "h", "offset": 0});
    fixture
        .client
        .expect_error(-32602, "fs/writeBlock", params)
        .await;
    fixture
        .client
        .call("fs/writeBlock", write(0, b"fine"))
        .await;
    assert_eq!(fixture.content("new"), "fine");
}

async fn holes_are_allowed_and_blocks_may_overlap(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "new", "replace").await;
    for (offset, data) in [(8_u64, "abc"), (0, "xyz"), (1, "--"), (9, "!")] {
        let write = write(offset, data.as_bytes());
        fixture.client.call("fs/writeBlock", write).await;
    }
    assert_eq!(fixture.content("new"), "x--\0\0\0\0\0a!c");
    let distant = write(1_u64 << 40, b"far");
    fixture.client.call("fs/writeBlock", distant).await;
    let metadata = fixture.call("fs/getMetadata", "new", json!({})).await;
    assert_eq!(metadata["size"], (1_u64 << 40) + 3);
}

async fn read_from_a_replace_handle_closes_it(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "new", "replace").await;
    // Arguments are checked first.
    fixture
        .client
        .expect_error(-32600, "fs/readBlock", read(0, 0))
        .await;
    fixture.client.call("fs/writeBlock", write(0, b"abc")).await;
    fixture
        .client
        .expect_error(-32603, "fs/readBlock", read(0, 1))
        .await;
    fixture
        .client
        .expect_error(-32004, "fs/writeBlock", write(0, b"xyz"))
        .await;
    open(&mut fixture, "h", "file", "read").await;
    assert_eq!(fixture.content("new"), "abc");
}

async fn write_to_a_read_handle_fails_and_keeps_it_open(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "file", "read").await;
    fixture
        .client
        .expect_error(-32603, "fs/writeBlock", write(0, b"xyz"))
        .await;
    assert_eq!(first(&mut fixture.client, "h").await, "hello");
    assert_eq!(fixture.content("file"), "hello");
}

async fn growing_file_is_read_at_its_current_size(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    open(&mut fixture, "h", "file", "read").await;
    assert_eq!(first(&mut fixture.client, "h").await, "hello");
    std::fs::write(fixture.path("file"), "hello again").unwrap();
    assert_eq!(first(&mut fixture.client, "h").await, "hello again");
    std::fs::write(fixture.path("file"), "").unwrap();
    assert_eq!(first(&mut fixture.client, "h").await, "");
}
