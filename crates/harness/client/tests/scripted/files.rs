//! Files: opened resources are closed, and early notifications are kept.

use bytes::Bytes;
use exec_client::{client::ExecServerClient, filesystem::RemoteFileSystem};
use exec_env::filesystem::{
    ExecutorFileSystem, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch,
    OpenFileRequest, PathWatcher, WatchDepth, WatchPathRequest,
};
use exec_transport::link::DataEncoding;
use exec_wire::{
    environment::ReadEnvironmentStatus,
    fs::{FileContent, OpenMode, ReadFile, WriteFile},
    limits,
    message::RequestId,
    outgoing_message::OutgoingMessage,
    path_uri::PathUri,
};
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};

use crate::scripted_server::{ScriptedServer, server_closed, within};

fn path() -> PathUri {
    "file:///path".parse().unwrap()
}

fn read() -> ReadFile {
    ReadFile {
        path: path(),
        follow_symlinks: None,
        sandbox: None,
    }
}

fn write() -> WriteFile {
    WriteFile {
        path: path(),
        data_base64: None,
        follow_symlinks: None,
        create_parents: false,
        atomic: false,
        mode: None,
        sandbox: None,
    }
}

fn open() -> OpenFileRequest {
    OpenFileRequest {
        path: path(),
        mode: OpenMode::Read,
        sandbox: None,
    }
}

fn watch(files: &RemoteFileSystem) -> FileFuture<PathWatcher> {
    files.watch(WatchPathRequest {
        path: path(),
        depth: WatchDepth::Tree,
        sandbox: None,
    })
}

async fn connect() -> (ScriptedServer, ExecServerClient, RemoteFileSystem) {
    let (server, client) = ScriptedServer::connect().await;
    let files = RemoteFileSystem::new(client.clone());
    (server, client, files)
}

/// Sends one change of a watch.
async fn change(server: &mut ScriptedServer, watch: &Value, overflow: bool) {
    let changes = json!([{"path": "file:///path/new", "kind": "created"}]);
    let params = json!({"watchId": watch["params"]["watchId"], "changes": changes,
        "overflow": overflow});
    server
        .send(json!({"method": "fs/changed", "params": params}))
        .await;
}

#[tokio::test]
async fn file_content_is_accepted_as_base64_or_raw() {
    let (mut server, _client, files) = connect().await;
    let content = files.read_file(read());
    let request = server.expect("fs/readFile").await;
    server.answer(&request, json!({"dataBase64": "AAH/"})).await;
    assert_eq!(within(content).await.unwrap(), &b"\x00\x01\xff"[..]);
    let content = files.read_file(read());
    let request = server.expect("fs/readFile").await;
    let id = RequestId::Number(request["id"].as_i64().unwrap());
    let data = Bytes::from_static(b"\x01raw\xff");
    let metadata = FileContent::default();
    let message = OutgoingMessage::result(&id, &metadata).with_data("dataBase64", data.clone());
    server.push(message, DataEncoding::Binary).await;
    assert_eq!(within(content).await.unwrap(), data);
    let content = files.read_file(read());
    let request = server.expect("fs/readFile").await;
    server.answer(&request, json!({})).await;
    let failure = within(content).await;
    assert!(matches!(failure, Err(FileError::Host(_))), "{failure:?}");
}

#[tokio::test]
async fn error_codes_map_to_file_errors() {
    let (mut server, _client, files) = connect().await;
    for code in [-32004, -32600, -32602, -32603, -32010] {
        let content = files.read_file(read());
        let request = server.expect("fs/readFile").await;
        let error = json!({"code": code, "message": "no"});
        server
            .send(json!({"id": request["id"], "error": error}))
            .await;
        let error = within(content).await.unwrap_err();
        let expected = match code {
            -32004 => matches!(error, FileError::NotFound(_)),
            -32600 => matches!(error, FileError::Invalid(_)),
            -32602 => matches!(error, FileError::Refused(_)),
            -32603 => matches!(error, FileError::Host(_)),
            _ => matches!(error, FileError::Remote(_)),
        };
        assert!(expected, "{code}: {error:?}");
    }
}

#[tokio::test]
async fn cancelled_change_is_not_sent() {
    let (mut server, client, files) = connect().await;
    drop(files.write_file(write(), Bytes::from_static(b"x")));
    let status = client.call(ReadEnvironmentStatus);
    server.expect("environment/status").await;
    drop(status);
}

#[tokio::test]
async fn oversized_write_is_rejected_locally() {
    let (mut server, client, files) = connect().await;
    let data = Bytes::from(vec![0; limits::MAX_MESSAGE_BYTES]);
    let failure = within(files.write_file(write(), data)).await;
    assert!(matches!(failure, Err(FileError::Invalid(_))), "{failure:?}");
    let status = client.call(ReadEnvironmentStatus);
    server.expect("environment/status").await;
    drop(status);
}

