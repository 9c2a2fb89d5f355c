//! Ended server-owned processes with ids that are reused by other processes.

use std::sync::Arc;

use exec_client::connect::SessionContinuity;
use exec_env::process::{
    EventStream, ExecProcess, ExecProcessEvent, OutputReadRequest, ProcessError,
};
use exec_wire::{
    error::RpcError,
    id::OutputSeq,
    process::{ProcessSignal, TerminateMode, WaitUntil, WriteStatus},
};
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::{
    attach::summary,
    scripted_connector::ConnectorControl,
    scripted_server::{ALL, ScriptedServer, events, numbers, session, within},
};

/// Lets a follower of process `p` lag until the client pauses the server.
async fn lag() -> (
    ConnectorControl,
    ScriptedServer,
    Arc<dyn ExecProcess>,
    EventStream,
) {
    let (connector, mut server, client) =
        ConnectorControl::connect_to(SessionContinuity::Resumed, {
            let mut session = session("s");
            session["extensions"] = json!(["acknowledge"]);
            session
        })
        .await;
    let process = server.attach(&client, None, 1).await;
    let stream = process.follow(ALL);
    let chunk = "YWFh".repeat((1 << 20) / 3 / 2);
    for seq in 1..=9 {
        server.output("p", seq, &chunk).await;
    }
    server.released("p").await;
    (connector, server, process, stream)
}

/// Lets the follower catch up until the client looks the process up. Returns that request, and the
/// number of the last event.
async fn catch_up(server: &mut ScriptedServer, stream: &mut EventStream) -> (Value, u64) {
    let mut last = 0;
    loop {
        let event = tokio::select! {
            event = stream.next() => event.unwrap(),
            list = server.expect("process/list") => return (list, last),
        };
        last = event.seq().unwrap().0;
    }
}

#[tokio::test]
async fn lagging_follower_pauses_the_server_until_it_catches_up() {
    let (_connector, mut server, _process, mut stream) = lag().await;
    let (list, mut last) = catch_up(&mut server, &mut stream).await;
    assert!(last >= 6, "{last}");
    let processes = json!({"processes": [summary("p", true)]});
    server.answer(&list, processes).await;
    // It continues after the last received event, whatever the server retains.
    let after = server.attached("p", 99).await;
    assert!((8..=9).contains(&after), "{after}");
    server.output("p", 50, "YQ==").await;
    while last < after {
        last = within(stream.next()).await.unwrap().seq().unwrap().0;
    }
    let event = within(stream.next()).await.unwrap();
    assert_eq!(event.seq(), Some(OutputSeq(50)));
}

#[tokio::test]
async fn resumed_follower_does_not_get_events_of_another_process() {
    let (_connector, mut server, process, mut stream) = lag().await;
    let (list, _) = catch_up(&mut server, &mut stream).await;
    // Calls for the process wait for the lookup.
    let write = process.write(None, bytes::Bytes::from_static(b"a"));
    let mut other = summary("p", true);
    other["startedAtMs"] = json!(8);
    server.answer(&list, json!({ "processes": [other] })).await;
    let text = "process p failed: the server has another process with this id";
    let error = ProcessError::from(RpcError::internal(text));
    let remaining: Vec<_> = within(stream.collect()).await;
    assert_eq!(
        remaining.last(),
        Some(&ExecProcessEvent::Failed(error.clone())),
        "{remaining:?}"
    );
    assert_eq!(within(write).await.unwrap_err(), error);
    // Looked up once, and neither written to nor attached.
    server.expect("process/release").await;
    drop(process);
    assert!(within(server.0.reader.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn process_replaced_during_a_disconnect_fails() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.attach(&client, None, 3).await;
    let other = server.start_detached(&client, "other").await.process;
    let terminate = process.terminate(TerminateMode::Force);
    server.expect("process/terminate").await;
    drop(server);
    let mut server = connector.resume().await;
    let mut another = summary("p", true);
    another["startedAtMs"] = json!(8);
    server.list(vec![summary("other", true), another]).await;
    assert_eq!(server.attached("other", 1).await, 0);
    server.expect("process/release").await;
    let [ExecProcessEvent::Failed(error)] = &events(&process).await[..] else {
        panic!("expected a failure")
    };
    assert!(error.to_string().contains("another process"), "{error}");
    assert_eq!(within(terminate).await.unwrap_err(), *error);
    // Other processes are not affected.
    let write = other.write(None, bytes::Bytes::from_static(b"a"));
    let written = server.expect("process/write").await;
    server.answer(&written, json!({"status": "accepted"})).await;
    assert_eq!(within(write).await, Ok(WriteStatus::Accepted));
}

#[tokio::test]
async fn no_call_targets_a_closed_detached_process() {
    let (mut server, client) = ScriptedServer::connect().await;
    let process = server.attach(&client, None, 1).await;
    server.output("p", 1, "YQ==").await;
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    assert_eq!(numbers(&events(&process).await), [1, 2, 3]);
    let write = process.write(None, bytes::Bytes::from_static(b"a"));
    assert_eq!(within(write).await, Ok(WriteStatus::StdinClosed));
    let close = process.close_stdin(None);
    assert_eq!(within(close).await, Ok(WriteStatus::StdinClosed));
    let signal = process.signal(ProcessSignal::Interrupt);
    assert_eq!(within(signal).await, Ok(()));
    for mode in [
        TerminateMode::Force,
        TerminateMode::Graceful { timeout_ms: 1 },
    ] {
        assert_eq!(within(process.terminate(mode)).await, Ok(false));
    }
    let page = within(process.read(OutputReadRequest::default()))
        .await
        .unwrap();
    assert_eq!((page.chunks.len(), page.closed), (1, true));
    let snapshot = within(process.snapshot()).await.unwrap();
    assert_eq!(snapshot.stdout.data, b"a");
    drop((process, client));
    assert!(within(server.0.reader.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn calls_for_a_process_closed_meanwhile_are_not_retried() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.attach(&client, None, 1).await;
    let write = process.write(None, bytes::Bytes::from_static(b"a"));
    let terminate = process.terminate(TerminateMode::Force);
    let wait = process.wait(WaitUntil::Closed, None);
    for method in ["process/write", "process/terminate", "process/wait"] {
        server.expect(method).await;
    }
    server.exited("p", 1).await;
    server.closed("p", 2).await;
    assert_eq!(numbers(&events(&process).await), [1, 2]);
    drop(server);
    let mut server = connector.resume().await;
    assert_eq!(within(write).await, Ok(WriteStatus::StdinClosed));
    assert_eq!(within(terminate).await, Ok(false));
    assert!(within(wait).await.unwrap().closed);
    drop((process, client));
    assert!(within(server.0.reader.next()).await.unwrap().is_none());
}
