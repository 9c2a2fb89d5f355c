//! Processes, and the shared behaviour of the connection.

use std::time::Duration;

use exec_client::{
    backend::RemoteBackend,
    client::{ExecServerClient, ExecServerClientConnectOptions},
    error::{ConnectError, ExecServerError, FaultParty},
};
use exec_env::{
    environment::{ExecBackend, StartError},
    process::{ExecProcessEvent as Event, OutputReadRequest, ProcessError},
};
use exec_transport::{link::DataEncoding, memory};
use exec_wire::{
    environment::ReadEnvironmentStatus,
    error::RpcError,
    id::{OutputSeq, SessionId},
    outgoing_message::OutgoingMessage,
    process::{TerminateMode, WaitUntil},
};
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::scripted_server::{
    LIMIT, ScriptedServer, command, events, numbers, server_closed, session,
};

#[tokio::test]
async fn mismatched_session_is_an_error() {
    let (client_link, server_link) = memory::pair();
    let mut server = ScriptedServer(server_link);
    let options = ExecServerClientConnectOptions {
        resume_session_id: Some(SessionId::new("mine")),
        ..ExecServerClientConnectOptions::default()
    };
    let handshake = async {
        let initialize = server.expect("initialize").await;
        assert_eq!(initialize["params"]["resumeSessionId"], "mine");
        server.answer(&initialize, session("another")).await;
    };
    let (client, ()) =
        futures_util::join!(ExecServerClient::connect(client_link, options), handshake);
    let wrong = ConnectError::WrongSession {
        requested: SessionId::new("mine"),
        resumed: SessionId::new("another"),
    };
    assert_eq!(client.unwrap_err(), wrong.into());
}

#[tokio::test]
async fn early_and_unordered_events_are_followed_in_order() {
    let (mut server, client) = ScriptedServer::connect().await;
    let backend = RemoteBackend::new(client);
    let start = backend.start(command("p"));
    let respond = async {
        let start = server.expect("process/start").await;
        server.exited("p", 2).await;
        let read = server.expect("process/read").await;
        assert_eq!(read["params"]["afterSeq"], 0);
        server.output("p", 1, "YQ==").await;
        server.closed("p", 3).await;
        server.answer(&start, json!({"processId": "p"})).await;
        // The gap is already filled, so the page brings nothing new.
        server
            .answer(
                &read,
                json!({"chunks": [{"seq": 1, "stream": "stdout", "chunk": "YQ=="}],
            "nextSeq": 4, "exited": true, "exitCode": 0, "closed": true}),
            )
            .await;
    };
    let (started, ()) = futures_util::join!(start, respond);
    let events = events(&started.unwrap().process).await;
    assert_eq!(numbers(&events), [1, 2, 3]);
    assert!(matches!(&events[1], Event::Exited(_, exit) if exit.signal == Some("SIGKILL")));
}

#[tokio::test]
async fn immediate_follower_gets_output_beyond_the_retained_range() {
    let (mut server, client) = ScriptedServer::connect().await;
    let backend = RemoteBackend::new(client);
    let following = tokio::spawn(async move {
        let started = backend.start(command("p")).await.unwrap();
        events(&started.process).await
    });
    let start = server.expect("process/start").await;
    let chunk = "YWFh".repeat(16 << 10);
    let mut send = |message: Value| {
        let text = message.to_string().into_bytes();
        server
            .0
            .writer
            .push(OutgoingMessage::Text(text), DataEncoding::Text);
    };
    send(json!({"id": start["id"], "result": {"processId": "p"}}));
    for seq in 1..=40 {
        let params = json!({"processId": "p", "seq": seq, "stream": "stdout", "chunk": chunk});
        send(json!({"method": "process/output", "params": params}));
    }
    send(
        json!({"method": "process/exited", "params": {"processId": "p", "seq": 41, "exitCode": 0}}),
    );
    send(json!({"method": "process/closed", "params": {"processId": "p", "seq": 42}}));
    server.0.writer.flush().await.unwrap();
    let events = timeout(LIMIT, following).await.unwrap().unwrap();
    assert_eq!(numbers(&events), (1..=42).collect::<Vec<_>>());
}

#[tokio::test]
async fn lost_events_fail_only_their_process() {
    let (mut server, client) = ScriptedServer::connect().await;
    let lost = server.start(&client, "lost").await.process;
    let other = server.start(&client, "other").await.process;
    server.output("lost", 5, "YQ==").await;
    let read = server.expect("process/read").await;
    server
        .answer(
            &read,
            json!({"chunks": [], "nextSeq": 6, "exited": false, "exitCode": null,
        "closed": false}),
        )
        .await;
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "lost");
    let text = "process lost failed: events 1 to 4 are lost";
    let error = ProcessError::from(RpcError::internal(text));
    assert_eq!(events(&lost).await, [Event::Failed(error.clone())]);
    let failure = lost.signal(exec_wire::process::ProcessSignal::Kill).await;
    assert_eq!(failure, Err(error));
    server.exited("other", 1).await;
    server.closed("other", 2).await;
    assert_eq!(numbers(&events(&other).await), [1, 2]);
}

