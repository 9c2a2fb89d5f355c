//! Files under pressure: what waits for room holds up nobody for ever, and takes bounded memory.

use std::fs;

use serde_json::json;

use crate::{
    client::{decode_text, encode, with},
    over_one_transport,
    scene::Scene,
    server::Transport,
};

over_one_transport!(
    large_answers_beside_small_ones_all_come,
    changes_that_wait_for_their_turn_are_bounded,
    listings_for_a_client_that_does_not_read_are_bounded,
    one_at_a_time_a_closed_file_is_closed,
    a_block_is_of_the_file_that_has_the_name_in_its_turn,
    a_file_that_cannot_be_read_is_closed_for_what_follows,
    a_watch_ends_among_four_thousand_requests,
);

/// Answers that are ready at once, beside answers that are large and wait for room.
async fn large_answers_beside_small_ones_all_come(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    fs::write(scene.path("large"), vec![7; 900 << 10]).unwrap();
    fs::write(scene.path("small"), "x").unwrap();
    let [large, small] = ["large", "small"].map(|name| scene.params(name, json!({})));
    for _ in 0..10 {
        let mut ids = scene.client.pipeline(8, "fs/readFile", &large).await;
        for _ in 0..5 {
            ids.extend(scene.client.pipeline(4, "fs/getMetadata", &small).await);
            tokio::task::yield_now().await;
        }
        for id in ids {
            let answer = scene.client.answer(id).await;
            assert!(answer["result"].is_object(), "{id} is answered");
        }
    }
}

/// Resident memory of the server.
fn resident_mib(scene: &Scene) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", scene.server.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        >> 10
}

async fn changes_that_wait_for_their_turn_are_bounded(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    // Copying many files takes its time.
    fs::create_dir(scene.path("many")).unwrap();
    for number in 0..20_000 {
        fs::write(scene.path(&format!("many/{number}")), "x").unwrap();
    }
    let pair = json!({"sourcePath": scene.uri("many"), "destinationPath": scene.uri("copy"), "recursive": true});
    let copy = scene.client.request("fs/copy", pair).await;
    let data = json!({"dataBase64": encode(&vec![7; 12 << 20])});
    let params = scene.params("file", data);
    let ids = scene.client.pipeline(30, "fs/writeFile", &params).await;
    for id in [copy].into_iter().chain(ids) {
        let answer = scene.client.answer(id).await;
        assert_eq!(answer["result"], json!({}), "{answer}");
    }
    // Half of what was sent: 64 MiB wait, one more is read, and one is decoded.
    let resident = resident_mib(&scene);
    assert!(resident < 240, "{resident} MiB");
}

async fn listings_for_a_client_that_does_not_read_are_bounded(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    fs::create_dir(scene.path("many")).unwrap();
    for number in 0..20_000 {
        fs::write(
            scene.path(&format!("many/a-name-of-some-length-{number}")),
            "",
        )
        .unwrap();
    }
    let params = scene.params("many", json!({}));
    let ids = scene
        .client
        .pipeline(200, "fs/readDirectory", &params)
        .await;
    // Another client is answered behind as many of them as the server makes without their being
    // read.
    let mut other = scene.server.ready().await;
    for _ in 0..8 {
        let listing = other.call("fs/readDirectory", params.clone()).await;
        assert_eq!(listing["entries"].as_array().unwrap().len(), 20_000);
    }
    let resident = resident_mib(&scene);
    assert!(resident < 150, "{resident} MiB");
    for id in ids {
        let answer = scene.client.answer(id).await;
        let entries = answer["result"]["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 20_000);
    }
}

impl Scene {
    /// Opens `h` on a file, and keeps the connection busy with something that only reads.
    async fn open_and_search(&mut self) {
        for name in ["a", "b"] {
            fs::write(self.path(name), name).unwrap();
        }
        fs::create_dir(self.path("tree")).unwrap();
        for number in 0..2000 {
            fs::write(self.path(&format!("tree/{number}")), "nothing\n").unwrap();
        }
        let open = self.params("a", json!({"handleId": "h"}));
        assert!(self.client.call("fs/open", open).await["handleId"].is_string());
        let search = self.params("tree", json!({"pattern": "something"}));
        self.client.request("fs/search", search).await;
    }
}

async fn one_at_a_time_a_closed_file_is_closed(transport: Transport) {
    let mut scene = Scene::with(transport, &["--concurrent-requests", "1"]).await;
    scene.open_and_search().await;
    // One at a time, even waiting holds up what follows.
    scene.client.start("p", "sleep 100").await;
    let wait = json!({"processId": "p", "timeoutMs": 500});
    scene.client.request("process/wait", wait).await;
    let handle = json!({"handleId": "h"});
    let block = with(handle.clone(), json!({"offset": 0, "len": 10}));
    let open = scene.params("b", handle.clone());
    scene.client.request("fs/close", handle).await;
    let closed = scene.client.request("fs/readBlock", block.clone()).await;
    scene.client.request("fs/open", open).await;
    let other = scene.client.request("fs/readBlock", block).await;
    let answer = scene.client.answer(closed).await;
    assert_eq!(answer["error"]["code"], -32004, "{answer}");
    let answer = scene.client.answer(other).await;
    assert_eq!(decode_text(&answer["result"]["chunk"]), "b");
}

async fn a_block_is_of_the_file_that_has_the_name_in_its_turn(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    scene.open_and_search().await;
    let handle = json!({"handleId": "h"});
    let open = scene.params("b", handle.clone());
    let taken = scene.client.request("fs/open", open.clone()).await;
    scene.client.request("fs/close", handle.clone()).await;
    scene.client.request("fs/open", open).await;
    let block = with(handle, json!({"offset": 0, "len": 10}));
    let block = scene.client.request("fs/readBlock", block).await;
    let answer = scene.client.answer(taken).await;
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    let answer = scene.client.answer(block).await;
    assert_eq!(decode_text(&answer["result"]["chunk"]), "b");
}

async fn a_watch_ends_among_four_thousand_requests(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    scene
        .client
        .start_with(
            crate::client::script_params("p", "cat"),
            json!({"pipeStdin": true}),
        )
        .await;
    let wait = json!({"processId": "p"});
    scene.client.pipeline(4096, "process/wait", &wait).await;
    let unwatch = json!({"watchId": "w"});
    let answer = scene.client.call("fs/unwatch", unwatch).await;
    assert_eq!(answer, json!({}));
}

async fn a_file_that_cannot_be_read_is_closed_for_what_follows(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let handle = json!({"handleId": "h"});
    for _ in 0..50 {
        let open = scene.params("file", with(handle.clone(), json!({"mode": "replace"})));
        scene.client.request("fs/open", open).await;
        let read = with(handle.clone(), json!({"offset": 0, "len": 10}));
        let read = scene.client.request("fs/readBlock", read).await;
        let write = with(handle.clone(), json!({"offset": 0, "chunk": encode(b"x")}));
        let write = scene.client.request("fs/writeBlock", write).await;
        let answer = scene.client.answer(read).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        let answer = scene.client.answer(write).await;
        assert_eq!(answer["error"]["code"], -32004, "{answer}");
    }
}
