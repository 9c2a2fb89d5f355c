//! Retention: unacknowledged output, finished processes and detached sessions.

use std::time::Duration;

use exec_test_support::fake_process::FakeProcess;
use exec_wire::limits;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::test_client::{Client, RETAINED_BYTES, Server, end, write_chunks};

const GRANT: &[&str] = &["acknowledge"];
/// Number of 1 KiB chunks that pause a process with held output.
const PAUSING_CHUNKS: usize = limits::UNACKNOWLEDGED_BYTES / 1024;
/// Longer than every retention time.
const HOUR: Duration = Duration::from_secs(3600);

fn params(id: &str) -> Value {
    json!({"processId": id, "argv": ["write"], "cwd": "file:///", "env": {}, "tty": false})
}

async fn start(server: &mut Server, client: &mut Client, params: &Value) -> FakeProcess {
    server.start(client, params).await.process
}

/// Writes enough to pause a process with held output, and receives all of it.
async fn write_until_paused(client: &mut Client, process: &FakeProcess) -> u64 {
    let last = write_chunks(process, PAUSING_CHUNKS);
    client.receive_until(last).await;
    last
}

#[tokio::test(start_paused = true)]
async fn unacknowledged_output_is_held_and_pauses_the_process() {
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    let last = write_until_paused(&mut client, &process).await;
    assert!(process.is_paused());
    assert_eq!(client.readable("p", 0).await, PAUSING_CHUNKS);
    client.acknowledge("p", 1).await;
    assert!(!process.is_paused());
    assert_eq!(client.readable("p", 0).await, PAUSING_CHUNKS - 1);
    // A lower sequence number, an unknown process, and a future sequence number.
    client.acknowledge("p", 0).await;
    client.acknowledge("nobody", 5).await;
    assert_eq!(client.readable("p", 0).await, PAUSING_CHUNKS - 1);
    client.acknowledge("p", u64::MAX).await;
    assert_eq!(process.retained_bytes(), RETAINED_BYTES);
    let more = write_chunks(&process, PAUSING_CHUNKS);
    client.receive_until(more).await;
    assert!(process.is_paused());
    assert_eq!(client.readable("p", last).await, PAUSING_CHUNKS);
}

#[tokio::test(start_paused = true)]
async fn output_is_not_held_without_the_extension() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    write_until_paused(&mut client, &process).await;
    assert!(!process.is_paused());
    assert_eq!(process.retained_bytes(), RETAINED_BYTES);
    client
        .send(json!({"method": "process/acknowledge", "params": {"processId": "p", "seq": 1}}))
        .await;
    let refusal = client.receive().await;
    assert_eq!(refusal["id"], -1);
    assert_eq!(refusal["error"]["code"], -32600, "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn output_of_detached_processes_and_command_exec_is_not_held() {
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    let mut detached = params("p");
    detached["detached"] = true.into();
    let process = start(&mut server, &mut client, &detached).await;
    write_until_paused(&mut client, &process).await;
    assert!(!process.is_paused());
    assert_eq!(process.retained_bytes(), RETAINED_BYTES);
    let mut first = params("q");
    first["cwd"] = "/".into();
    client.call("command/exec", &first).await;
    let process = server.started().await.process;
    write_chunks(&process, PAUSING_CHUNKS);
    for _ in 0..PAUSING_CHUNKS {
        assert_eq!(client.receive().await["method"], "command/exec/outputDelta");
    }
    assert!(!process.is_paused());
    assert_eq!(process.retained_bytes(), RETAINED_BYTES);
}

#[tokio::test(start_paused = true)]
async fn unacknowledged_output_is_held_for_a_limited_time_without_a_connection() {
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    write_until_paused(&mut client, &process).await;
    drop(client);
    sleep(limits::UNACKNOWLEDGED_RETENTION - Duration::from_secs(1)).await;
    assert!(process.is_paused());
    assert_eq!(process.retained_bytes(), PAUSING_CHUNKS * 1024);
    sleep(Duration::from_secs(2)).await;
    assert!(!process.is_paused());
    assert_eq!(process.retained_bytes(), RETAINED_BYTES);
}

#[tokio::test(start_paused = true)]
async fn client_that_resumes_in_time_finds_all_unacknowledged_output() {
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    let last = write_until_paused(&mut client, &process).await;
    client.acknowledge("p", 7).await;
    let session = client.session.clone();
    // Each absence starts a fresh period.
    for _ in 0..3 {
        drop(client);
        sleep(limits::UNACKNOWLEDGED_RETENTION * 2 / 3).await;
        client = server.connect_with(Some(&session), GRANT).await;
    }
    sleep(limits::UNACKNOWLEDGED_RETENTION * 2).await;
    assert_eq!(client.readable("p", 7).await, PAUSING_CHUNKS - 7);
    write_chunks(&process, 7);
    assert!(process.is_paused());
    client.receive_until(last + 7).await;
    client.acknowledge("p", last).await;
    assert!(!process.is_paused());
    assert_eq!(client.readable("p", last).await, 7);
}

