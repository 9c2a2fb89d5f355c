//! `process/read`: pages, cursors, waiting and retention.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    client::{Client, decode, encode, script_params},
    over_every_transport,
    server::{Server, Transport},
};

over_every_transport!(
    read_page_has_every_field,
    next_seq_counts_events_unless_bytes_are_limited,
    max_bytes_returns_whole_chunks_and_at_least_one,
    consecutive_pages_cover_all_output,
    read_waits_for_new_output,
    read_times_out,
    only_an_unseen_exit_ends_a_read_wait,
    read_of_a_closed_process_does_not_wait,
    old_output_is_evicted_and_sequence_numbers_stay,
    output_retention_can_be_raised,
    cursor_beyond_the_end_is_accepted,
    large_page_arrives_in_fragments,
);

/// Runs a script that writes one chunk for each line of its input.
async fn chunked(client: &mut Client, lines: &[&str]) {
    let params = script_params("p", "while read -r line; do echo $line; done; exit 3");
    client.start_with(params, json!({"pipeStdin": true})).await;
    for (number, line) in lines.iter().enumerate() {
        let chunk = encode(format!("{line}\n").as_bytes());
        let write = json!({"processId": "p", "chunk": chunk, "writeId": number.to_string()});
        client.call("process/write", write).await;
        client.output_until("p", &format!("{line}\n")).await;
    }
}

async fn end_input(client: &mut Client) {
    client
        .call("process/closeStdin", json!({"processId": "p"}))
        .await;
    client.note("process/closed").await;
}

async fn read(client: &mut Client, params: Value) -> (Vec<u64>, u64) {
    let mut all = json!({"processId": "p"});
    crate::client::merge(&mut all, params);
    let page = client.call("process/read", all).await;
    let seqs = page["chunks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|chunk| chunk["seq"].as_u64().unwrap());
    (seqs.collect(), page["nextSeq"].as_u64().unwrap())
}

async fn read_page_has_every_field(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    chunked(&mut client, &["a"]).await;
    let page = client.call("process/read", json!({"processId": "p"})).await;
    assert_eq!(
        page,
        json!({
            "chunks": [{"seq": 1, "stream": "stdout", "chunk": "YQo="}], "nextSeq": 2, "exited": false,
            "exitCode": null, "closed": false, "failure": null, "sandboxDenied": false,
        })
    );
    end_input(&mut client).await;
    let mut page = client
        .call("process/read", json!({"processId": "p", "afterSeq": 1}))
        .await;
    let usage = page.as_object_mut().and_then(|page| page.remove("usage"));
    assert!(usage.is_some_and(|usage| usage["wallMs"].is_u64()));
    assert_eq!(
        page,
        json!({
            "chunks": [], "nextSeq": 4, "exited": true, "exitCode": 3, "closed": true,
            "failure": null, "sandboxDenied": false, "exitSeq": 2, "cause": "exit",
        })
    );
}

async fn next_seq_counts_events_unless_bytes_are_limited(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    chunked(&mut client, &["a", "b"]).await;
    end_input(&mut client).await;
    assert_eq!(read(&mut client, json!({})).await, (vec![1, 2], 5));
    assert_eq!(
        read(&mut client, json!({"maxBytes": null})).await,
        (vec![1, 2], 5)
    );
    assert_eq!(
        read(&mut client, json!({"maxBytes": 1000})).await,
        (vec![1, 2], 3)
    );
    assert_eq!(
        read(&mut client, json!({"maxBytes": 2})).await,
        (vec![1], 2)
    );
    assert_eq!(
        read(&mut client, json!({"afterSeq": 2, "maxBytes": 1000})).await,
        (vec![], 5)
    );
    assert_eq!(read(&mut client, json!({"afterSeq": 4})).await, (vec![], 5));
}

async fn max_bytes_returns_whole_chunks_and_at_least_one(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    chunked(&mut client, &["aaa", "bbb", "ccc"]).await;
    for (most, seqs, next) in [
        (0, vec![1], 2),
        (1, vec![1], 2),
        (4, vec![1], 2),
        (7, vec![1], 2),
        (8, vec![1, 2], 3),
        (11, vec![1, 2], 3),
        (12, vec![1, 2, 3], 4),
    ] {
        assert_eq!(
            read(&mut client, json!({"maxBytes": most})).await,
            (seqs, next),
            "{most}"
        );
    }
}

async fn consecutive_pages_cover_all_output(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start(
            "p",
            "i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); done",
        )
        .await;
    let (mut after, mut text) = (0, Vec::new());
    loop {
        let params = json!({"processId": "p", "afterSeq": after, "maxBytes": 100, "waitMs": 5000});
        let page = client.call("process/read", params).await;
        for chunk in page["chunks"].as_array().unwrap() {
            text.extend(decode(&chunk["chunk"]));
        }
        after = page["nextSeq"].as_u64().unwrap() - 1;
        if page["closed"] == true && page["chunks"] == json!([]) {
            break;
        }
    }
    let expected: String = (0..500).map(|line| format!("{line}\n")).collect();
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

async fn read_waits_for_new_output(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    chunked(&mut client, &["a"]).await;
    let id = client
        .request(
            "process/read",
            json!({"processId": "p", "afterSeq": 1, "waitMs": 60_000}),
        )
        .await;
    // Later requests are answered while the read waits.
    client.expect_alive().await;
    let write = json!({"processId": "p", "chunk": encode(b"b\n"), "writeId": "b"});
    client.call("process/write", write).await;
    let page = client.answer(id).await["result"].take();
    assert_eq!(page["chunks"][0]["chunk"], encode(b"b\n"));
    assert_eq!(page["nextSeq"], 3);
}

async fn read_times_out(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    chunked(&mut client, &["a"]).await;
    let started_at = Instant::now();
    assert_eq!(
        read(&mut client, json!({"afterSeq": 1, "waitMs": 150})).await,
        (vec![], 2)
    );
    assert!(started_at.elapsed() >= Duration::from_millis(150));
    // Huge waits neither overflow nor are capped.
    let forever = json!({"processId": "p", "afterSeq": 1, "waitMs": u64::MAX});
    let id = client.request("process/read", forever).await;
    client.expect_alive().await;
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    assert_eq!(client.answer(id).await["result"]["exited"], true);
}

async fn only_an_unseen_exit_ends_a_read_wait(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "sleep 0.5 & exit 3").await;
    let exited = client.note("process/exited").await;
    assert_eq!(exited["seq"], 1);
    let params = json!({"processId": "p", "afterSeq": 0, "waitMs": 60_000});
    let page = client.call("process/read", params).await;
    assert_eq!(
        (&page["exitCode"], &page["closed"], &page["nextSeq"]),
        (&json!(3), &json!(false), &json!(2))
    );
    let params = json!({"processId": "p", "afterSeq": 1, "waitMs": 60_000});
    let page = client.call("process/read", params).await;
    assert_eq!(
        (&page["closed"], &page["nextSeq"]),
        (&json!(true), &json!(3))
    );
}

async fn read_of_a_closed_process_does_not_wait(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "echo x").await;
    client.finish("p").await;
    for after in [0, 1, 3, 1000] {
        let params = json!({"processId": "p", "afterSeq": after, "waitMs": 60_000});
        assert_eq!(client.call("process/read", params).await["closed"], true);
    }
    // Reading does not consume output.
    for _ in 0..3 {
        assert_eq!(read(&mut client, json!({})).await, (vec![1], 4));
    }
}

