//! Backpressure of file requests: waiting requests make progress and use bounded memory.

use std::fs;

use serde_json::json;

use crate::{
    client::{decode_text, encode, with},
    fs_fixture::FsFixture,
    over_one_transport,
    server::Transport,
};

over_one_transport!(
    large_and_small_responses_all_arrive,
    queued_changes_use_bounded_memory,
    listings_for_a_stalled_client_use_bounded_memory,
    serial_mode_closed_handle_is_closed,
    block_uses_the_file_that_has_the_handle_id_in_request_order,
    failed_handle_is_closed_for_later_requests,
    unwatch_works_among_four_thousand_requests,
);

/// Small responses that are ready immediately, mixed with large ones that wait for buffer space.
async fn large_and_small_responses_all_arrive(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fs::write(fixture.path("large"), vec![7; 900 << 10]).unwrap();
    fs::write(fixture.path("small"), "x").unwrap();
    let [large, small] = ["large", "small"].map(|name| fixture.params(name, json!({})));
    for _ in 0..10 {
        let mut ids = fixture.client.pipeline(8, "fs/readFile", &large).await;
        for _ in 0..5 {
            ids.extend(fixture.client.pipeline(4, "fs/getMetadata", &small).await);
            tokio::task::yield_now().await;
        }
        for id in ids {
            let answer = fixture.client.answer(id).await;
            assert!(answer["result"].is_object(), "{id} is answered");
        }
    }
}

/// Returns the resident memory of the server.
fn resident_mib(fixture: &FsFixture) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", fixture.server.pid())).unwrap();
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

async fn queued_changes_use_bounded_memory(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    // Copying many files takes a while.
    fs::create_dir(fixture.path("many")).unwrap();
    for number in 0..20_000 {
        fs::write(fixture.path(&format!("many/{number}")), "x").unwrap();
    }
    let pair = json!({"sourcePath": fixture.uri("many"), "destinationPath": fixture.uri("copy"), "recursive": true});
    let copy = fixture.client.request("fs/copy", pair).await;
    let data = json!({"dataBase64": encode(&vec![7; 12 << 20])});
    let params = fixture.params("file", data);
    let ids = fixture.client.pipeline(30, "fs/writeFile", &params).await;
    for id in [copy].into_iter().chain(ids) {
        let answer = fixture.client.answer(id).await;
        assert_eq!(answer["result"], json!({}), "{answer}");
    }
    // Half of the sent bytes: 64 MiB are queued, one message is read, and one is decoded.
    let resident = resident_mib(&fixture);
    assert!(resident < 240, "{resident} MiB");
}

/// Entries of a listing of almost two megabytes.
const ENTRIES: usize = 6000;

async fn listings_for_a_stalled_client_use_bounded_memory(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fs::create_dir(fixture.path("many")).unwrap();
    // Long names make large listings of few entries.
    for number in 0..ENTRIES {
        fs::write(fixture.path(&format!("many/{number:0>240}")), "").unwrap();
    }
    let params = fixture.params("many", json!({}));
    let ids = fixture
        .client
        .pipeline(200, "fs/readDirectory", &params)
        .await;
    // Another client is still answered after as many listings as the server produces without their
    // being read.
    let mut other = fixture.server.ready().await;
    for _ in 0..8 {
        let listing = other.call("fs/readDirectory", params.clone()).await;
        assert_eq!(listing["entries"].as_array().unwrap().len(), ENTRIES);
    }
    let resident = resident_mib(&fixture);
    assert!(resident < 150, "{resident} MiB");
    for id in ids {
        let answer = fixture.client.answer(id).await;
        let entries = answer["result"]["entries"].as_array().unwrap();
        assert_eq!(entries.len(), ENTRIES);
    }
}

impl FsFixture {
    /// Opens the handle `h` and keeps the connection busy with a read-only request.
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

async fn serial_mode_closed_handle_is_closed(transport: Transport) {
    let mut fixture = FsFixture::with(transport, &["--concurrent-requests", "1"]).await;
    fixture.open_and_search().await;
    // In serial mode even a wait blocks later requests.
    fixture.client.start("p", "sleep 100").await;
    let wait = json!({"processId": "p", "timeoutMs": 500});
    fixture.client.request("process/wait", wait).await;
    let handle = json!({"handleId": "h"});
    let block = with(handle.clone(), json!({"offset": 0, "len": 10}));
    let open = fixture.params("b", handle.clone());
    fixture.client.request("fs/close", handle).await;
    let closed = fixture.client.request("fs/readBlock", block.clone()).await;
    fixture.client.request("fs/open", open).await;
    let other = fixture.client.request("fs/readBlock", block).await;
    let answer = fixture.client.answer(closed).await;
    assert_eq!(answer["error"]["code"], -32004, "{answer}");
    let answer = fixture.client.answer(other).await;
    assert_eq!(decode_text(&answer["result"]["chunk"]), "b");
}

async fn block_uses_the_file_that_has_the_handle_id_in_request_order(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fixture.open_and_search().await;
    let handle = json!({"handleId": "h"});
    let open = fixture.params("b", handle.clone());
    let duplicate_open = fixture.client.request("fs/open", open.clone()).await;
    fixture.client.request("fs/close", handle.clone()).await;
    fixture.client.request("fs/open", open).await;
    let block = with(handle, json!({"offset": 0, "len": 10}));
    let block = fixture.client.request("fs/readBlock", block).await;
    let answer = fixture.client.answer(duplicate_open).await;
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    let answer = fixture.client.answer(block).await;
    assert_eq!(decode_text(&answer["result"]["chunk"]), "b");
}

async fn unwatch_works_among_four_thousand_requests(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fixture
        .client
        .start_with(
            crate::client::script_params("p", "cat"),
            json!({"pipeStdin": true}),
        )
        .await;
    let wait = json!({"processId": "p"});
    fixture.client.pipeline(4096, "process/wait", &wait).await;
    let unwatch = json!({"watchId": "w"});
    let answer = fixture.client.call("fs/unwatch", unwatch).await;
    assert_eq!(answer, json!({}));
}

async fn failed_handle_is_closed_for_later_requests(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let handle = json!({"handleId": "h"});
    for _ in 0..50 {
        let open = fixture.params("file", with(handle.clone(), json!({"mode": "replace"})));
        fixture.client.request("fs/open", open).await;
        let read = with(handle.clone(), json!({"offset": 0, "len": 10}));
        let read = fixture.client.request("fs/readBlock", read).await;
        let write = with(handle.clone(), json!({"offset": 0, "chunk": encode(b"x")}));
        let write = fixture.client.request("fs/writeBlock", write).await;
        let answer = fixture.client.answer(read).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        let answer = fixture.client.answer(write).await;
        assert_eq!(answer["error"]["code"], -32004, "{answer}");
    }
}
