//! Acknowledgements of consumed output (extension `acknowledge`).

use std::sync::Arc;

use exec_client::{backend::RemoteBackend, client::ExecServerClient, connect::SessionContinuity};
use exec_env::{
    environment::{ExecBackend, StartError},
    process::ExecProcess,
};
use exec_transport::link::DataEncoding;
use exec_wire::{
    environment::ReadEnvironmentStatus,
    id::{OutputSeq, ProcessId},
    outgoing_message::OutgoingMessage,
    process::OutputStream,
};
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::{
    scripted_connector::ConnectorControl,
    scripted_server::{ALL, ScriptedServer, command, within},
};

/// Chunk size: sixteen chunks are one mebibyte.
const CHUNK_BYTES: usize = 64 << 10;

fn granted() -> Value {
    json!({"sessionId": "s", "extensions": ["acknowledge", "binaryData"]})
}

async fn connect() -> (ConnectorControl, ScriptedServer, ExecServerClient) {
    ConnectorControl::connect_to(SessionContinuity::Resumed, granted()).await
}

impl ScriptedServer {
    /// Sends output of this size.
    async fn write(&mut self, id: &str, seq: u64, bytes: usize) {
        let id = ProcessId::new(id).unwrap();
        let data = bytes::Bytes::from(vec![b'x'; bytes]);
        let output = OutgoingMessage::output(&id, OutputSeq(seq), OutputStream::Stdout, data);
        self.push(output, DataEncoding::Binary).await;
    }

    /// Returns the sequence number of the next acknowledgement of the process.
    async fn acknowledged(&mut self, id: &str) -> u64 {
        let received = self.expect("process/acknowledge").await;
        assert_eq!(received["params"]["processId"], id);
        received["params"]["seq"].as_u64().unwrap()
    }
}

/// Asserts that the client has handled everything sent so far without acknowledging it.
async fn assert_silent(server: &mut ScriptedServer, client: &ExecServerClient) {
    let status = client.call(ReadEnvironmentStatus);
    let request = server.expect("environment/status").await;
    server.answer(&request, json!({"status": "ready"})).await;
    within(status).await.unwrap();
}

#[tokio::test]
async fn unheld_output_is_acknowledged_in_batches() {
    let (_connector, mut server, client) = connect().await;
    let _process = server.start(&client, "p").await;
    server.write("p", 1, CHUNK_BYTES - 1).await;
    assert_silent(&mut server, &client).await;
    server.write("p", 2, 1).await;
    assert_eq!(server.acknowledged("p").await, 2);
    for seq in 3..258 {
        server.write("p", seq, 1).await;
    }
    assert_silent(&mut server, &client).await;
    server.write("p", 258, 1).await;
    assert_eq!(server.acknowledged("p").await, 258);
    server.write("p", 259, 1).await;
    server.exited("p", 260).await;
    assert_eq!(server.acknowledged("p").await, 260);
    server.closed("p", 261).await;
    assert_eq!(server.acknowledged("p").await, 261);
}

#[tokio::test]
async fn unread_output_is_not_acknowledged() {
    let (_connector, mut server, client) = connect().await;
    let process = server.start(&client, "p").await.process;
    let (mut slow, mut fast) = (process.follow(ALL), process.follow(ALL));
    let hold = process.hold(OutputSeq(0));
    for seq in 1..=4 {
        server.write("p", seq, CHUNK_BYTES).await;
        within(fast.next()).await;
    }
    assert_silent(&mut server, &client).await;
    within(slow.next()).await;
    within(slow.next()).await;
    assert_silent(&mut server, &client).await;
    hold.acknowledge(OutputSeq(1));
    assert_eq!(server.acknowledged("p").await, 1);
    drop(hold);
    assert_eq!(server.acknowledged("p").await, 2);
    drop(slow);
    assert_eq!(server.acknowledged("p").await, 4);
}

#[tokio::test]
async fn no_acks_without_the_extension() {
    let (mut server, client) = ScriptedServer::connect().await;
    let _process = server.start(&client, "p").await;
    server.write("p", 1, CHUNK_BYTES).await;
    server.write("p", 2, CHUNK_BYTES).await;
    assert_silent(&mut server, &client).await;
}

#[tokio::test]
async fn acks_are_repeated_after_resume() {
    let (mut connector, mut server, client) = connect().await;
    let _process = server.start(&client, "p").await;
    server.write("p", 1, CHUNK_BYTES).await;
    assert_eq!(server.acknowledged("p").await, 1);
    drop(server);
    let mut server = connector.accept().await;
    server.handshake(granted()).await;
    let read = server.expect("process/read").await;
    server.page(&read, &[], 2).await;
    assert_eq!(server.acknowledged("p").await, 1);
}

