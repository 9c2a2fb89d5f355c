//! Files in a pipeline: nobody waits for answers, and the outcome is that of serial order.

use std::fs;

use serde_json::{Value, json};

use crate::{
    client::{decode, decode_text, encode, with},
    over_every_transport, over_one_transport,
    scene::Scene,
    server::Transport,
};

over_every_transport!(
    writes_and_reads_of_one_file_are_serial,
    one_at_a_time_answers_in_order,
    two_hundred_writes_keep_their_order,
);

over_one_transport!(
    two_at_a_time_have_the_same_outcome,
    each_change_is_seen_by_what_follows,
    a_change_waits_for_earlier_reads,
    blocks_keep_their_order,
    a_close_in_the_pipeline_fails_no_earlier_block,
    a_file_is_used_before_its_opening_is_answered,
    a_close_of_a_file_just_opened_fails_no_earlier_block,
    a_close_in_the_pipeline_closes_what_was_to_be_opened,
    failures_do_not_disturb_the_order,
    files_and_processes_keep_one_order,
    a_long_search_holds_up_no_control,
    a_connection_that_ends_stops_what_has_not_begun,
    four_thousand_requests_are_answered,
    connections_do_not_wait_for_each_other,
);

impl Scene {
    async fn begin(&mut self, method: &str, name: &str, more: Value) -> i64 {
        let params = self.params(name, more);
        self.client.request(method, params).await
    }