#[tokio::test]
async fn file_is_closed_after_its_last_pending_call() {
    let (mut server, client, files) = connect().await;
    let opening = files.open(open());
    let request = server.expect("fs/open").await;
    let handle = request["params"]["handleId"].clone();
    assert_eq!(handle.as_str().unwrap().len(), limits::MAX_HANDLE_ID_BYTES);
    server.answer(&request, json!({"handleId": handle})).await;
    let file = within(opening).await.unwrap();
    let block = file.read_block(0, 1);
    let read = server.expect("fs/readBlock").await;
    drop(file);
    let status = client.call(ReadEnvironmentStatus);
    server.expect("environment/status").await;
    drop(status);
    server
        .answer(&read, json!({"chunk": "eA==", "eof": false}))
        .await;
    assert_eq!(within(block).await.unwrap().data, "x");
    let close = server.expect("fs/close").await;
    assert_eq!(close["params"]["handleId"], handle);
}

#[tokio::test]
async fn file_of_a_cancelled_open_is_closed() {
    let (mut server, _client, files) = connect().await;
    let mut opening = files.open(open());
    assert!((&mut opening).now_or_never().is_none());
    let request = server.expect("fs/open").await;
    drop(opening);
    let handle = &request["params"]["handleId"];
    server.answer(&request, json!({"handleId": handle})).await;
    let close = server.expect("fs/close").await;
    assert_eq!(&close["params"]["handleId"], handle);
}

#[tokio::test]
async fn changes_before_the_watch_response_are_kept() {
    let (mut server, _client, files) = connect().await;
    let watching = watch(&files);
    let request = server.expect("fs/watch").await;
    change(&mut server, &request, false).await;
    server
        .answer(&request, json!({"path": "file:///path"}))
        .await;
    let mut watcher = within(watching).await.unwrap();
    change(&mut server, &request, true).await;
    for overflow in [false, true] {
        let changes = within(watcher.changes.next()).await.unwrap();
        assert_eq!((changes.changes.len(), changes.overflow), (1, overflow));
    }
    drop(watcher);
    let unwatch = server.expect("fs/unwatch").await;
    assert_eq!(unwatch["params"]["watchId"], request["params"]["watchId"]);
    // Changes of the ended watch are ignored.
    change(&mut server, &request, false).await;
    let watching = watch(&files);
    let another = server.expect("fs/watch").await;
    assert_ne!(another["params"]["watchId"], request["params"]["watchId"]);
    drop(watching);
    server
        .answer(&another, json!({"path": "file:///path"}))
        .await;
    server.expect("fs/unwatch").await;
}

#[tokio::test]
async fn watch_ends_with_its_connection() {
    let (mut server, _client, files) = connect().await;
    let watching = watch(&files);
    let request = server.expect("fs/watch").await;
    server
        .answer(&request, json!({"path": "file:///path"}))
        .await;
    let mut watcher = within(watching).await.unwrap();
    change(&mut server, &request, false).await;
    drop(server);
    assert!(within(watcher.changes.next()).await.is_some());
    assert_eq!(within(watcher.changes.next()).await, None);
    let failure = within(files.read_file(read())).await;
    assert_eq!(failure, Err(FileError::Disconnected(server_closed())));
}

/// Watches for a missing path. Also returns the id of the watch.
async fn watch_missing(
    server: &mut ScriptedServer,
    files: &RemoteFileSystem,
) -> (MissingPathsWatch, u64) {
    let watching = files.watch_missing(MissingPathsRequest {
        missing: vec![path()],
        present: None,
        sandbox: None,
    });
    let request = server.expect("fs/watchMissing").await;
    server.answer(&request, json!({"watching": true})).await;
    let number = request["params"]["watchId"].as_u64().unwrap();
    (within(watching).await.unwrap().unwrap(), number)
}

#[tokio::test]
async fn missing_path_watch_ends_when_notified_replaced_or_disconnected() {
    let (mut server, _client, files) = connect().await;
    let (mut first, one) = watch_missing(&mut server, &files).await;
    assert!((&mut first).now_or_never().is_none());
    let (second, two) = watch_missing(&mut server, &files).await;
    assert!(two > one);
    within(first).await;
    let params = json!({"watchId": two});
    server
        .send(json!({"method": "fs/missingChanged", "params": params}))
        .await;
    within(second).await;
    let (mut third, _) = watch_missing(&mut server, &files).await;
    // A notification of an earlier watch.
    server
        .send(json!({"method": "fs/missingChanged", "params": params}))
        .await;
    assert!((&mut third).now_or_never().is_none());
    drop(server);
    within(third).await;
}
