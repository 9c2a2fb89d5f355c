//! Pipelined file requests have the outcome of serial order.

use std::fs;

use serde_json::{Value, json};

use crate::{
    client::{decode, decode_text, encode, with},
    fs_fixture::FsFixture,
    over_every_transport, over_one_transport,
    server::Transport,
};

over_every_transport!(
    writes_and_reads_of_one_file_are_ordered,
    serial_mode_answers_in_order,
    two_hundred_writes_keep_their_order,
);

over_one_transport!(
    two_concurrent_requests_have_the_serial_outcome,
    each_change_is_visible_to_later_requests,
    a_change_waits_for_earlier_reads,
    blocks_keep_their_order,
    pipelined_close_does_not_fail_earlier_blocks,
    handle_can_be_used_before_open_is_answered,
    close_after_pipelined_open_does_not_fail_earlier_blocks,
    pipelined_close_closes_a_pending_open,
    failures_do_not_disturb_the_order,
    file_and_process_requests_share_one_order,
    long_search_does_not_block_control_requests,
    disconnect_drops_queued_requests,
    four_thousand_requests_are_answered,
    connections_do_not_block_each_other,
);

impl FsFixture {
    async fn begin(&mut self, method: &str, name: &str, extra: Value) -> i64 {
        let params = self.params(name, extra);
        self.client.request(method, params).await
    }

    async fn begin_pair(&mut self, method: &str, from: &str, to: &str, extra: Value) -> i64 {
        let pair = json!({"sourcePath": self.uri(from), "destinationPath": self.uri(to)});
        self.client.request(method, with(pair, extra)).await
    }

    async fn begin_write(&mut self, name: &str, text: &str) -> i64 {
        let data = json!({"dataBase64": encode(text.as_bytes())});
        self.begin("fs/writeFile", name, data).await
    }

    async fn ended(&mut self, id: i64) {
        let answer = self.client.answer(id).await;
        assert_eq!(answer["result"], json!({}), "{answer}");
    }

    async fn failed(&mut self, id: i64, code: i64) {
        let answer = self.client.answer(id).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }

    async fn has_read(&mut self, id: i64, expected: &str) {
        let answer = self.client.answer(id).await;
        let text = decode_text(&answer["result"]["dataBase64"]);
        assert!(
            text == expected,
            "{:?}… instead of {:?}…",
            text.get(..20.min(text.len())),
            expected.get(..20.min(expected.len()))
        );
    }
}

/// Writes and reads one file alternately without waiting.
async fn take_turns(fixture: &mut FsFixture) {
    let mut begun = Vec::new();
    for round in 0..30 {
        // Some writes are large, so that a later one could overtake.
        let size = if round % 3 == 0 { 20_000 } else { 1 };
        let text = format!("{round:02}").repeat(size);
        let write = fixture.begin_write("file", &text).await;
        let read = fixture.begin("fs/readFile", "file", json!({})).await;
        let look = fixture.begin("fs/getMetadata", "file", json!({})).await;
        begun.push((text, write, read, look));
    }
    for (text, write, read, look) in begun {
        fixture.ended(write).await;
        fixture.has_read(read, &text).await;
        let answer = fixture.client.answer(look).await;
        assert_eq!(answer["result"]["size"], text.len(), "{answer}");
    }
}

async fn writes_and_reads_of_one_file_are_ordered(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    take_turns(&mut fixture).await;
}

async fn two_concurrent_requests_have_the_serial_outcome(transport: Transport) {
    for concurrency in ["1", "2", "3", "64"] {
        let mut fixture = FsFixture::with(transport, &["--concurrent-requests", concurrency]).await;
        take_turns(&mut fixture).await;
    }
}