/// Sends output until the process would be paused.
async fn fill(server: &mut ScriptedServer, id: &str) {
    for seq in 1..=16 {
        server.write(id, seq, CHUNK_BYTES).await;
    }
}

#[tokio::test]
async fn slow_follower_does_not_block_others() {
    let (_connector, mut server, client) = connect().await;
    let mut unread = Vec::new();
    for number in 0..40 {
        let id = format!("p{number}");
        let process = server.start(&client, &id).await.process;
        unread.push((process.follow(ALL), process));
        within(fill(&mut server, &id)).await;
    }
    let other: Arc<dyn ExecProcess> = server.start(&client, "other").await.process;
    let mut stream = other.follow(ALL);
    for seq in 1..=64 {
        within(server.write("other", seq, CHUNK_BYTES)).await;
        within(stream.next()).await;
        assert_eq!(server.acknowledged("other").await, seq);
    }
    // The unread output is still available.
    for (stream, _process) in unread {
        let chunks: Vec<_> = within(stream.take(16).collect()).await;
        assert_eq!(chunks.len(), 16);
    }
}

/// Resumes session `s` with the extension.
async fn resume(connector: &mut ConnectorControl) -> ScriptedServer {
    let mut server = connector.accept().await;
    server.handshake(granted()).await;
    server
}

#[tokio::test]
async fn final_ack_is_repeated_until_confirmed() {
    let (mut connector, mut server, client) = connect().await;
    let held = server.start(&client, "held").await;
    let dropped = server.start(&client, "dropped").await;
    for id in ["held", "dropped"] {
        server.exited(id, 1).await;
        assert_eq!(server.acknowledged(id).await, 1);
        server.closed(id, 2).await;
        assert_eq!(server.acknowledged(id).await, 2);
    }
    drop(dropped);
    server.expect("process/terminate").await;
    drop(server);
    // Neither ack was confirmed by a response.
    let mut server = resume(&mut connector).await;
    assert_eq!(server.acknowledged("held").await, 2);
    assert_eq!(server.acknowledged("dropped").await, 2);
    assert_silent(&mut server, &client).await;
    drop(server);
    let mut server = resume(&mut connector).await;
    assert_silent(&mut server, &client).await;
    drop(held);
}

#[tokio::test]
async fn reused_id_is_not_acknowledged_for_its_predecessor() {
    let (mut connector, mut server, client) = connect().await;
    let process = server.start(&client, "p").await;
    server.exited("p", 1).await;
    assert_eq!(server.acknowledged("p").await, 1);
    server.closed("p", 2).await;
    assert_eq!(server.acknowledged("p").await, 2);
    drop(process);
    server.expect("process/terminate").await;
    let backend = RemoteBackend::new(client.clone());
    let start = tokio::spawn(async move { backend.start(command("p")).await });
    server.expect("process/start").await;
    drop(server);
    let mut server = resume(&mut connector).await;
    // The server may know the previous process with this id.
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "p");
    let started = within(start).await.unwrap();
    assert!(matches!(started, Err(StartError::Disconnected(_))));
    server.answer(&terminate, json!({"running": false})).await;
    assert_eq!(server.acknowledged("p").await, u64::MAX);
    assert_silent(&mut server, &client).await;
}

#[tokio::test]
async fn complete_output_is_acknowledged_when_its_handle_is_dropped() {
    let (_connector, mut server, client) = connect().await;
    let process = server.start(&client, "p").await.process;
    let stream = process.follow(ALL);
    server.write("p", 1, 1).await;
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    assert_silent(&mut server, &client).await;
    drop(process);
    server.expect("process/terminate").await;
    assert_eq!(server.acknowledged("p").await, 3);
    let received: Vec<_> = within(stream.collect()).await;
    assert_eq!(received.len(), 3);
}

#[tokio::test]
async fn failed_process_is_acknowledged_to_its_close() {
    let (_connector, mut server, client) = connect().await;
    let process = server.start(&client, "p").await;
    let params = json!({"processId": "p"});
    server
        .send(json!({"method": "process/output", "params": params}))
        .await;
    let terminate = server.expect("process/terminate").await;
    server.answer(&terminate, json!({"running": true})).await;
    // Acknowledges everything, because a process that waits for acks never closes.
    assert_eq!(server.acknowledged("p").await, u64::MAX);
    server.write("p", 1, 1).await;
    server.exited("p", 2).await;
    assert_silent(&mut server, &client).await;
    server.closed("p", 3).await;
    assert_eq!(server.acknowledged("p").await, u64::MAX);
    drop(process);
    server.start(&client, "p").await;
}