async fn old_output_is_evicted_and_sequence_numbers_stay(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "head -c 3000000 /dev/zero; exit 1").await;
    let events = client.finish("p").await;
    let page = client.call("process/read", json!({"processId": "p"})).await;
    let chunks = page["chunks"].as_array().unwrap();
    let retained: usize = chunks
        .iter()
        .map(|chunk| decode(&chunk["chunk"]).len())
        .sum();
    assert!(
        (900_000..=1_048_576).contains(&retained),
        "{retained} bytes are retained"
    );
    assert!(chunks[0]["seq"].as_u64().unwrap() > 1);
    assert_eq!(
        page["nextSeq"].as_u64(),
        events.closed["seq"].as_u64().map(|seq| seq + 1)
    );
    let last = &chunks.last().unwrap()["seq"];
    assert_eq!(last, &events.output.last().unwrap()["seq"]);
}

async fn output_retention_can_be_raised(transport: Transport) {
    let mut server = Server::start(transport, &["--retained-output-bytes", "5000000"]).await;
    let mut client = server.ready().await;
    client.start("p", "head -c 3000000 /dev/zero").await;
    client.finish("p").await;
    let page = client.call("process/read", json!({"processId": "p"})).await;
    let chunks = page["chunks"].as_array().unwrap();
    assert_eq!(
        chunks
            .iter()
            .map(|chunk| decode(&chunk["chunk"]).len())
            .sum::<usize>(),
        3_000_000
    );
    assert_eq!(chunks[0]["seq"], 1);
}

async fn cursor_beyond_the_end_is_accepted(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    chunked(&mut client, &["a"]).await;
    assert_eq!(
        read(&mut client, json!({"afterSeq": 1000})).await,
        (vec![], 2)
    );
    assert_eq!(
        read(&mut client, json!({"afterSeq": u64::MAX})).await,
        (vec![], 2)
    );
    end_input(&mut client).await;
    assert_eq!(
        read(&mut client, json!({"afterSeq": u64::MAX, "waitMs": 1})).await,
        (vec![], 4)
    );
}

async fn large_page_arrives_in_fragments(transport: Transport) {
    let mut server = Server::start(transport, &["--retained-output-bytes", "30000000"]).await;
    let mut client = server.ready().await;
    client.start("p", "head -c 20000000 /dev/zero").await;
    client.finish("p").await;
    // The client rejects frames above 8 MiB; the response has 26 MB.
    let page = client.call("process/read", json!({"processId": "p"})).await;
    let chunks = page["chunks"].as_array().unwrap();
    assert_eq!(
        chunks
            .iter()
            .map(|chunk| decode(&chunk["chunk"]).len())
            .sum::<usize>(),
        20_000_000
    );
    client.expect_alive().await;
}
