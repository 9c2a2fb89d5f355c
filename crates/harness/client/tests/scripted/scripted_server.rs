//! A server that the test scripts.

use std::{sync::Arc, time::Duration};

use exec_client::{
    backend::RemoteBackend,
    client::{ExecServerClient, ExecServerClientConnectOptions},
};
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart};
use exec_env::{
    environment::{Command, DisconnectReason, ExecBackend, StartedProcess},
    process::{ExecProcess, ExecProcessEvent},
};
use exec_transport::{
    link::{DataEncoding, Link},
    memory,
};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    outgoing_message::OutgoingMessage,
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Timeout that suffices on a loaded machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The failure after a disconnect without recovery.
pub(crate) fn server_closed() -> DisconnectReason {
    DisconnectReason::Transport("server closed the connection".to_owned())
}

/// A response to `initialize` with all extensions and capabilities that affect the client's
/// requests.
pub(crate) fn session(id: &str) -> Value {
    let capabilities = json!({
        "networkProxyLaunch": true,
        "networkProxyReviewDomains": true,
        "fsWatchMissing": true,
        "sandboxedFileStreaming": true,
        "fileWriteStreaming": true,
        "shellSnapshotV2": true,
    });
    let shell = json!({"name": "sh", "path": "/bin/sh"});
    json!({
        "sessionId": id,
        "server": {"name": "scripted", "version": "0.0.0"},
        "environmentInfo": {"shell": shell, "capabilities": capabilities},
    })
}

/// Awaits with a timeout.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.expect("timed out")
}

/// The server's end of a connection.
#[derive(Debug)]
pub(crate) struct ScriptedServer(pub(crate) Link);

impl ScriptedServer {
    /// Answers `initialize`, and waits for `initialized`.
    pub(crate) async fn connect() -> (Self, ExecServerClient) {
        Self::connect_as(session("s")).await
    }

    /// Answers `initialize` with this response, and waits for `initialized`.
    pub(crate) async fn connect_as(session: Value) -> (Self, ExecServerClient) {
        let (client_link, server_link) = memory::pair();
        let mut server = Self(server_link);
        let connect =
            ExecServerClient::connect(client_link, ExecServerClientConnectOptions::default());
        let handshake = server.handshake(session);
        let (client, _) = futures_util::join!(connect, handshake);
        (server, client.unwrap())
    }

    /// Answers `initialize`, waits for `initialized`, and returns the `initialize` request.
    pub(crate) async fn handshake(&mut self, session: Value) -> Value {
        let initialize = self.expect("initialize").await;
        self.answer(&initialize, session).await;
        self.expect("initialized").await;
        initialize
    }

    /// Returns the next message.
    pub(crate) async fn next(&mut self) -> Value {
        let message = within(self.0.reader.next()).await.unwrap();
        serde_json::from_slice(&message.expect("no message")).unwrap()
    }

    /// Returns the next message, which must have this method.
    pub(crate) async fn expect(&mut self, method: &str) -> Value {
        let message = self.next().await;
        assert_eq!(message["method"], method, "{message}");
        message
    }

    /// Sends an encoded message.
    pub(crate) async fn push(&mut self, message: OutgoingMessage, encoding: DataEncoding) {
        self.0.writer.push(message, encoding);
        self.0.writer.flush().await.unwrap();
    }

    pub(crate) async fn send(&mut self, message: Value) {
        let text = message.to_string().into_bytes();
        self.push(OutgoingMessage::Text(text), DataEncoding::Text)
            .await;
    }

    pub(crate) async fn answer(&mut self, request: &Value, result: Value) {
        self.send(json!({"id": request["id"], "result": result}))
            .await;
    }

    pub(crate) async fn refuse(&mut self, request: &Value, code: i64, message: &str) {
        let error = json!({"code": code, "message": message});
        self.send(json!({"id": request["id"], "error": error}))
            .await;
    }

    pub(crate) async fn output(&mut self, id: &str, seq: u64, chunk: &str) {
        let params = json!({"processId": id, "seq": seq, "stream": "stdout", "chunk": chunk});
        self.send(json!({"method": "process/output", "params": params}))
            .await;
    }

    pub(crate) async fn exited(&mut self, id: &str, seq: u64) {
        let params = json!({"processId": id, "seq": seq, "exitCode": 0, "signal": "SIGKILL"});
        self.send(json!({"method": "process/exited", "params": params}))
            .await;
    }

    pub(crate) async fn closed(&mut self, id: &str, seq: u64) {
        let params = json!({"processId": id, "seq": seq});
        self.send(json!({"method": "process/closed", "params": params}))
            .await;
    }

    /// Answers `process/read` with chunks of one byte.
    pub(crate) async fn page(&mut self, read: &Value, chunks: &[u64], next: u64) {
        let chunk = |seq: &u64| json!({"seq": seq, "stream": "stdout", "chunk": "YQ=="});
        let chunks: Vec<_> = chunks.iter().map(chunk).collect();
        let page = json!({"chunks": chunks, "nextSeq": next, "exited": false, "exitCode": null,
            "closed": false, "failure": null, "sandboxDenied": false});
        self.answer(read, page).await;
    }

    /// Starts a process.
    pub(crate) async fn start(&mut self, client: &ExecServerClient, id: &str) -> StartedProcess {
        let backend = RemoteBackend::new(client.clone());
        let accept = async {
            let start = self.expect("process/start").await;
            self.answer(&start, json!({"processId": id})).await;
        };
        let (started, ()) = futures_util::join!(backend.start(command(id)), accept);
        started.unwrap()
    }
}

pub(crate) fn command(id: &str) -> Command {
    let id = ProcessId::new(id).unwrap();
    Command::new(id, vec!["true".to_owned()], "file:///".parse().unwrap())
}

/// Follows a process from its first event on, with backpressure.
pub(crate) const ALL: FollowOptions = FollowOptions {
    start: FollowStart::After(OutputSeq(0)),
    backpressure: BackpressureMode::Pause,
};

/// Returns all events of a process up to its end.
pub(crate) async fn events(process: &Arc<dyn ExecProcess>) -> Vec<ExecProcessEvent> {
    within(process.follow(ALL).collect()).await
}

pub(crate) fn numbers(events: &[ExecProcessEvent]) -> Vec<u64> {
    events
        .iter()
        .map(|event| event.seq().expect("process failed").0)
        .collect()
}
