//! What is kept for a client that acknowledges, and for how long.

use std::{sync::Arc, time::Duration};

use exec_wire::limits;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    fake_environment::{RETAINED, Written},
    test_client::{Client, Server},
};

const GRANT: &[&str] = &["acknowledge"];
/// How many writes of 1 KiB pause a process.
const PAUSES: usize = limits::UNACKNOWLEDGED_BYTES / 1024;
/// Longer than anything is kept.
const HOUR: Duration = Duration::from_secs(3600);

fn params(id: &str) -> Value {
    json!({"processId": id, "argv": ["write"], "cwd": "file:///", "env": {}, "tty": false})
}

async fn start(server: &mut Server, client: &mut Client, params: &Value) -> Arc<Written> {
    server.start(client, params).await.written.unwrap()
}

/// Writes so much that the process is paused if it is kept, and has the client hear all of it.
async fn write_much(client: &mut Client, process: &Written) -> u64 {
    let last = process.write(PAUSES);
    client.hear_up_to(last).await;
    last
}

#[tokio::test(start_paused = true)]
async fn what_is_not_acknowledged_is_kept_and_pauses_the_process() {
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    let last = write_much(&mut client, &process).await;
    assert!(process.is_paused());
    assert_eq!(client.readable("p", 0).await, PAUSES);
    client.acknowledge("p", 1).await;
    assert!(!process.is_paused());
    assert_eq!(client.readable("p", 0).await, PAUSES - 1);
    // An older one, one of nobody, and one that is not there yet.
    client.acknowledge("p", 0).await;
    client.acknowledge("nobody", 5).await;
    assert_eq!(client.readable("p", 0).await, PAUSES - 1);
    client.acknowledge("p", u64::MAX).await;
    assert_eq!(process.retained(), RETAINED);
    let more = process.write(PAUSES);
    client.hear_up_to(more).await;
    assert!(process.is_paused());
    assert_eq!(client.readable("p", last).await, PAUSES);
}

#[tokio::test(start_paused = true)]
async fn without_the_grant_nothing_is_kept() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    write_much(&mut client, &process).await;
    assert!(!process.is_paused());
    assert_eq!(process.retained(), RETAINED);
    client
        .say(json!({"method": "process/acknowledge", "params": {"processId": "p", "seq": 1}}))
        .await;
    let refusal = client.hear().await;
    assert_eq!(refusal["id"], -1);
    assert_eq!(refusal["error"]["code"], -32600, "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_detached_processes_and_of_the_first_dialect() {
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    let mut detached = params("p");
    detached["detached"] = true.into();
    let process = start(&mut server, &mut client, &detached).await;
    write_much(&mut client, &process).await;
    assert!(!process.is_paused());
    assert_eq!(process.retained(), RETAINED);
    let mut first = params("q");
    first["cwd"] = "/".into();
    client.call("command/exec", &first).await;
    let process = server.started().await.written.unwrap();
    process.write(PAUSES);
    for _ in 0..PAUSES {
        assert_eq!(client.hear().await["method"], "command/exec/outputDelta");
    }
    assert!(!process.is_paused());
    assert_eq!(process.retained(), RETAINED);
}