async fn serial_mode_answers_in_order(transport: Transport) {
    let mut fixture = FsFixture::with(transport, &["--concurrent-requests", "1"]).await;
    let mut ids = Vec::new();
    for round in 0..20 {
        ids.push(fixture.begin_write("new", &"x".repeat(round * 1000)).await);
        ids.push(fixture.begin("fs/readFile", "new", json!({})).await);
        ids.push(fixture.begin("fs/readFile", "none", json!({})).await);
        let handle = json!({"handleId": "h"});
        ids.push(fixture.begin("fs/open", "new", handle.clone()).await);
        let block = json!({"handleId": "h", "offset": 0, "len": 10});
        ids.push(fixture.client.request("fs/readBlock", block).await);
        ids.push(fixture.client.request("fs/close", handle).await);
        ids.push(fixture.begin("fs/remove", "new", json!({})).await);
    }
    for id in ids {
        let answer = fixture.client.recv().await;
        assert_eq!(answer["id"], id, "{answer}");
    }
}

async fn two_hundred_writes_keep_their_order(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mut writes = Vec::new();
    for round in 0..200 {
        let text = "x".repeat((199 - round) * 1000) + &round.to_string();
        writes.push(fixture.begin_write("new", &text).await);
    }
    let read = fixture.begin("fs/readFile", "new", json!({})).await;
    fixture.has_read(read, "199").await;
    for write in writes {
        fixture.ended(write).await;
    }
}

async fn each_change_is_visible_to_later_requests(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for round in 0..20 {
        let at = |name: &str| format!("r{round}/{name}");
        let make = fixture
            .begin("fs/createDirectory", &at("a"), json!({}))
            .await;
        let write = fixture.begin_write(&at("a/f"), "text").await;
        let list = fixture.begin("fs/readDirectory", &at("a"), json!({})).await;
        let recursive = json!({"recursive": true});
        let copy = fixture
            .begin_pair("fs/copy", &at("a"), &at("b"), recursive)
            .await;
        let copied = fixture.begin("fs/readFile", &at("b/f"), json!({})).await;
        let rename = fixture
            .begin_pair("fs/rename", &at("b/f"), &at("c"), json!({}))
            .await;
        let renamed = fixture.begin("fs/readFile", &at("c"), json!({})).await;
        let read_after_rename = fixture.begin("fs/readFile", &at("b/f"), json!({})).await;
        let remove = fixture.begin("fs/remove", &at("a"), json!({})).await;
        let removed = fixture.begin("fs/getMetadata", &at("a/f"), json!({})).await;
        let extra = json!({"pattern": "text"});
        let search = fixture.begin("fs/search", &at(""), extra).await;
        for id in [make, write, copy, rename, remove] {
            fixture.ended(id).await;
        }
        let listed = fixture.client.answer(list).await;
        assert_eq!(listed["result"]["entries"][0]["fileName"], "f", "{listed}");
        fixture.has_read(copied, "text").await;
        fixture.has_read(renamed, "text").await;
        fixture.failed(read_after_rename, -32004).await;
        fixture.failed(removed, -32004).await;
        let found = fixture.client.answer(search).await;
        let matches = found["result"]["matches"].as_array().unwrap();
        assert_eq!(matches.len(), 1, "{found}");
        assert_eq!(matches[0]["path"], fixture.uri(&at("c")));
    }
}

async fn a_change_waits_for_earlier_reads(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let old = "old ".repeat(1_000_000);
    for _ in 0..5 {
        fs::write(fixture.path("file"), &old).unwrap();
        let first = fixture.begin("fs/readFile", "file", json!({})).await;
        let second = fixture.begin("fs/readFile", "file", json!({})).await;
        let write = fixture.begin_write("file", "new").await;
        let third = fixture.begin("fs/readFile", "file", json!({})).await;
        let remove = fixture.begin("fs/remove", "file", json!({})).await;
        fixture.has_read(first, &old).await;
        fixture.has_read(second, &old).await;
        fixture.ended(write).await;
        fixture.has_read(third, "new").await;
        fixture.ended(remove).await;
    }
}

fn read_block(len: usize) -> Value {
    json!({"handleId": "h", "offset": 0, "len": len})
}

