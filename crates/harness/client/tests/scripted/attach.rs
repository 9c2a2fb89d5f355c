//! Server-owned processes: started, attached, released and found again.

use std::sync::Arc;

use exec_client::{client::ExecServerClient, error::ExecServerError};
use exec_env::{
    environment::{DisconnectReason, StartError, StartedProcess},
    process::{ExecProcess, ExecProcessEvent, OutputReadRequest, ProcessError},
};
use exec_wire::{
    error::{ErrorCode, RpcError},
    id::{OutputSeq, ProcessId},
    process::WriteStatus,
};
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::{
    scripted_connector::ConnectorControl,
    scripted_server::{ALL, ScriptedServer, command, events, numbers, session, within},
};

fn id(id: &str) -> ProcessId {
    ProcessId::new(id).unwrap()
}

/// Returns an entry of `process/list`. `p` runs `true` in the root directory.
pub(crate) fn summary(id: &str, running: bool) -> Value {
    json!({"processId": id, "argv": ["true"], "cwd": "file:///", "tty": false, "running": running,
        "exitCode": null, "startedAtMs": 7, "osPid": 42, "detached": true, "usage": null})
}

impl ScriptedServer {
    pub(crate) async fn list(&mut self, processes: Vec<Value>) {
        let list = self.expect("process/list").await;
        self.answer(&list, json!({ "processes": processes })).await;
    }

    /// Answers `process/attach` and returns the requested start.
    pub(crate) async fn attached(&mut self, id: &str, next: u64) -> u64 {
        let attach = self.expect("process/attach").await;
        assert_eq!(attach["params"]["processId"], id);
        let answer = json!({"nextSeq": next, "running": true});
        self.answer(&attach, answer).await;
        attach["params"]["afterSeq"].as_u64().unwrap()
    }

    pub(crate) async fn released(&mut self, id: &str) {
        let release = self.expect("process/release").await;
        assert_eq!(release["params"]["processId"], id);
        self.answer(&release, json!({})).await;
    }

    /// Attaches a client to process `p`, whose next event is `next`.
    pub(crate) async fn attach(
        &mut self,
        client: &ExecServerClient,
        after: Option<u64>,
        next: u64,
    ) -> Arc<dyn ExecProcess> {
        let accept = async {
            self.list(vec![summary("p", true)]).await;
            assert_eq!(self.attached("p", next).await, after.unwrap_or(0));
        };
        let attach = client.attach(id("p"), after.map(OutputSeq));
        let (attached, ()) = futures_util::join!(attach, accept);
        attached.unwrap()
    }

    /// Starts a server-owned process.
    pub(crate) async fn start_detached(
        &mut self,
        client: &ExecServerClient,
        id: &str,
    ) -> StartedProcess {
        let accept = async {
            let start = self.expect("process/start").await;
            assert_eq!(start["params"]["detached"], true);
            let started = json!({"processId": id, "osPid": 42, "startedAtMs": 7});
            self.send(json!({"method": "process/started", "params": started}))
                .await;
            self.answer(&start, json!({"processId": id})).await;
        };
        let (started, ()) = futures_util::join!(client.start_detached(command(id)), accept);
        started.unwrap()
    }
}

/// Lets a client with a lost session open session `t`.
async fn renew(connector: &mut ConnectorControl) -> ScriptedServer {
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    assert_eq!(initialize["params"]["resumeSessionId"], "s");
    server.refuse(&initialize, -32600, "unknown session").await;
    let mut server = connector.accept().await;
    let initialize = server.handshake(session("t")).await;
    assert_eq!(initialize["params"]["resumeSessionId"], Value::Null);
    server
}

