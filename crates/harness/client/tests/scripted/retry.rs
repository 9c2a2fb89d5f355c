//! Calls that lose their connection before the response.

use bytes::Bytes;
use exec_client::{backend::RemoteBackend, error::ExecServerError, filesystem::RemoteFileSystem};
use exec_env::{
    environment::{DisconnectReason, ExecBackend},
    filesystem::{ExecutorFileSystem, FileError},
    process::{OutputReadRequest, ProcessError},
};
use exec_wire::{
    environment::ReadEnvironmentStatus,
    fs::ReadFile,
    id::ProcessId,
    process::{ListProcesses, ProcessSignal, SignalProcess, TerminateMode, WaitUntil, WriteStatus},
};
use futures_util::FutureExt;
use serde_json::{Value, json};

use crate::{
    scripted_connector::ConnectorControl,
    scripted_server::{ScriptedServer, command, session, within},
};

/// Breaks the connection and resumes the session. The client reads its one process first.
async fn disconnect(connector: &mut ConnectorControl, server: ScriptedServer) -> ScriptedServer {
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    server.page(&read, &[], 1).await;
    server
}

#[tokio::test]
async fn write_is_retried_with_its_id() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let first = process.write(None, Bytes::from_static(b"one"));
    let second = process.write(None, Bytes::from_static(b"two"));
    let close = process.close_stdin(None);
    let mut writes: Vec<Value> = Vec::new();
    for method in ["process/write", "process/write", "process/closeStdin"] {
        writes.push(server.expect(method).await["params"].clone());
    }
    let names: Vec<_> = writes.iter().map(|write| &write["writeId"]).collect();
    assert!(names[0] != names[1] && names[1] != names[2] && names[2].is_string());
    let mut server = disconnect(&mut connector, server).await;
    for params in writes {
        let retried = server.next().await;
        assert_eq!(retried["params"], params);
        server.answer(&retried, json!({"status": "accepted"})).await;
    }
    for write in [first, second, close] {
        assert_eq!(within(write).await, Ok(WriteStatus::Accepted));
    }
}

#[tokio::test]
async fn abandoned_write_is_retried() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    drop(process.write(None, Bytes::from_static(b"one")));
    server.expect("process/write").await;
    // An abandoned read is not retried.
    drop(client.call(ListProcesses::default()));
    server.expect("process/list").await;
    let mut server = disconnect(&mut connector, server).await;
    server.expect("process/write").await;
    drop(client.call(ReadEnvironmentStatus));
    server.expect("environment/status").await;
}

#[tokio::test]
async fn read_only_calls_are_retried() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let files = RemoteFileSystem::new(client.clone());
    let read = process.read(OutputReadRequest::default());
    let wait = process.wait(WaitUntil::Exited, None);
    let end = process.terminate(TerminateMode::Force);
    let file = files.read_file(ReadFile {
        path: "file:///path".parse().unwrap(),
        follow_symlinks: None,
        sandbox: None,
    });
    let methods = [
        "process/read",
        "process/wait",
        "process/terminate",
        "fs/readFile",
    ];
    for method in methods {
        server.expect(method).await;
    }
    let mut server = disconnect(&mut connector, server).await;
    let request = server.expect(methods[0]).await;
    server.page(&request, &[], 1).await;
    assert_eq!(within(read).await.unwrap().chunks, []);
    let request = server.expect(methods[1]).await;
    server.exited("p", 1).await;
    let answer = json!({"exited": true, "exitCode": 0, "signal": null, "closed": false,
        "timedOut": false});
    server.answer(&request, answer).await;
    assert_eq!(within(wait).await.unwrap().exit.unwrap().code, 0);
    let request = server.expect(methods[2]).await;
    server.answer(&request, json!({"running": false})).await;
    assert_eq!(within(end).await, Ok(false));
    let request = server.expect(methods[3]).await;
    server.answer(&request, json!({"dataBase64": "YQ=="})).await;
    assert_eq!(within(file).await.unwrap(), "a");
}

#[tokio::test]
async fn non_idempotent_calls_fail_immediately() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let files = RemoteFileSystem::new(client.clone());
    let signal = process.signal(ProcessSignal::Interrupt);
    let path = "file:///path".parse().unwrap();
    let remove = files.remove(exec_wire::fs::RemovePath {
        path,
        recursive: None,
        follow_symlinks: None,
        force: None,
        sandbox: None,
    });
    let params = SignalProcess {
        process_id: ProcessId::new("p").unwrap(),
        signal: ProcessSignal::Interrupt,
    };
    let raw = client.call(params);
    for method in ["process/signal", "fs/remove", "process/signal"] {
        server.expect(method).await;
    }
    drop(server);
    let text = |method| {
        format!("connection broke before `{method}` was answered: server closed the connection")
    };
    let reason = |method| DisconnectReason::Transport(text(method));
    assert_eq!(
        within(signal).await,
        Err(ProcessError::Disconnected(reason("process/signal")))
    );
    assert_eq!(
        within(remove).await,
        Err(FileError::Disconnected(reason("fs/remove")))
    );
    let error = ExecServerError::Interrupted {
        method: "process/signal",
        reason: "server closed the connection".to_owned(),
    };
    assert_eq!(within(raw).await.map(drop), Err(error));
    // The process itself continues.
    let mut server = connector.resume().await;
    server.expect("process/read").await;
    assert!(process.status().tree_alive);
}

#[tokio::test]
async fn cancelled_unsent_change_is_dropped() {
    let (mut connector, server, client) = ConnectorControl::connect().await;
    let files = RemoteFileSystem::new(client.clone());
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    let path = "file:///path".parse().unwrap();
    let mut remove = files.remove(exec_wire::fs::RemovePath {
        path,
        recursive: None,
        follow_symlinks: None,
        force: None,
        sandbox: None,
    });
    assert!((&mut remove).now_or_never().is_none());
    drop(remove);
    drop(client.call(ReadEnvironmentStatus));
    server.answer(&initialize, session("s")).await;
    server.expect("initialized").await;
    server.expect("environment/status").await;
}

#[tokio::test]
async fn terminate_is_sent_once() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let end = process.terminate(TerminateMode::Graceful { timeout_ms: 1000 });
    server.expect("process/terminate").await;
    let mut server = disconnect(&mut connector, server).await;
    let text =
        "connection broke before `process/terminate` was answered: server closed the connection";
    let reason = DisconnectReason::Transport(text.to_owned());
    assert_eq!(within(end).await, Err(ProcessError::Disconnected(reason)));
    drop(client.call(ReadEnvironmentStatus));
    server.expect("environment/status").await;
}

#[tokio::test]
async fn cancelled_unsent_start_is_dropped() {
    let (mut connector, server, client) = ConnectorControl::connect().await;
    let backend = RemoteBackend::new(client.clone());
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    assert!(backend.start(command("p")).now_or_never().is_none());
    drop(client.call(ReadEnvironmentStatus));
    server.answer(&initialize, session("s")).await;
    server.expect("initialized").await;
    server.expect("environment/status").await;
    // Its id is unused.
    server.start(&client, "p").await;
}