async fn blocks_keep_their_order(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let open = json!({"handleId": "w", "mode": "replace"});
    fixture.call("fs/open", "file", open).await;
    fixture
        .call("fs/open", "file", json!({"handleId": "h"}))
        .await;
    let mut begun = Vec::new();
    for round in 0..100 {
        let text = format!("{round:03}");
        let write = json!({"handleId": "w", "offset": 0, "chunk": encode(text.as_bytes())});
        let write = fixture.client.request("fs/writeBlock", write).await;
        let read = fixture.client.request("fs/readBlock", read_block(3)).await;
        begun.push((text, write, read));
    }
    for (text, write, read) in begun {
        fixture.ended(write).await;
        let block = fixture.client.answer(read).await;
        assert_eq!(decode_text(&block["result"]["chunk"]), text);
    }
}

async fn pipelined_close_does_not_fail_earlier_blocks(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let large = "x".repeat(4_000_000);
    fs::write(fixture.path("large"), &large).unwrap();
    for _ in 0..20 {
        fixture
            .call("fs/open", "large", json!({"handleId": "h"}))
            .await;
        let open = json!({"handleId": "w", "mode": "replace"});
        fixture.call("fs/open", "new", open).await;
        // Earlier requests delay the blocks, and close never waits.
        let write = fixture.begin_write("other", &large).await;
        let read = fixture
            .client
            .request("fs/readBlock", read_block(1 << 20))
            .await;
        let block = json!({"handleId": "w", "offset": 0, "chunk": encode(b"data")});
        let block = fixture.client.request("fs/writeBlock", block).await;
        for handle in ["h", "w"] {
            let close = fixture
                .client
                .request("fs/close", json!({"handleId": handle}))
                .await;
            fixture.ended(close).await;
        }
        fixture.ended(write).await;
        let answer = fixture.client.answer(read).await;
        assert_eq!(decode(&answer["result"]["chunk"]).len(), 1 << 20);
        fixture.ended(block).await;
        assert_eq!(fixture.content("new"), "data");
    }
}

async fn handle_can_be_used_before_open_is_answered(transport: Transport) {
    for flags in [&[][..], &["--concurrent-requests", "1"]] {
        let mut fixture = FsFixture::with(transport, flags).await;
        for round in 0..20 {
            let text = format!("round {round}");
            let write = fixture.begin_write("file", &text).await;
            let handle = format!("h{round}");
            let open = json!({"handleId": handle});
            let open = fixture.begin("fs/open", "file", open).await;
            let later = fixture.begin_write("other", &"x".repeat(2_000_000)).await;
            let block = json!({"handleId": handle, "offset": 0, "len": 100});
            let block = fixture.client.request("fs/readBlock", block).await;
            let close = json!({"handleId": handle});
            let close = fixture.client.request("fs/close", close).await;
            fixture.ended(write).await;
            fixture.ended(later).await;
            fixture.ended(close).await;
            assert_eq!(
                fixture.client.answer(open).await["result"],
                json!({"handleId": handle})
            );
            let answer = fixture.client.answer(block).await;
            let read = answer["result"]["chunk"].is_string();
            assert!(read, "{flags:?}, round {round}: {answer}");
            assert_eq!(decode_text(&answer["result"]["chunk"]), text);
        }
    }
}

async fn close_after_pipelined_open_does_not_fail_earlier_blocks(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fs::write(fixture.path("large"), "x".repeat(64 << 20)).unwrap();
    let slow = json!({"recursive": false});
    let before = fixture
        .begin_pair("fs/copy", "large", "one", slow.clone())
        .await;
    let open = fixture
        .begin("fs/open", "file", json!({"handleId": "h"}))
        .await;
    let between = fixture.begin_pair("fs/copy", "large", "two", slow).await;
    let read = fixture
        .client
        .request("fs/readBlock", read_block(100))
        .await;
    fixture.ended(before).await;
    let opened = fixture.client.answer(open).await;
    assert_eq!(opened["result"], json!({"handleId": "h"}), "{opened}");
    let close = fixture
        .client
        .request("fs/close", json!({"handleId": "h"}))
        .await;
    fixture.ended(close).await;
    fixture.ended(between).await;
    let block = fixture.client.answer(read).await;
    assert_eq!(
        block["result"],
        json!({"chunk": "aGVsbG8=", "eof": true}),
        "{block}"
    );
}