#[tokio::test(start_paused = true)]
async fn resuming_without_the_extension_releases_held_output() {
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    write_until_paused(&mut client, &process).await;
    let session = client.session.clone();
    drop(client);
    sleep(Duration::from_secs(1)).await;
    assert!(process.is_paused());
    let _client = server.connect(Some(&session)).await;
    assert!(!process.is_paused());
    assert_eq!(process.retained_bytes(), RETAINED_BYTES);
}

#[tokio::test(start_paused = true)]
async fn extension_granted_on_resume_holds_retained_and_new_output() {
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect(None).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    let last = write_until_paused(&mut client, &process).await;
    let session = client.session.clone();
    drop(client);
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect_with(Some(&session), GRANT).await;
    assert!(!process.is_paused());
    let retained = RETAINED_BYTES / 1024;
    let more = write_chunks(&process, PAUSING_CHUNKS - retained);
    client.receive_until(more).await;
    assert!(process.is_paused());
    assert_eq!(client.readable("p", 0).await, PAUSING_CHUNKS);
    // After too long an absence the held output is released, and holding starts anew.
    drop(client);
    sleep(limits::UNACKNOWLEDGED_RETENTION * 2).await;
    assert_eq!(process.retained_bytes(), RETAINED_BYTES);
    let mut client = server.connect_with(Some(&session), GRANT).await;
    let end = write_chunks(&process, 1);
    client.receive_until(end).await;
    assert_eq!(client.readable("p", last).await, retained + 1);
}

