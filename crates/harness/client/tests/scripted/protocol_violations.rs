//! Protocol violations by the server: only the affected part fails, with the reason.

use std::sync::Arc;

use exec_client::client::ExecServerClient;
use exec_env::{
    environment::DisconnectReason,
    process::{ExecProcess, ExecProcessEvent as Event, OutputReadRequest, ProcessError},
};
use exec_transport::link::DataEncoding;
use exec_wire::{error::RpcError, outgoing_message::OutgoingMessage, process::WaitUntil};
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::{
    scripted_connector::ConnectorControl,
    scripted_server::{ALL, LIMIT, ScriptedServer, events, numbers, within},
};

/// Starts two processes.
async fn two(server: &mut ScriptedServer, client: &ExecServerClient) -> [Arc<dyn ExecProcess>; 2] {
    let bad = server.start(client, "bad").await.process;
    [bad, server.start(client, "good").await.process]
}

/// Asserts that one process fails with this reason, while another continues on the same connection.
async fn assert_fails_alone(message: Value, reason: &str) {
    let (mut server, client) = ScriptedServer::connect().await;
    let [bad, good] = two(&mut server, &client).await;
    server.send(message).await;
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "bad");
    let text = format!("process bad failed: {reason}");
    let error = ProcessError::from(RpcError::internal(text));
    assert_eq!(events(&bad).await, [Event::Failed(error)]);
    // Further events of the failed process are ignored.
    server.output("bad", 1, "YQ==").await;
    server.answer(&terminate, json!({"running": true})).await;
    server.exited("good", 1).await;
    server.closed("good", 2).await;
    assert_eq!(numbers(&events(&good).await), [1, 2]);
}

fn output(params: Value) -> Value {
    json!({"method": "process/output", "params": params})
}

#[tokio::test]
async fn malformed_event_fails_its_process() {
    assert_fails_alone(
        output(json!({"processId": "bad"})),
        "invalid `process/output` notification: missing field `seq`",
    )
    .await;
    assert_fails_alone(
        output(json!({"processId": "bad", "seq": "1", "stream": "stdout", "chunk": ""})),
        "invalid `process/output` notification: seq: invalid type: string \"1\", expected u64",
    )
    .await;
    assert_fails_alone(
        output(json!({"processId": "bad", "seq": 1, "stream": "stdout"})),
        "invalid `process/output` notification: missing field `chunk`",
    )
    .await;
    assert_fails_alone(
        json!({"method": "process/exited", "params": {"processId": "bad", "seq": 1}}),
        "invalid `process/exited` notification: missing field `exitCode`",
    )
    .await;
}

#[tokio::test]
async fn oversized_chunk_fails_its_process() {
    let chunk = "A".repeat(((1 << 20) + 3) / 3 * 4);
    assert_fails_alone(
        output(json!({"processId": "bad", "seq": 1, "stream": "stdout", "chunk": chunk})),
        "event 1 is larger than 1048576 bytes",
    )
    .await;
}

#[tokio::test]
async fn close_before_exit_fails_its_process() {
    assert_fails_alone(
        json!({"method": "process/closed", "params": {"processId": "bad", "seq": 1}}),
        "event 1 is out of order",
    )
    .await;
}

#[tokio::test]
async fn malformed_page_fails_its_process() {
    let (mut server, client) = ScriptedServer::connect().await;
    let [bad, good] = two(&mut server, &client).await;
    server.output("bad", 2, "YQ==").await;
    let read = server.expect("process/read").await;
    server.answer(&read, json!({"chunks": 1})).await;
    server.expect("process/terminate").await;
    assert!(matches!(
        &events(&bad).await[..],
        [Event::Failed(ProcessError::Remote(error))]
            if error.message.contains("result of `process/read`")
    ));
    server.exited("good", 1).await;
    server.closed("good", 2).await;
    assert_eq!(numbers(&events(&good).await), [1, 2]);
}

#[tokio::test]
async fn unexpected_messages_are_ignored() {
    let (mut server, client) = ScriptedServer::connect().await;
    let [_, good] = two(&mut server, &client).await;
    for message in [
        json!({"method": "no/such", "params": [1]}),
        json!({"id": 999, "result": {}}),
        json!({"id": -1, "error": {"code": -32600, "message": "what?"}}),
        json!({"id": "x", "result": null}),
        output(json!({"processId": "nobody", "seq": 1, "stream": "stdout", "chunk": ""})),
        output(json!({"processId": "nobody"})),
        json!({"method": "network/policyDecision", "params": 7}),
    ] {
        server.send(message).await;
    }
    server.exited("good", 1).await;
    server.exited("good", 1).await;
    server.closed("good", 2).await;
    server.closed("good", 2).await;
    assert_eq!(numbers(&events(&good).await), [1, 2]);
}

