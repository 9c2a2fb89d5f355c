//! Backpressure by clients that do not read.

use serde_json::{Value, json};

use crate::{
    client::script_params,
    over_every_socket, over_every_transport,
    server::{Server, Transport, proc_line, until},
};

mod every_transport {
    use super::*;

    over_every_transport!(thousand_requests_with_unread_responses_pause_and_are_answered);

    async fn thousand_requests_with_unread_responses_pause_and_are_answered(transport: Transport) {
        super::check_thousand_unread_responses(transport).await;
    }
}

mod every_socket {
    use super::*;

    over_every_socket!(
        stalled_client_pauses_only_its_own_processes,
        client_that_never_reads_can_be_dropped,
    );

    async fn stalled_client_pauses_only_its_own_processes(transport: Transport) {
        super::check_stalled_client(transport).await;
    }

    async fn client_that_never_reads_can_be_dropped(transport: Transport) {
        super::check_dropped_client(transport).await;
    }
}

async fn check_thousand_unread_responses(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "head -c 65536 /dev/zero").await;
    let next = client.finish("p").await.closed["seq"].as_u64().unwrap() + 1;
    let ids = client
        .pipeline(1000, "process/read", &json!({"processId": "p"}))
        .await;
    // Requests 87 MB of responses. The server has paused once it uses no CPU time.
    let pid = server.pid();
    settled(|| ticks(pid)).await;
    let peak: u64 = proc_line(pid, "status", "VmHWM")
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    assert!(peak < 64 << 10, "{peak} KiB at most were resident");
    for id in ids {
        assert_eq!(client.answer(id).await["result"]["nextSeq"], next);
    }
    client.expect_alive().await;
}

async fn check_stalled_client(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let (mut stalled, mut reading) = (server.ready().await, server.ready().await);
    stalled.start("p", "exec yes").await;
    let list = stalled.call("process/list", json!({})).await;
    let pid = u32::try_from(list["processes"][0]["osPid"].as_u64().unwrap()).unwrap();
    settled(|| proc_line(pid, "io", "wchar")).await;
    let paused: u64 = proc_line(pid, "io", "wchar").parse().unwrap();
    assert!(paused > 0);
    reading.start("p", "head -c 50000000 /dev/zero").await;
    let mut length = 0;
    while length < 50_000_000 {
        length += crate::client::decode(&reading.note("process/output").await["chunk"]).len();
    }
    reading.note("process/closed").await;
    assert_eq!(
        proc_line(pid, "io", "wchar").parse(),
        Ok(paused),
        "process must stay paused"
    );
    // It continues once the client reads again.
    let mut last: Value = 0.into();
    for _ in 0..2000 {
        let output = stalled.note("process/output").await;
        assert_eq!(output["seq"], last.as_u64().unwrap() + 1, "output was lost");
        last = output["seq"].clone();
        let written: u64 = proc_line(pid, "io", "wchar").parse().unwrap();
        if written > paused {
            return;
        }
    }
    panic!("the process stays paused");
}

async fn check_dropped_client(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "0.1"]).await;
    let mut client = server.ready().await;
    client.start("p", "exec yes").await;
    let list = client.call("process/list", json!({})).await;
    let pid = u32::try_from(list["processes"][0]["osPid"].as_u64().unwrap()).unwrap();
    settled(|| proc_line(pid, "io", "wchar")).await;
    let process = crate::server::WatchedProcess::new(pid);
    drop(client);
    process.death().await;
    let mut client = server.ready().await;
    client
        .start_with(script_params("p", "echo x"), json!({}))
        .await;
    client.finish("p").await;
}

/// Waits until a counter that grows with work has been stable for a while.
pub(crate) async fn settled(mut measure: impl FnMut() -> String) {
    let (mut last, mut since) = (String::new(), 0);
    until("it settles", || {
        let now = measure();
        since = if now == last { since + 1 } else { 0 };
        last = now;
        since > 60
    })
    .await;
}

fn ticks(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    format!("{} {}", fields[11], fields[12])
}