#[tokio::test(start_paused = true)]
async fn finished_process_does_not_expire_before_it_is_acknowledged() {
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    write_chunks(&process, 10);
    let close = end(&process);
    client.receive_until(close).await;
    sleep(limits::CLOSED_RETENTION * 4).await;
    assert_eq!(client.readable("p", 0).await, 10);
    client.acknowledge("p", close).await;
    assert_eq!(process.retained_bytes(), RETAINED_BYTES);
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
async fn fully_acknowledged_process_is_not_held_again_on_resume() {
    let mut server = Server::with_ttl(HOUR);
    let mut client = server.connect_with(None, GRANT).await;
    let process = start(&mut server, &mut client, &params("p")).await;
    write_chunks(&process, 10);
    let close = end(&process);
    client.receive_until(close).await;
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
async fn finished_processes_are_limited_and_acknowledged_ones_are_evicted_first() {
    let most = limits::FINISHED_OUTPUT_BYTES / limits::UNACKNOWLEDGED_BYTES;
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    let mut finish = async |id: usize, client: &mut Client| {
        let process = start(&mut server, client, &params(&id.to_string())).await;
        // Process 1 writes less, to compensate for the arguments of all processes.
        write_chunks(
            &process,
            if id == 1 {
                PAUSING_CHUNKS - 1
            } else {
                PAUSING_CHUNKS
            },
        );
        let close = end(&process);
        client.receive_until(close).await;
        close
    };
    let mut closes = Vec::new();
    for id in 0..most {
        closes.push(finish(id, &mut client).await);
    }
    let is_known = async |client: &mut Client, id: usize| {
        let params = json!({"processId": id.to_string(), "maxBytes": 1});
        client.call("process/read", &params).await["result"].is_object()
    };
    // Releasing the output of process 5 does not free enough memory, so it is evicted, and no
    // other.
    client.acknowledge("5", closes[5]).await;
    finish(most, &mut client).await;
    assert!(!is_known(&mut client, 5).await);
    assert!(is_known(&mut client, 0).await);
    // All others are unacknowledged, so the oldest is evicted.
    finish(most + 1, &mut client).await;
    assert!(!is_known(&mut client, 0).await);
    assert!(is_known(&mut client, 1).await);
}

#[tokio::test(start_paused = true)]
async fn arguments_of_finished_processes_count_towards_the_memory_limit() {
    let argument = "x".repeat(limits::FINISHED_OUTPUT_BYTES / 8);
    let mut server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    for id in 0..8 {
        let mut params = params(&id.to_string());
        params["argv"] = json!(["write", argument]);
        let process = start(&mut server, &mut client, &params).await;
        client.receive_until(end(&process)).await;
    }
    for (id, known) in [("0", false), ("1", true)] {
        let page = client.call("process/read", &json!({"processId": id})).await;
        assert_eq!(page["result"].is_object(), known, "{id}: {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_releases_output_held_for_absent_clients() {
    let mut server = Server::with_ttl(HOUR);
    let mut attached = server.connect_with(None, GRANT).await;
    let mut detached = server.connect_with(None, GRANT).await;
    let watched = start(&mut server, &mut attached, &params("p")).await;
    let unwatched = start(&mut server, &mut detached, &params("q")).await;
    write_until_paused(&mut attached, &watched).await;
    write_until_paused(&mut detached, &unwatched).await;
    drop(detached);
    sleep(Duration::from_secs(1)).await;
    assert!(unwatched.is_paused());
    let service = server.service.clone();
    tokio::spawn(async move { service.shut_down(HOUR).await });
    sleep(Duration::from_secs(1)).await;
    assert!(!unwatched.is_paused());
    assert!(watched.is_paused(), "its client may still acknowledge");
}

/// More messages than a memory link holds.
const UNREAD_MESSAGES: usize = 100;

/// Runs a process to its end, with more events than fit into the link. Returns the last number.
async fn end_with_unread_events(server: &mut Server, client: &mut Client) -> u64 {
    let process = start(server, client, &params("p")).await;
    for _ in 0..UNREAD_MESSAGES {
        process.print("x").unwrap();
    }
    end(&process)
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_until_a_reading_client_has_the_last_events() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let closed = end_with_unread_events(&mut server, &mut client).await;
    let service = server.service.clone();
    let stopped = tokio::spawn(async move { service.shut_down(HOUR).await });
    sleep(Duration::from_millis(100)).await;
    assert!(!stopped.is_finished(), "most events are not sent");
    client.receive_until(closed).await;
    stopped.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_long_for_a_client_that_does_not_read() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    end_with_unread_events(&mut server, &mut client).await;
    let begin = Instant::now();
    server.service.shut_down(HOUR).await;
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn malformed_acknowledgement_is_an_error_and_the_connection_continues() {
    let server = Server::new();
    let mut client = server.connect_with(None, GRANT).await;
    for params in [
        json!({"processId": "p"}),
        json!({"processId": "p", "seq": "1"}),
        json!(null),
    ] {
        client
            .send(json!({"method": "process/acknowledge", "params": params}))
            .await;
        let refusal = client.receive().await;
        assert_eq!(refusal["id"], -1);
        assert_eq!(refusal["error"]["code"], -32602, "{refusal}");
    }
    let status = client.call("environment/status", &json!({})).await;
    assert_eq!(status["result"]["status"], "ready");
}

impl Client {
    /// Receives consecutive events of one process up to this sequence number.
    pub(crate) async fn receive_until(&mut self, last: u64) {
        let mut before = None;
        loop {
            let seq = self.receive().await["params"]["seq"].as_u64().unwrap();
            assert!(before.is_none_or(|before| seq == before + 1), "{seq}");
            before = Some(seq);
            if seq == last {
                return;
            }
        }
    }

    /// Acknowledges and waits until the server has processed it.
    async fn acknowledge(&mut self, id: &str, seq: u64) {
        let params = json!({"processId": id, "seq": seq});
        self.send(json!({"method": "process/acknowledge", "params": params}))
            .await;
        self.call("environment/status", &json!({})).await;
    }

    /// Returns the number of readable chunks after a sequence number.
    async fn readable(&mut self, id: &str, after: u64) -> usize {
        let params = json!({"processId": id, "afterSeq": after});
        let page = self.call("process/read", &params).await;
        page["result"]["chunks"].as_array().unwrap().len()
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Returns whether a process is still readable.
async fn is_readable(client: &mut Client) -> bool {
    let read = client
        .call("process/read", &json!({"processId": "p"}))
        .await;
    read["result"].is_object()
}

/// Runs a process that ends while its client is absent for `absence`. Returns whether it is
/// readable afterwards.
async fn is_readable_after_outage(server: &mut Server, absence: Duration) -> bool {
    let mut client = server.connect(None).await;
    let started = server.start(&mut client, &params("p")).await;
    let session = client.session.clone();
    drop(client);
    sleep(SECOND).await;
    let process = started.process;
    write_chunks(&process, 1);
    end(&process);
    sleep(absence - SECOND).await;
    let mut client = server.connect(Some(&session)).await;
    is_readable(&mut client).await
}

#[tokio::test(start_paused = true)]
async fn process_that_ends_during_an_outage_is_readable_after_resume() {
    let mut server = Server::new();
    for seconds in [38, 79] {
        let absence = Duration::from_secs(seconds);
        assert!(
            is_readable_after_outage(&mut server, absence).await,
            "{seconds}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn finished_processes_are_retained_at_least_as_long_as_a_detached_session() {
    let mut server = Server::with_retention(HOUR, SECOND);
    assert!(is_readable_after_outage(&mut server, HOUR - SECOND).await);
}

#[tokio::test(start_paused = true)]
async fn retention_of_finished_processes_is_configurable() {
    let mut server = Server::with_retention(SECOND, HOUR);
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p")).await.process;
    client.receive_until(end(&process)).await;
    sleep(HOUR - SECOND).await;
    assert!(is_readable(&mut client).await);
    sleep(SECOND * 2).await;
    assert!(!is_readable(&mut client).await);
}

#[tokio::test(start_paused = true)]
async fn initialize_returns_the_session_ttl() {
    for (ttl, ttl_ms) in [(Duration::ZERO, 0), (SECOND, 1000), (HOUR, 3_600_000)] {
        let server = Server::with_ttl(ttl);
        let client = server.connect(None).await;
        assert_eq!(client.session_ttl_ms, ttl_ms);
    }
    let client = Server::new().connect(None).await;
    assert_eq!(client.session_ttl_ms, 80_000);
}