/// Messages that cannot be attributed to a process.
const UNEXPECTED: [(&str, &str); 6] = [
    ("{", "server sent a malformed message: "),
    ("[]", "server sent a malformed message: "),
    (r#"{"id":1}"#, "server sent a malformed message: missing"),
    (
        r#"{"id":1,"id":2,"result":0}"#,
        "server sent a malformed message: ",
    ),
    (
        r#"{"method":"process/output","params":{"seq":1}}"#,
        "invalid `process/output` notification: ",
    ),
    ("\u{1}\0\u{1}", "server sent a malformed message: binary"),
];

#[tokio::test]
async fn malformed_message_ends_the_connection() {
    for (message, reason) in UNEXPECTED {
        let (mut server, client) = ScriptedServer::connect().await;
        let [bad, good] = two(&mut server, &client).await;
        server
            .push(OutgoingMessage::Text(message.into()), DataEncoding::Text)
            .await;
        for process in [bad, good] {
            let received = events(&process).await;
            assert!(
                matches!(&received[..],
                    [Event::Failed(ProcessError::Disconnected(DisconnectReason::Protocol(text)))]
                    if text.starts_with(reason)),
                "{received:?}"
            );
        }
        within(client.closed()).await;
    }
}

#[tokio::test]
async fn connection_ended_by_a_malformed_message_is_recovered() {
    for (message, _) in UNEXPECTED {
        let (mut connector, mut server, client) = ConnectorControl::connect().await;
        let process = server.start(&client, "p").await.process;
        server
            .push(OutgoingMessage::Text(message.into()), DataEncoding::Text)
            .await;
        let mut server = connector.resume().await;
        let read = server.expect("process/read").await;
        server.page(&read, &[1], 2).await;
        server.exited("p", 2).await;
        server.closed("p", 3).await;
        assert_eq!(numbers(&events(&process).await), [1, 2, 3]);
    }
}

#[tokio::test]
async fn repeated_protocol_violations_end_the_session() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    for _ in 0..2 {
        server
            .push(OutgoingMessage::Text("{".into()), DataEncoding::Text)
            .await;
        server = connector.resume().await;
        let read = server.expect("process/read").await;
        server.page(&read, &[], 1).await;
    }
    server
        .push(OutgoingMessage::Text("{".into()), DataEncoding::Text)
        .await;
    assert!(matches!(
        &events(&process).await[..],
        [Event::Failed(ProcessError::Disconnected(
            DisconnectReason::Protocol(_)
        ))]
    ));
}

/// Asserts that this page after a resume fails its process with this reason.
async fn assert_page_fails(page: Value, reason: &str) {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    for seq in 1..=2 {
        server.output("p", seq, "YQ==").await;
    }
    let received: Vec<_> = within(process.follow(ALL).take(2).collect()).await;
    assert_eq!(numbers(&received), [1, 2]);
    drop(server);
    let mut server = connector.resume().await;
    server.output("p", 4, "YQ==").await;
    let read = server.expect("process/read").await;
    server.answer(&read, page).await;
    server.expect("process/terminate").await;
    let text = format!("process p failed: {reason}");
    let error = ProcessError::from(RpcError::internal(text));
    assert_eq!(events(&process).await.last(), Some(&Event::Failed(error)));
}

#[tokio::test]
async fn contradictory_page_fails_its_process() {
    let page = |chunks: &[u64], next: u64, closed: bool| {
        let chunk = |seq: &u64| json!({"seq": seq, "stream": "stdout", "chunk": "YQ=="});
        let chunks: Vec<_> = chunks.iter().map(chunk).collect();
        let code = closed.then_some(0);
        json!({"chunks": chunks, "nextSeq": next, "exited": closed, "exitCode": code,
            "closed": closed, "failure": null, "sandboxDenied": false})
    };
    // The server restarts the numbering.
    let text = "`process/read` ends at event 0, but event 2 was received";
    assert_page_fails(page(&[], 1, false), text).await;
    // The close has the number of received output.
    let text = "event 4 is out of order";
    assert_page_fails(page(&[], 5, true), text).await;
}

#[tokio::test]
async fn unfillable_gap_is_not_read_forever() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.start(&client, "p").await.process;
    server.output("p", 3, "YQ==").await;
    let read = server.expect("process/read").await;
    server.page(&read, &[], 1).await;
    server.expect("process/terminate").await;
    let text = "process p failed: `process/read` ends at event 0, but event 3 was received";
    let error = ProcessError::from(RpcError::internal(text));
    assert_eq!(events(&process).await, [Event::Failed(error)]);
}

#[tokio::test]
async fn waiters_of_a_failed_process_get_its_error() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.start(&client, "p").await.process;
    let wait = process.wait(WaitUntil::Closed, None);
    let read = process.read(OutputReadRequest {
        wait: LIMIT * 2,
        ..OutputReadRequest::default()
    });
    server.expect("process/wait").await;
    server.expect("process/read").await;
    server.send(output(json!({"processId": "p"}))).await;
    server.expect("process/terminate").await;
    let text = "process p failed: invalid `process/output` notification: missing field `seq`";
    let error = ProcessError::from(RpcError::internal(text));
    assert_eq!(within(wait).await, Err(error.clone()));
    assert_eq!(within(read).await, Err(error));
}
