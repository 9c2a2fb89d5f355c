//! Servers that break promises: only what is concerned fails, and says which promise it was.

use std::sync::Arc;

use exec_client::client::ExecServerClient;
use exec_env::{
    disconnect::Disconnect,
    process::{ExecProcess, ExecProcessEvent as Event, ProcessError},
};
use exec_transport::link::Encoding;
use exec_wire::{error::RpcError, outgoing::Outgoing};
use serde_json::{Value, json};

use crate::{
    doors::House,
    server::{Server, events, numbers, within},
};

/// Starts two processes.
async fn two(server: &mut Server, client: &ExecServerClient) -> [Arc<dyn ExecProcess>; 2] {
    let bad = server.start(client, "bad").await.process;
    [bad, server.start(client, "good").await.process]
}

/// One process fails, for a reason; the other goes on, on the same connection.
async fn fails_alone(say: Value, reason: &str) {
    let (mut server, client) = Server::connect().await;
    let [bad, good] = two(&mut server, &client).await;
    server.say(say).await;
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "bad");
    let text = format!("process bad is given up: {reason}");
    let error = ProcessError::from(RpcError::internal(text));
    assert_eq!(events(&bad).await, [Event::Failed(error)]);
    // Whatever else comes of it is nobody's concern.
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
async fn wrong_types_in_an_event_fail_its_process() {
    fails_alone(
        output(json!({"processId": "bad"})),
        "`process/output` does not decode: missing field `seq`",
    )
    .await;
    fails_alone(
        output(json!({"processId": "bad", "seq": "1", "stream": "stdout", "chunk": ""})),
        "`process/output` does not decode: seq: invalid type: string \"1\", expected u64",
    )
    .await;
    fails_alone(
        output(json!({"processId": "bad", "seq": 1, "stream": "stdout"})),
        "`process/output` does not decode: missing field `chunk`",
    )
    .await;
    fails_alone(
        json!({"method": "process/exited", "params": {"processId": "bad", "seq": 1}}),
        "`process/exited` does not decode: missing field `exitCode`",
    )
    .await;
}

#[tokio::test]
async fn an_oversized_chunk_fails_its_process() {
    let chunk = "A".repeat(((1 << 20) + 3) / 3 * 4);
    fails_alone(
        output(json!({"processId": "bad", "seq": 1, "stream": "stdout", "chunk": chunk})),
        "event 1 is larger than 1048576 bytes",
    )
    .await;
}

#[tokio::test]
async fn a_close_before_the_exit_fails_its_process() {
    fails_alone(
        json!({"method": "process/closed", "params": {"processId": "bad", "seq": 1}}),
        "event 1 cannot follow those before it",
    )
    .await;
}

#[tokio::test]
async fn a_page_that_does_not_decode_fails_its_process() {
    let (mut server, client) = Server::connect().await;
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
async fn what_nobody_waits_for_is_ignored() {
    let (mut server, client) = Server::connect().await;
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
        server.say(message).await;
    }
    server.exited("good", 1).await;
    server.exited("good", 1).await;
    server.closed("good", 2).await;
    server.closed("good", 2).await;
    assert_eq!(numbers(&events(&good).await), [1, 2]);
}

/// What cannot be blamed on one process.
const NOBODYS: [(&str, &str); 6] = [
    ("{", "server sent a malformed message: "),
    ("[]", "server sent a malformed message: "),
    (r#"{"id":1}"#, "server sent a malformed message: missing"),
    (
        r#"{"id":1,"id":2,"result":0}"#,
        "server sent a malformed message: ",
    ),
    (
        r#"{"method":"process/output","params":{"seq":1}}"#,
        "`process/output` does not decode: ",
    ),
    ("\u{1}\0\u{1}", "server sent a malformed message: binary"),
];

#[tokio::test]
async fn what_cannot_be_blamed_on_a_process_ends_the_connection() {
    for (message, reason) in NOBODYS {
        let (mut server, client) = Server::connect().await;
        let [bad, good] = two(&mut server, &client).await;
        server
            .push(Outgoing::Text(message.into()), Encoding::Text)
            .await;
        for process in [bad, good] {
            let told = events(&process).await;
            assert!(
                matches!(&told[..],
                    [Event::Failed(ProcessError::Disconnected(Disconnect::Protocol(text)))]
                    if text.starts_with(reason)),
                "{told:?}"
            );
        }
        within(client.closed()).await;
    }
}

#[tokio::test]
async fn a_connection_that_was_ended_for_a_message_is_recovered() {
    for (message, _) in NOBODYS {
        let (mut house, mut server, client) = House::connect().await;
        let process = server.start(&client, "p").await.process;
        server
            .push(Outgoing::Text(message.into()), Encoding::Text)
            .await;
        let mut server = house.resume().await;
        let read = server.expect("process/read").await;
        server.page(&read, &[1], 2).await;
        server.exited("p", 2).await;
        server.closed("p", 3).await;
        assert_eq!(numbers(&events(&process).await), [1, 2, 3]);
    }
}

#[tokio::test]
async fn a_server_that_goes_on_breaking_the_protocol_is_given_up() {
    let (mut house, mut server, client) = House::connect().await;
    let process = server.start(&client, "p").await.process;
    for _ in 0..2 {
        server
            .push(Outgoing::Text("{".into()), Encoding::Text)
            .await;
        server = house.resume().await;
        let read = server.expect("process/read").await;
        server.page(&read, &[], 1).await;
    }
    server
        .push(Outgoing::Text("{".into()), Encoding::Text)
        .await;
    assert!(matches!(
        &events(&process).await[..],
        [Event::Failed(ProcessError::Disconnected(
            Disconnect::Protocol(_)
        ))]
    ));
}