    async fn begin_pair(&mut self, method: &str, from: &str, to: &str, more: Value) -> i64 {
        let pair = json!({"sourcePath": self.uri(from), "destinationPath": self.uri(to)});
        self.client.request(method, with(pair, more)).await
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

/// Writes and reads one file in turns, without waiting.
async fn take_turns(scene: &mut Scene) {
    let mut begun = Vec::new();
    for round in 0..30 {
        // Some are large, so that a later one would be faster.
        let size = if round % 3 == 0 { 20_000 } else { 1 };
        let text = format!("{round:02}").repeat(size);
        let write = scene.begin_write("file", &text).await;
        let read = scene.begin("fs/readFile", "file", json!({})).await;
        let look = scene.begin("fs/getMetadata", "file", json!({})).await;
        begun.push((text, write, read, look));
    }
    for (text, write, read, look) in begun {
        scene.ended(write).await;
        scene.has_read(read, &text).await;
        let answer = scene.client.answer(look).await;
        assert_eq!(answer["result"]["size"], text.len(), "{answer}");
    }
}

async fn writes_and_reads_of_one_file_are_serial(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    take_turns(&mut scene).await;
}

async fn two_at_a_time_have_the_same_outcome(transport: Transport) {
    for most in ["1", "2", "3", "64"] {
        let mut scene = Scene::with(transport, &["--concurrent-requests", most]).await;
        take_turns(&mut scene).await;
    }
}

async fn one_at_a_time_answers_in_order(transport: Transport) {
    let mut scene = Scene::with(transport, &["--concurrent-requests", "1"]).await;
    let mut ids = Vec::new();
    for round in 0..20 {
        ids.push(scene.begin_write("new", &"x".repeat(round * 1000)).await);
        ids.push(scene.begin("fs/readFile", "new", json!({})).await);
        ids.push(scene.begin("fs/readFile", "none", json!({})).await);
        let handle = json!({"handleId": "h"});
        ids.push(scene.begin("fs/open", "new", handle.clone()).await);
        let block = json!({"handleId": "h", "offset": 0, "len": 10});
        ids.push(scene.client.request("fs/readBlock", block).await);
        ids.push(scene.client.request("fs/close", handle).await);
        ids.push(scene.begin("fs/remove", "new", json!({})).await);
    }
    for id in ids {
        let answer = scene.client.recv().await;
        assert_eq!(answer["id"], id, "{answer}");
    }
}

async fn two_hundred_writes_keep_their_order(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let mut writes = Vec::new();
    for round in 0..200 {
        let text = "x".repeat((199 - round) * 1000) + &round.to_string();
        writes.push(scene.begin_write("new", &text).await);
    }
    let read = scene.begin("fs/readFile", "new", json!({})).await;
    scene.has_read(read, "199").await;
    for write in writes {
        scene.ended(write).await;
    }
}

async fn each_change_is_seen_by_what_follows(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for round in 0..20 {
        let at = |name: &str| format!("r{round}/{name}");
        let make = scene.begin("fs/createDirectory", &at("a"), json!({})).await;
        let write = scene.begin_write(&at("a/f"), "text").await;
        let list = scene.begin("fs/readDirectory", &at("a"), json!({})).await;
        let recursive = json!({"recursive": true});
        let copy = scene
            .begin_pair("fs/copy", &at("a"), &at("b"), recursive)
            .await;
        let copied = scene.begin("fs/readFile", &at("b/f"), json!({})).await;
        let rename = scene
            .begin_pair("fs/rename", &at("b/f"), &at("c"), json!({}))
            .await;
        let renamed = scene.begin("fs/readFile", &at("c"), json!({})).await;
        let gone = scene.begin("fs/readFile", &at("b/f"), json!({})).await;
        let remove = scene.begin("fs/remove", &at("a"), json!({})).await;
        let removed = scene.begin("fs/getMetadata", &at("a/f"), json!({})).await;
        let more = json!({"pattern": "text"});
        let search = scene.begin("fs/search", &at(""), more).await;
        for id in [make, write, copy, rename, remove] {
            scene.ended(id).await;
        }
        let listed = scene.client.answer(list).await;
        assert_eq!(listed["result"]["entries"][0]["fileName"], "f", "{listed}");
        scene.has_read(copied, "text").await;
        scene.has_read(renamed, "text").await;
        scene.failed(gone, -32004).await;
        scene.failed(removed, -32004).await;
        let found = scene.client.answer(search).await;
        let matches = found["result"]["matches"].as_array().unwrap();
        assert_eq!(matches.len(), 1, "{found}");
        assert_eq!(matches[0]["path"], scene.uri(&at("c")));
    }
}

async fn a_change_waits_for_earlier_reads(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let old = "old ".repeat(1_000_000);
    for _ in 0..5 {
        fs::write(scene.path("file"), &old).unwrap();
        let first = scene.begin("fs/readFile", "file", json!({})).await;
        let second = scene.begin("fs/readFile", "file", json!({})).await;
        let write = scene.begin_write("file", "new").await;
        let third = scene.begin("fs/readFile", "file", json!({})).await;
        let remove = scene.begin("fs/remove", "file", json!({})).await;
        scene.has_read(first, &old).await;
        scene.has_read(second, &old).await;
        scene.ended(write).await;
        scene.has_read(third, "new").await;
        scene.ended(remove).await;
    }
}

fn read_block(len: usize) -> Value {
    json!({"handleId": "h", "offset": 0, "len": len})
}

async fn blocks_keep_their_order(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let open = json!({"handleId": "w", "mode": "replace"});
    scene.call("fs/open", "file", open).await;
    scene
        .call("fs/open", "file", json!({"handleId": "h"}))
        .await;
    let mut begun = Vec::new();
    for round in 0..100 {
        let text = format!("{round:03}");
        let write = json!({"handleId": "w", "offset": 0, "chunk": encode(text.as_bytes())});
        let write = scene.client.request("fs/writeBlock", write).await;
        let read = scene.client.request("fs/readBlock", read_block(3)).await;
        begun.push((text, write, read));
    }
    for (text, write, read) in begun {
        scene.ended(write).await;
        let block = scene.client.answer(read).await;
        assert_eq!(decode_text(&block["result"]["chunk"]), text);
    }
}

async fn a_close_in_the_pipeline_fails_no_earlier_block(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let large = "x".repeat(4_000_000);
    fs::write(scene.path("large"), &large).unwrap();
    for _ in 0..20 {
        scene
            .call("fs/open", "large", json!({"handleId": "h"}))
            .await;
        let open = json!({"handleId": "w", "mode": "replace"});
        scene.call("fs/open", "new", open).await;
        // What comes before keeps the blocks waiting, and closing never waits.
        let write = scene.begin_write("other", &large).await;
        let read = scene
            .client
            .request("fs/readBlock", read_block(1 << 20))
            .await;
        let block = json!({"handleId": "w", "offset": 0, "chunk": encode(b"data")});
        let block = scene.client.request("fs/writeBlock", block).await;
        for handle in ["h", "w"] {
            let close = scene
                .client
                .request("fs/close", json!({"handleId": handle}))
                .await;
            scene.ended(close).await;
        }
        scene.ended(write).await;
        let answer = scene.client.answer(read).await;
        assert_eq!(decode(&answer["result"]["chunk"]).len(), 1 << 20);
        scene.ended(block).await;
        assert_eq!(scene.content("new"), "data");
    }
}

async fn a_file_is_used_before_its_opening_is_answered(transport: Transport) {
    for flags in [&[][..], &["--concurrent-requests", "1"]] {
        let mut scene = Scene::with(transport, flags).await;
        for round in 0..20 {
            let text = format!("round {round}");
            let write = scene.begin_write("file", &text).await;
            let handle = format!("h{round}");
            let open = json!({"handleId": handle});
            let open = scene.begin("fs/open", "file", open).await;
            let later = scene.begin_write("other", &"x".repeat(2_000_000)).await;
            let block = json!({"handleId": handle, "offset": 0, "len": 100});
            let block = scene.client.request("fs/readBlock", block).await;
            let close = json!({"handleId": handle});
            let close = scene.client.request("fs/close", close).await;
            scene.ended(write).await;
            scene.ended(later).await;
            scene.ended(close).await;
            assert_eq!(
                scene.client.answer(open).await["result"],
                json!({"handleId": handle})
            );
            let answer = scene.client.answer(block).await;
            let read = answer["result"]["chunk"].is_string();
            assert!(read, "{flags:?}, round {round}: {answer}");
            assert_eq!(decode_text(&answer["result"]["chunk"]), text);
        }
    }
}

async fn a_close_of_a_file_just_opened_fails_no_earlier_block(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    fs::write(scene.path("large"), "x".repeat(64 << 20)).unwrap();
    let slow = json!({"recursive": false});
    let before = scene
        .begin_pair("fs/copy", "large", "one", slow.clone())
        .await;
    let open = scene
        .begin("fs/open", "file", json!({"handleId": "h"}))
        .await;
    let between = scene.begin_pair("fs/copy", "large", "two", slow).await;
    let read = scene.client.request("fs/readBlock", read_block(100)).await;
    scene.ended(before).await;
    let opened = scene.client.answer(open).await;
    assert_eq!(opened["result"], json!({"handleId": "h"}), "{opened}");
    let close = scene
        .client
        .request("fs/close", json!({"handleId": "h"}))
        .await;
    scene.ended(close).await;
    scene.ended(between).await;
    let block = scene.client.answer(read).await;
    assert_eq!(
        block["result"],
        json!({"chunk": "aGVsbG8=", "eof": true}),
        "{block}"
    );
}

async fn a_close_in_the_pipeline_closes_what_was_to_be_opened(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    // More than may be open at once, and each name twice.
    for round in 0..150 {
        let handle = json!({"handleId": (round / 2).to_string()});
        let write = scene.begin_write("other", "x").await;
        let open = scene.begin("fs/open", "file", handle.clone()).await;
        let close = scene.client.request("fs/close", handle).await;
        scene.ended(write).await;
        let opened = scene.client.answer(open).await;
        assert!(opened["result"].is_object(), "round {round}: {opened}");
        scene.ended(close).await;
    }
}

async fn failures_do_not_disturb_the_order(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for round in 0..20 {
        let text = round.to_string();
        let first = scene.begin_write("file", &text).await;
        let broken = json!({"dataBase64": "!"});
        let broken = scene.begin("fs/writeFile", "file", broken).await;
        let directory = scene.begin_write("dir", "x").await;
        let foreign = scene.begin_write("file:///C:/x", "x").await;
        let missing = scene.begin("fs/readFile", "none", json!({})).await;
        let bad = scene.begin("fs/readFile", "file", json!({"path": 1})).await;
        let read = scene.begin("fs/readFile", "file", json!({})).await;
        scene.ended(first).await;
        scene.failed(broken, -32600).await;
        scene.failed(directory, -32603).await;
        scene.failed(foreign, -32600).await;
        scene.failed(missing, -32004).await;
        scene.failed(bad, -32602).await;
        scene.has_read(read, &text).await;
    }
}

async fn files_and_processes_keep_one_order(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for round in 0..10 {
        let text = format!("round {round}");
        let write = scene.begin_write("file", &text).await;
        let id = round.to_string();
        let params = crate::client::script_params(&id, "cat file");
        let params = with(params, json!({"cwd": scene.uri("")}));
        scene.client.request("process/start", params).await;
        scene.ended(write).await;
        assert_eq!(scene.client.finish(&id).await.stdout(), text);
    }
}

async fn a_long_search_holds_up_no_control(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for number in 0..40 {
        let text = format!("{number} ").repeat(500_000);
        fs::write(scene.path(&format!("dir/sub/{number}")), text).unwrap();
    }
    let more = json!({"pattern": "[a-z]x.*y$", "regex": true});
    let search = scene.begin("fs/search", "", more).await;
    let status = scene.client.request("environment/status", json!({})).await;
    assert_eq!(scene.client.recv().await["id"], status);
    let answer = scene.client.answer(search).await;
    assert_eq!(answer["result"]["matches"], json!([]), "{answer}");
}

async fn a_connection_that_ends_stops_what_has_not_begun(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let mut other = scene.server.ready().await;
    for number in 0..200 {
        let data = json!({"dataBase64": encode(&[b'x'; 100_000])});
        let params = scene.params(&format!("dir/sub/{number}"), data);
        other.request("fs/writeFile", params).await;
    }
    drop(other);
    // Whatever was begun is whole or absent, and the server serves on.
    scene.write("file", b"fine").await;
    assert_eq!(scene.read("file").await, b"fine");
}

async fn four_thousand_requests_are_answered(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let params = scene.params("file", json!({}));
    let ids = scene.client.pipeline(4000, "fs/readFile", &params).await;
    for id in ids {
        let answer = scene.client.answer(id).await;
        assert_eq!(
            answer["result"],
            json!({"dataBase64": "aGVsbG8="}),
            "{answer}"
        );
    }
}

async fn connections_do_not_wait_for_each_other(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let mut other = scene.server.ready().await;
    let params = scene.params("file", json!({}));
    // One does not read its answers.
    fs::write(scene.path("large"), "x".repeat(1 << 20)).unwrap();
    let large = scene.params("large", json!({}));
    other.pipeline(100, "fs/readFile", &large).await;
    for _ in 0..100 {
        let read = scene.client.call("fs/readFile", params.clone()).await;
        assert_eq!(read, json!({"dataBase64": "aGVsbG8="}));
    }
    scene.write("file", b"new").await;
}