async fn pipelined_close_closes_a_pending_open(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    // More than the handle limit, and each id twice.
    for round in 0..150 {
        let handle = json!({"handleId": (round / 2).to_string()});
        let write = fixture.begin_write("other", "x").await;
        let open = fixture.begin("fs/open", "file", handle.clone()).await;
        let close = fixture.client.request("fs/close", handle).await;
        fixture.ended(write).await;
        let opened = fixture.client.answer(open).await;
        assert!(opened["result"].is_object(), "round {round}: {opened}");
        fixture.ended(close).await;
    }
}

async fn failures_do_not_disturb_the_order(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for round in 0..20 {
        let text = round.to_string();
        let first = fixture.begin_write("file", &text).await;
        let broken = json!({"dataBase64": "!"});
        let broken = fixture.begin("fs/writeFile", "file", broken).await;
        let directory = fixture.begin_write("dir", "x").await;
        let foreign = fixture.begin_write("file:///C:/x", "x").await;
        let missing = fixture.begin("fs/readFile", "none", json!({})).await;
        let bad = fixture
            .begin("fs/readFile", "file", json!({"path": 1}))
            .await;
        let read = fixture.begin("fs/readFile", "file", json!({})).await;
        fixture.ended(first).await;
        fixture.failed(broken, -32600).await;
        fixture.failed(directory, -32603).await;
        fixture.failed(foreign, -32600).await;
        fixture.failed(missing, -32004).await;
        fixture.failed(bad, -32602).await;
        fixture.has_read(read, &text).await;
    }
}

async fn file_and_process_requests_share_one_order(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for round in 0..10 {
        let text = format!("round {round}");
        let write = fixture.begin_write("file", &text).await;
        let id = round.to_string();
        let params = crate::client::script_params(&id, "cat file");
        let params = with(params, json!({"cwd": fixture.uri("")}));
        fixture.client.request("process/start", params).await;
        fixture.ended(write).await;
        assert_eq!(fixture.client.finish(&id).await.stdout(), text);
    }
}

async fn long_search_does_not_block_control_requests(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for number in 0..40 {
        let text = format!("{number} ").repeat(500_000);
        fs::write(fixture.path(&format!("dir/sub/{number}")), text).unwrap();
    }
    let extra = json!({"pattern": "[a-z]x.*y$", "regex": true});
    let search = fixture.begin("fs/search", "", extra).await;
    let status = fixture
        .client
        .request("environment/status", json!({}))
        .await;
    assert_eq!(fixture.client.recv().await["id"], status);
    let answer = fixture.client.answer(search).await;
    assert_eq!(answer["result"]["matches"], json!([]), "{answer}");
}

async fn disconnect_drops_queued_requests(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mut other = fixture.server.ready().await;
    for number in 0..200 {
        let data = json!({"dataBase64": encode(&[b'x'; 100_000])});
        let params = fixture.params(&format!("dir/sub/{number}"), data);
        other.request("fs/writeFile", params).await;
    }
    drop(other);
    // Each write is complete or absent, and the server keeps serving.
    fixture.write("file", b"fine").await;
    assert_eq!(fixture.read("file").await, b"fine");
}

async fn four_thousand_requests_are_answered(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let params = fixture.params("file", json!({}));
    let ids = fixture.client.pipeline(4000, "fs/readFile", &params).await;
    for id in ids {
        let answer = fixture.client.answer(id).await;
        assert_eq!(
            answer["result"],
            json!({"dataBase64": "aGVsbG8="}),
            "{answer}"
        );
    }
}

async fn connections_do_not_block_each_other(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mut other = fixture.server.ready().await;
    let params = fixture.params("file", json!({}));
    // One client does not read its responses.
    fs::write(fixture.path("large"), "x".repeat(1 << 20)).unwrap();
    let large = fixture.params("large", json!({}));
    other.pipeline(100, "fs/readFile", &large).await;
    for _ in 0..100 {
        let read = fixture.client.call("fs/readFile", params.clone()).await;
        assert_eq!(read, json!({"dataBase64": "aGVsbG8="}));
    }
    fixture.write("file", b"new").await;
}