#[tokio::test]
async fn disconnect_fails_everything_immediately() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.start(&client, "p").await.process;
    let pending = process.wait(WaitUntil::Exited, None);
    server.expect("process/wait").await;
    drop(server);
    let disconnected = ProcessError::Disconnected(server_closed());
    assert_eq!(
        timeout(LIMIT, pending).await.unwrap().unwrap_err(),
        disconnected.clone()
    );
    timeout(LIMIT, client.closed()).await.unwrap();
    assert_eq!(
        events(&process).await,
        [Event::Failed(disconnected.clone())]
    );
    let outcomes = [
        process.read(OutputReadRequest::default()).await.map(drop),
        process.write(None, bytes::Bytes::new()).await.map(drop),
        process.close_stdin(None).await.map(drop),
        process.terminate(TerminateMode::Force).await.map(drop),
        process.wait(WaitUntil::Closed, None).await.map(drop),
        process.snapshot().await.map(drop),
    ];
    for outcome in outcomes {
        assert_eq!(outcome, Err(disconnected.clone()));
    }
    let started = RemoteBackend::new(client.clone()).start(command("q")).await;
    assert!(matches!(started, Err(StartError::Disconnected(reason)) if reason == server_closed()));
    let status = client.call(ReadEnvironmentStatus).await;
    let error = ExecServerError::Disconnected(server_closed());
    assert_eq!(error.fault(), FaultParty::Transport);
    assert_eq!(status, Err(error));
}

#[tokio::test]
async fn dropping_the_last_handle_terminates_the_process() {
    let (mut server, client) = ScriptedServer::connect().await;
    let started = server.start(&client, "p").await;
    let clone = started.clone();
    drop(started);
    assert!(client.call(ReadEnvironmentStatus).now_or_never().is_none());
    server.expect("environment/status").await;
    drop(clone);
    let terminate = server.expect("process/terminate").await;
    assert_eq!(
        terminate["params"],
        json!({"processId": "p", "mode": {"type": "force"}})
    );
}

#[tokio::test]
async fn process_is_terminated_before_the_connection_closes() {
    let (mut server, client) = ScriptedServer::connect().await;
    let started = server.start(&client, "p").await;
    drop(client);
    drop(started);
    server.expect("process/terminate").await;
    let end = timeout(LIMIT, server.0.reader.next()).await.unwrap();
    assert!(matches!(end, Ok(None)));
}

#[tokio::test]
async fn dropped_start_is_terminated_when_answered() {
    let (mut server, client) = ScriptedServer::connect().await;
    let backend = RemoteBackend::new(client.clone());
    let mut starting = backend.start(command("p"));
    assert!((&mut starting).now_or_never().is_none());
    let start = server.expect("process/start").await;
    drop(starting);
    server.expect("process/terminate").await;
    // The process had not started yet.
    server.answer(&start, json!({"processId": "p"})).await;
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "p");
}

#[tokio::test]
async fn id_in_use_is_rejected() {
    let (mut server, client) = ScriptedServer::connect().await;
    let _first = server.start(&client, "p").await;
    let second = RemoteBackend::new(client).start(command("p")).await;
    assert!(
        matches!(
            second,
            Err(StartError::Refused {
                field: "processId",
                ..
            })
        ),
        "{second:?}"
    );
}

#[tokio::test]
async fn process_forgotten_by_the_server_stays_readable() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.start(&client, "p").await.process;
    server.output("p", 1, "YQ==").await;
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    events(&process).await;
    let forget = async {
        let read = server.expect("process/read").await;
        let error = json!({"code": -32600, "message": "unknown process id p"});
        server.send(json!({"id": read["id"], "error": error})).await;
    };
    let (page, ()) = futures_util::join!(process.read(OutputReadRequest::default()), forget);
    let page = page.unwrap();
    assert_eq!(
        (page.chunks.len(), page.next_seq, page.closed),
        (1, OutputSeq(4), true)
    );
}

#[tokio::test]
async fn unknown_notifications_are_ignored_and_unknown_requests_rejected() {
    let (mut server, client) = ScriptedServer::connect().await;
    server
        .send(json!({"method": "no/such", "params": {"a": 1}}))
        .await;
    server.output("nobody", 1, "YQ==").await;
    server
        .send(json!({"id": "x", "method": "network/unknown"}))
        .await;
    let refusal = timeout(LIMIT, server.0.reader.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let refusal: Value = serde_json::from_slice(&refusal).unwrap();
    assert_eq!(
        (&refusal["id"], &refusal["error"]["code"]),
        (&json!("x"), &json!(-32601))
    );
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn host_info_comes_from_the_handshake_or_a_call() {
    let (_server, client) = ScriptedServer::connect().await;
    assert_eq!(client.info().await.unwrap().shell.name, "sh");
    let (mut server, client) = ScriptedServer::connect_as(json!({"sessionId": "s"})).await;
    let info = client.info();
    let respond = async {
        let request = server.expect("environment/info").await;
        assert_eq!(request["params"], json!(null));
        let info = json!({"shell": {"name": "sh", "path": "/bin/sh"}, "executorVersion": "1",
            "capabilities": {}});
        server.answer(&request, info).await;
    };
    let (info, ()) = futures_util::join!(info, respond);
    assert_eq!(info.unwrap().shell.name, "sh");
    let begin = tokio::time::Instant::now();
    let error = ExecServerError::Timeout {
        method: "environment/info",
        limit: Duration::from_secs(30),
    };
    assert_eq!(error.fault(), FaultParty::Peer);
    assert_eq!(client.info().await, Err(error));
    let error = ExecServerError::Timeout {
        method: "environment/status",
        limit: Duration::from_secs(10),
    };
    assert_eq!(client.status().await, Err(error));
    assert_eq!(begin.elapsed(), Duration::from_secs(40));
}