#[tokio::test(start_paused = true)]
async fn unacknowledged_output_is_kept_for_a_while_without_a_connection() {
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    write_much(&mut client, &process).await;
    drop(client);
    sleep(limits::UNACKNOWLEDGED_HOLD - Duration::from_secs(1)).await;
    assert!(process.is_paused());
    assert_eq!(process.retained(), PAUSES * 1024);
    sleep(Duration::from_secs(2)).await;
    assert!(!process.is_paused());
    assert_eq!(process.retained(), RETAINED);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_back_in_time_finds_all_that_it_has_not_acknowledged() {
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    let last = write_much(&mut client, &process).await;
    client.acknowledge("p", 7).await;
    let session = client.session.clone();
    // Each absence starts a fresh period.
    for _ in 0..3 {
        drop(client);
        sleep(limits::UNACKNOWLEDGED_HOLD * 2 / 3).await;
        client = server.connect_with(Some(&session), GRANT).await;
    }
    sleep(limits::UNACKNOWLEDGED_HOLD * 2).await;
    assert_eq!(client.readable("p", 7).await, PAUSES - 7);
    process.write(7);
    assert!(process.is_paused());
    client.hear_up_to(last + 7).await;
    client.acknowledge("p", last).await;
    assert!(!process.is_paused());
    assert_eq!(client.readable("p", last).await, 7);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_back_without_the_grant_has_nothing_kept() {
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    write_much(&mut client, &process).await;
    let session = client.session.clone();
    drop(client);
    sleep(Duration::from_secs(1)).await;
    assert!(process.is_paused());
    let _client = server.connect(Some(&session)).await;
    assert!(!process.is_paused());
    assert_eq!(process.retained(), RETAINED);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_late_keeps_what_is_there_and_what_follows() {
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect(None).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    let last = write_much(&mut client, &process).await;
    let session = client.session.clone();
    drop(client);
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect_with(Some(&session), GRANT).await;
    assert!(!process.is_paused());
    let retained = RETAINED / 1024;
    let more = process.write(PAUSES - retained);
    client.hear_up_to(more).await;
    assert!(process.is_paused());
    assert_eq!(client.readable("p", 0).await, PAUSES);
    // It was away for too long: what was kept has gone, and it begins again.
    drop(client);
    sleep(limits::UNACKNOWLEDGED_HOLD * 2).await;
    assert_eq!(process.retained(), RETAINED);
    let mut client = server.connect_with(Some(&session), GRANT).await;
    let end = process.write(1);
    client.hear_up_to(end).await;
    assert_eq!(client.readable("p", last).await, retained + 1);
}

#[tokio::test(start_paused = true)]
async fn a_finished_process_is_not_forgotten_for_its_age_before_it_is_acknowledged() {
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    process.write(10);
    let close = process.close();
    client.hear_up_to(close).await;
    sleep(limits::CLOSED_RETENTION * 4).await;
    assert_eq!(client.readable("p", 0).await, 10);
    client.acknowledge("p", close).await;
    assert_eq!(process.retained(), RETAINED);
    sleep(limits::CLOSED_RETENTION * 2).await;
    let answer = client
        .call("process/read", &json!({"processId": "p"}))
        .await;
    assert_eq!(
        answer["error"]["message"], "unknown process id p",
        "{answer}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_acknowledged_to_its_close_is_not_kept_again_for_a_client_that_is_back()
{
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    process.write(10);
    let close = process.close();
    client.hear_up_to(close).await;
    client.acknowledge("p", close).await;
    let session = client.session.clone();
    drop(client);
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect_with(Some(&session), GRANT).await;
    sleep(HOUR * 2).await;
    let answer = client
        .call("process/read", &json!({"processId": "p"}))
        .await;
    assert_eq!(
        answer["error"]["message"], "unknown process id p",
        "{answer}"
    );
}

#[tokio::test(start_paused = true)]
async fn finished_processes_are_bounded_and_those_that_were_acknowledged_go_first() {
    let most = limits::FINISHED_OUTPUT_BYTES / limits::UNACKNOWLEDGED_BYTES;
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    let mut finish = async |id: usize, client: &mut Client| {
        let process = start(&mut server, client, &params(&id.to_string())).await;
        // The arguments of all of them take what one writes less.
        process.write(if id == 1 { PAUSES - 1 } else { PAUSES });
        let close = process.close();
        client.hear_up_to(close).await;
        close
    };
    let mut closes = Vec::new();
    for id in 0..most {
        closes.push(finish(id, &mut client).await);
    }
    let known = async |client: &mut Client, id: usize| {
        let params = json!({"processId": id.to_string(), "maxBytes": 1});
        client.call("process/read", &params).await["result"].is_object()
    };
    // What one of them no longer takes is not enough for the next: it goes, and no other.
    client.acknowledge("5", closes[5]).await;
    finish(most, &mut client).await;
    assert!(!known(&mut client, 5).await);
    assert!(known(&mut client, 0).await);
    // All others are to be kept; now the oldest goes.
    finish(most + 1, &mut client).await;
    assert!(!known(&mut client, 0).await);
    assert!(known(&mut client, 1).await);
}

#[tokio::test(start_paused = true)]
async fn the_arguments_of_finished_processes_count_as_their_output_does() {
    let argument = "x".repeat(limits::FINISHED_OUTPUT_BYTES / 8);
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    for id in 0..8 {
        let mut params = params(&id.to_string());
        params["argv"] = json!(["write", argument]);
        let process = start(&mut server, &mut client, &params).await;
        client.hear_up_to(process.close()).await;
    }
    for (id, known) in [("0", false), ("1", true)] {
        let page = client.call("process/read", &json!({"processId": id})).await;
        assert_eq!(page["result"].is_object(), known, "{id}: {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_keeps_nothing_for_those_who_are_away() {
    let mut server = Server::with_ttl(HOUR);
    let mut here = server.connect_with(None, GRANT).await;
    let mut away = server.connect_with(None, GRANT).await;
    let watched = start(&mut server, &mut here, &params("p")).await;
    let left = start(&mut server, &mut away, &params("q")).await;
    write_much(&mut here, &watched).await;
    write_much(&mut away, &left).await;
    drop(away);
    sleep(Duration::from_secs(1)).await;
    assert!(left.is_paused());
    let service = server.service.clone();
    tokio::spawn(async move { service.shut_down(HOUR).await });
    sleep(Duration::from_secs(1)).await;
    assert!(!left.is_paused());
    assert!(watched.is_paused(), "its client may still acknowledge");
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_that_does_not_decode_is_an_error_and_no_more() {
    let server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    for params in [
        json!({"processId": "p"}),
        json!({"processId": "p", "seq": "1"}),
        json!(null),
    ] {
        client
            .say(json!({"method": "process/acknowledge", "params": params}))
            .await;
        let refusal = client.hear().await;
        assert_eq!(refusal["id"], -1);
        assert_eq!(refusal["error"]["code"], -32602, "{refusal}");
    }
    let status = client.call("environment/status", &json!({})).await;
    assert_eq!(status["result"]["status"], "ready");
}

impl Client {
    /// Hears events of one process, each once, up to this number.
    pub(crate) async fn hear_up_to(&mut self, last: u64) {
        let mut before = None;
        loop {
            let seq = self.hear().await["params"]["seq"].as_u64().unwrap();
            assert!(before.is_none_or(|before| seq == before + 1), "{seq}");
            before = Some(seq);
            if seq == last {
                return;
            }
        }
    }

    /// Acknowledges, and waits until that has its effect.
    async fn acknowledge(&mut self, id: &str, seq: u64) {
        let params = json!({"processId": id, "seq": seq});
        self.say(json!({"method": "process/acknowledge", "params": params}))
            .await;
        self.call("environment/status", &json!({})).await;
    }

    /// Reads how many chunks there are after a number.
    async fn readable(&mut self, id: &str, after: u64) -> usize {
        let params = json!({"processId": id, "afterSeq": after});
        let page = self.call("process/read", &params).await;
        page["result"]["chunks"].as_array().unwrap().len()
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Tells whether a process is still known.
async fn is_readable(client: &mut Client) -> bool {
    let read = client
        .call("process/read", &json!({"processId": "p"}))
        .await;
    read["result"].is_object()
}

/// Runs a process whose client is away from before its end until `absence` is over. Tells whether it
/// can still be read.
async fn read_after_an_outage(server: &mut Server, absence: Duration) -> bool {
    let mut client = server.connect(None).await;
    let started = server.start(&mut client, &params("p")).await;
    let session = client.session.clone();
    drop(client);
    sleep(SECOND).await;
    let process = started.written.unwrap();
    process.write(1);
    process.close();
    sleep(absence - SECOND).await;
    let mut client = server.connect(Some(&session)).await;
    is_readable(&mut client).await
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_during_an_outage_is_readable_when_the_session_is_resumed() {
    let mut server = Server::new();
    for seconds in [38, 79] {
        let absence = Duration::from_secs(seconds);
        assert!(
            read_after_an_outage(&mut server, absence).await,
            "{seconds}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn finished_processes_are_kept_at_least_as_long_as_a_session_without_a_connection() {
    let mut server = Server::with_times(HOUR, SECOND);
    assert!(read_after_an_outage(&mut server, HOUR - SECOND).await);
}

#[tokio::test(start_paused = true)]
async fn retention_of_finished_processes_is_configured() {
    let mut server = Server::with_times(SECOND, HOUR);
    let mut client = server.connect(None).await;
    let started = server.start(&mut client, &params("p")).await;
    let process = started.written.unwrap();
    client.hear_up_to(process.close()).await;
    sleep(HOUR - SECOND).await;
    assert!(is_readable(&mut client).await);
    sleep(SECOND * 2).await;
    assert!(!is_readable(&mut client).await);
}

#[tokio::test(start_paused = true)]
async fn initialize_tells_how_long_a_session_is_kept() {
    for (ttl, told) in [(Duration::ZERO, 0), (SECOND, 1000), (HOUR, 3_600_000)] {
        let server = Server::with_ttl(ttl);
        let client = server.connect(None).await;
        assert_eq!(client.session_ttl_ms, told);
    }
    let client = Server::new().connect(None).await;
    assert_eq!(client.session_ttl_ms, 80_000);
}
