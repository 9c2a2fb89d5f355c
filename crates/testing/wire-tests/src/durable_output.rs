//! Output of durable processes with slow and absent clients.

use std::{fs, time::Duration};

use serde_json::json;

use crate::{
    backpressure::settled,
    client::script_params,
    durable_server::{DurableServer, ReadOutput, assert_same, numbers, watch},
    server::{proc_line, until},
};

/// Returns the memory that only this process uses, in bytes.
fn private_dirty(pid: u32) -> usize {
    let kib = proc_line(pid, "smaps_rollup", "Private_Dirty");
    kib.trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10
}

#[tokio::test]
async fn output_of_an_absent_client_is_kept_on_disk_without_a_pause() {
    const LAST: u64 = 13_000_000;
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    client.start("first", "exit").await;
    client.finish("first").await;
    let idle = private_dirty(server.pid());
    let detached = json!({"detached": true});
    client
        .start_with(
            script_params("p", &format!("seq 1 {LAST}; exit 5")),
            detached,
        )
        .await;
    let process = watch(&mut client, "p").await;
    drop(client);
    let written = || {
        let sizes = server.records().into_iter().map(|record| {
            let files = fs::read_dir(record).unwrap();
            let sizes = files.map(|file| file.unwrap().metadata().map_or(0, |file| file.len()));
            sizes.sum::<u64>()
        });
        sizes.sum::<u64>()
    };
    let mut before = 0;
    // As long as it makes progress, it is not paused.
    while !process.exits_within(Duration::from_secs(2)).await {
        let now = written();
        assert!(now > before, "no progress after {before} bytes");
        before = now;
    }
    let grown = private_dirty(server.pid()).saturating_sub(idle);
    eprintln!("memory grew by {} KiB", grown >> 10);
    assert!(grown < 16 << 20, "memory grew by {grown} bytes");
    let expected = numbers(LAST);
    assert!(expected.len() > 100 << 20, "{}", expected.len());
    for killed in [false, true] {
        if killed {
            server.kill().await;
            server.restart().await;
        }
        let mut client = server.resume(&session).await;
        let mut output = ReadOutput::default();
        output.finish(&mut client, "p").await;
        assert_same(output.stream("stdout"), &expected);
        assert_eq!(output.exit_code, Some(5));
    }
}

#[tokio::test]
async fn journal_cap_evicts_the_oldest_output_with_a_visible_gap() {
    const LAST: u64 = 3_000_000;
    const CAP: usize = 4 << 20;
    let server = DurableServer::start(&["--journal-bytes", &CAP.to_string()]).await;
    let (mut client, _) = server.ready().await;
    let detached = json!({"detached": true});
    client
        .start_with(script_params("p", &format!("seq 1 {LAST}")), detached)
        .await;
    drop(client);
    let (mut client, _) = server.ready().await;
    let wait = json!({"processId": "p", "until": "closed"});
    assert_eq!(client.call("process/wait", wait).await["exitCode"], 0);
    let read = json!({"processId": "p", "afterSeq": 0, "maxBytes": 65_536});
    let page = client.call("process/read", read).await;
    let last = page["chunks"][0]["seq"].as_u64().unwrap() - 1;
    assert!(last > 0, "the gap is visible: {}", page["nextSeq"]);
    let mut output = ReadOutput {
        last,
        ..ReadOutput::default()
    };
    output.finish(&mut client, "p").await;
    let expected = numbers(LAST);
    let kept = output.stream("stdout");
    assert!(kept.len() <= CAP, "{}", kept.len());
    assert!(kept.len() >= CAP / 2, "{}", kept.len());
    assert_same(kept, &expected[expected.len() - kept.len()..]);
    let snapshot = client
        .call("process/snapshot", json!({"processId": "p"}))
        .await;
    let head = crate::client::decode(&snapshot["stdout"]);
    assert!(expected.starts_with(&head[..100]), "the head is kept");
    assert_eq!(snapshot["truncated"], true);
}

#[tokio::test]
async fn slow_client_pauses_a_process_only_at_the_journal_cap() {
    const LAST: u64 = 4_000_000;
    const CAP: usize = 8 << 20;
    let server = DurableServer::start(&["--journal-bytes", &CAP.to_string()]).await;
    let mut client = server.connect().await;
    client
        .initialize(json!({"extensions": ["acknowledge"]}))
        .await;
    client.send(r#"{"method":"initialized"}"#).await;
    client.start("p", &format!("exec seq 1 {LAST}")).await;
    let (mut other, _) = server.ready().await;
    let list = other.call("process/list", json!({"all": true})).await;
    let pid = list["processes"][0]["osPid"].as_u64().unwrap();
    let pid = u32::try_from(pid).unwrap();
    settled(|| proc_line(pid, "io", "wchar")).await;
    let wrote: usize = proc_line(pid, "io", "wchar").parse().unwrap();
    assert!((CAP / 2..CAP + (1 << 20)).contains(&wrote), "{wrote}");
    let mut received = Vec::new();
    let mut last = 0;
    loop {
        let message = client.recv().await;
        let params = &message["params"];
        let seq = params["seq"].as_u64().unwrap();
        assert_eq!(seq, last + 1, "nothing is skipped");
        last = seq;
        let note = json!({
            "method": "process/acknowledge", "params": {"processId": "p", "seq": seq},
        });
        client.send(&note.to_string()).await;
        match message["method"].as_str().unwrap() {
            "process/output" => received.extend(crate::client::decode(&params["chunk"])),
            "process/exited" => assert_eq!(params["exitCode"], 0),
            "process/closed" => break,
            other => panic!("{other}"),
        }
    }
    assert_same(&received, &numbers(LAST));
    until("the process is gone", || {
        proc_line(pid, "status", "State").is_empty()
    })
    .await;
}