#[tokio::test]
async fn dropped_handle_releases_a_detached_process() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.start_detached(&client, "p").await.process;
    assert_eq!(process.status().os_pid, Some(42));
    drop(process);
    server.released("p").await;
    let process = server.attach(&client, None, 1).await;
    drop(process);
    server.released("p").await;
    drop(client);
    assert!(within(server.0.reader.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn event_stream_keeps_its_process_attached() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.attach(&client, None, 1).await;
    let mut stream = process.follow(ALL);
    drop(process);
    server.output("p", 1, "YQ==").await;
    let event = within(stream.next()).await.unwrap();
    assert_eq!(event.seq(), Some(OutputSeq(1)));
    drop(stream);
    server.released("p").await;
}

#[tokio::test]
async fn events_beyond_the_retained_range_are_skipped() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.attach(&client, None, 60).await;
    for seq in [57, 59, 63] {
        server.output("p", seq, "YQ==").await;
    }
    server.exited("p", 64).await;
    server.closed("p", 65).await;
    assert_eq!(numbers(&events(&process).await), [57, 59, 63, 64, 65]);
    assert_eq!(process.status().next_seq, OutputSeq(66));
}

#[tokio::test]
async fn known_exit_is_replayed_without_repeating_output() {
    let (mut server, client) = ScriptedServer::connect().await;
    let accept = async {
        server.list(vec![summary("p", false)]).await;
        assert_eq!(server.attached("p", 5).await, 0, "the exit may be anywhere");
    };
    let attach = client.attach(id("p"), Some(OutputSeq(3)));
    let (process, ()) = futures_util::join!(attach, accept);
    let process = process.unwrap();
    assert_eq!(process.status().next_seq, OutputSeq(4));
    server.output("p", 1, "YQ==").await;
    server.exited("p", 2).await;
    server.output("p", 3, "YQ==").await;
    server.closed("p", 4).await;
    assert_eq!(numbers(&events(&process).await), [2, 4]);
    assert!(process.status().exit.is_some());
}

#[tokio::test]
async fn attaching_to_a_missing_process_fails() {
    let (mut server, client) = ScriptedServer::connect().await;
    let accept = async {
        server.list(vec![]).await;
        let attach = server.expect("process/attach").await;
        server.refuse(&attach, -32600, "unknown process id p").await;
    };
    let (attached, ()) = futures_util::join!(client.attach(id("p"), None), accept);
    assert_eq!(
        attached.unwrap_err(),
        ExecServerError::UnknownProcess(id("p"))
    );
    let accept = async {
        server.list(vec![summary("p", true)]).await;
        server.attached("p", 3).await;
    };
    let beyond = client.attach(id("p"), Some(OutputSeq(3)));
    let (attached, ()) = futures_util::join!(beyond, accept);
    let error = ExecServerError::NoSuchEvent {
        process: id("p"),
        after: OutputSeq(3),
        last: OutputSeq(2),
    };
    assert_eq!(attached.unwrap_err(), error);
    assert_eq!(
        error.to_string(),
        "process `p` has no event 3: its last event is 2"
    );
    server.released("p").await;
    let process = server.attach(&client, None, 1).await;
    let accept = server.list(vec![summary("p", true)]);
    let (second, ()) = futures_util::join!(client.attach(id("p"), None), accept);
    assert_eq!(second.unwrap_err(), ExecServerError::IdInUse(id("p")));
    drop(process);
}

#[tokio::test]
async fn stock_server_gets_no_attach_calls() {
    let (mut server, client) = ScriptedServer::connect_as(json!({"sessionId": "s"})).await;
    let started = within(client.start_detached(command("p"))).await;
    let Err(StartError::Refused { field, reason }) = started else {
        panic!("not refused")
    };
    assert_eq!(
        (field, &*reason),
        ("detached", "not supported by this server")
    );
    let unknown = |method: &str| {
        let text = format!("`{method}`: not supported by this server");
        ExecServerError::Remote(RpcError::new(ErrorCode::METHOD_NOT_FOUND, text))
    };
    let attached = within(client.attach(id("p"), None)).await;
    assert_eq!(attached.unwrap_err(), unknown("process/attach"));
    assert_eq!(
        within(client.processes()).await,
        Err(unknown("process/list"))
    );
    drop(client);
    assert!(within(server.0.reader.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn attached_process_survives_a_disconnect() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.attach(&client, None, 3).await;
    let mut stream = process.follow(ALL);
    server.output("p", 2, "YQ==").await;
    within(stream.next()).await.unwrap();
    let write = process.write(None, bytes::Bytes::from_static(b"a"));
    let first = server.expect("process/write").await;
    drop(server);
    let mut server = connector.resume().await;
    // It may have ended meanwhile, and another process may have its id.
    server.list(vec![summary("p", true)]).await;
    assert_eq!(
        server.attached("p", 4).await,
        2,
        "after the last received event"
    );
    let retried = server.expect("process/write").await;
    assert_eq!(retried["params"], first["params"]);
    server.answer(&retried, json!({"status": "accepted"})).await;
    assert_eq!(within(write).await, Ok(WriteStatus::Accepted));
    server.output("p", 2, "YQ==").await;
    server.output("p", 3, "YQ==").await;
    server.exited("p", 4).await;
    server.closed("p", 5).await;
    let remaining: Vec<_> = within(stream.collect()).await;
    assert_eq!(numbers(&remaining), [3, 4, 5]);
}

#[tokio::test]
async fn attached_process_survives_a_lost_session() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start_detached(&client, "p").await.process;
    let bound = server.start(&client, "bound").await.process;
    server.output("p", 1, "YQ==").await;
    let mut stream = process.follow(ALL);
    within(stream.next()).await.unwrap();
    let write = process.write(None, bytes::Bytes::from_static(b"a"));
    server.expect("process/write").await;
    drop(server);
    let mut server = renew(&mut connector).await;
    // The client looks the process up before it sends anything to it.
    server.list(vec![summary("p", true)]).await;
    assert_eq!(server.attached("p", 2).await, 1);
    let retried = server.expect("process/write").await;
    server.answer(&retried, json!({"status": "accepted"})).await;
    assert_eq!(within(write).await, Ok(WriteStatus::Accepted));
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    let remaining: Vec<_> = within(stream.collect()).await;
    assert_eq!(numbers(&remaining), [2, 3]);
    // Processes of the session are lost.
    let lost = events(&bound).await;
    assert!(
        matches!(
            lost[..],
            [ExecProcessEvent::Failed(ProcessError::Disconnected(
                DisconnectReason::Session(_)
            ))]
        ),
        "{lost:?}"
    );
}

/// Attaches a process and loses the session. Returns the error for a server that lists these
/// processes.
async fn after_a_restart(listed: Vec<Value>) -> (ScriptedServer, ProcessError) {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.attach(&client, None, 3).await;
    let write = process.write(None, bytes::Bytes::from_static(b"a"));
    server.expect("process/write").await;
    drop(server);
    let mut server = renew(&mut connector).await;
    server.list(listed).await;
    let events = events(&process).await;
    let [ExecProcessEvent::Failed(error)] = &events[..] else {
        panic!("expected a failure: {events:?}")
    };
    assert_eq!(within(write).await.unwrap_err(), *error);
    (server, error.clone())
}

#[tokio::test]
async fn process_unknown_to_a_restarted_server_fails() {
    let (_, error) = after_a_restart(vec![]).await;
    assert_eq!(
        error.to_string(),
        "process p failed: the server has forgotten it: unknown process id p (-32603)"
    );
}

#[tokio::test]
async fn other_process_with_the_same_id_is_left_alone() {
    let mut other = summary("p", true);
    other["startedAtMs"] = json!(8);
    let (mut server, error) = after_a_restart(vec![other]).await;
    assert_eq!(
        error.to_string(),
        "process p failed: the server has another process with this id (-32603)"
    );
    // The client neither writes to it nor terminates it.
    server.expect("process/release").await;
    assert!(within(server.0.reader.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn interrupted_start_is_found_again() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let starting = {
        let client = client.clone();
        tokio::spawn(async move { client.start_detached(command("p")).await })
    };
    server.expect("process/start").await;
    drop(server);
    let mut server = connector.resume().await;
    server.list(vec![summary("p", true)]).await;
    assert_eq!(server.attached("p", 1).await, 0);
    let started = within(starting).await.unwrap().unwrap();
    assert_eq!(started.process.status().started_at_ms, 7);
    server.output("p", 1, "YQ==").await;
    let mut stream = started.process.follow(ALL);
    assert_eq!(
        within(stream.next()).await.unwrap().seq(),
        Some(OutputSeq(1))
    );
}

#[tokio::test]
async fn interrupted_start_does_not_adopt_another_process() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    for listed in [None, Some(json!(["false"]))] {
        let starting = {
            let client = client.clone();
            tokio::spawn(async move { client.start_detached(command("p")).await })
        };
        server.expect("process/start").await;
        drop(server);
        server = connector.resume().await;
        let other = listed.map(|argv| {
            let mut other = summary("p", true);
            other["argv"] = argv;
            other
        });
        server.list(other.into_iter().collect()).await;
        let started = within(starting).await.unwrap();
        assert!(
            matches!(started, Err(StartError::Disconnected(_))),
            "{started:?}"
        );
    }
    drop(client);
    // Nothing was terminated that may belong to other clients.
    assert!(within(server.0.reader.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn abandoned_start_is_terminated() {
    let (mut server, client) = ScriptedServer::connect().await;
    let starting = {
        let client = client.clone();
        tokio::spawn(async move { client.start_detached(command("p")).await })
    };
    let start = server.expect("process/start").await;
    starting.abort();
    assert!(starting.await.unwrap_err().is_cancelled());
    server.answer(&start, json!({"processId": "p"})).await;
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "p");
    server.released("p").await;
}

#[tokio::test]
async fn attach_waits_for_the_pending_release() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.attach(&client, None, 10).await;
    drop(process);
    let release = server.expect("process/release").await;
    let attaching = {
        let client = client.clone();
        tokio::spawn(async move { client.attach(id("p"), None).await })
    };
    server.list(vec![summary("p", true)]).await;
    // Sent before the server saw the release.
    server.output("p", 9, "YQ==").await;
    server.answer(&release, json!({})).await;
    assert_eq!(server.attached("p", 10).await, 0);
    let process = within(attaching).await.unwrap().unwrap();
    server.output("p", 4, "YQ==").await;
    let mut stream = process.follow(ALL);
    assert_eq!(
        within(stream.next()).await.unwrap().seq(),
        Some(OutputSeq(4))
    );
}

#[tokio::test]
async fn read_merges_held_and_server_output() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.attach(&client, None, 1).await;
    let mut stream = process.follow(ALL);
    for seq in 1..=3 {
        server.output("p", seq, "YQ==").await;
        within(stream.next()).await.unwrap();
    }
    // The server no longer retains the first two, and the last has not arrived yet.
    for (max_bytes, is_complete) in [(None, true), (Some(2), false)] {
        let read = OutputReadRequest {
            max_bytes,
            ..OutputReadRequest::default()
        };
        let answer = async {
            let read = server.expect("process/read").await;
            server.page(&read, &[3, 4], 5).await;
        };
        let (page, ()) = futures_util::join!(within(process.read(read)), answer);
        let page = page.unwrap();
        let seqs: Vec<u64> = page.chunks.iter().map(|chunk| chunk.seq.0).collect();
        let expected: (&[u64], _) = if is_complete {
            (&[1, 2, 3, 4], 5)
        } else {
            (&[1, 2], 3)
        };
        assert_eq!((&*seqs, page.next_seq.0), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn renewed_session_has_its_own_recovery_window() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.attach(&client, None, 3).await;
    // The server takes long to come back, and has lost the session.
    connector.fail_attempts(150);
    drop(server);
    let mut server = renew(&mut connector).await;
    server.expect("process/list").await;
    // The connection breaks again.
    connector.fail_attempts(120);
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.handshake(session("t")).await;
    assert_eq!(initialize["params"]["resumeSessionId"], "t");
    server.list(vec![summary("p", true)]).await;
    assert_eq!(server.attached("p", 3).await, 0);
    server.exited("p", 1).await;
    server.closed("p", 2).await;
    assert_eq!(numbers(&events(&process).await), [1, 2]);
}
