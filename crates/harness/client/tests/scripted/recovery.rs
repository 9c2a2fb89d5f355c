//! Disconnects that recovery hides from callers.

use std::time::Duration;

use exec_client::{backend::RemoteBackend, filesystem::RemoteFileSystem};
use exec_env::{
    environment::{DisconnectReason, ExecBackend, StartError},
    process::{ExecProcessEvent as Event, OutputReadRequest, ProcessError},
};
use exec_wire::{
    environment::ReadEnvironmentStatus,
    error::RpcError,
    id::OutputSeq,
    process::{ExitCause, WaitUntil},
};
use futures_util::{FutureExt, StreamExt};
use serde_json::json;

use crate::{
    scripted_connector::ConnectorControl,
    scripted_server::{ALL, ScriptedServer, command, events, numbers, session, within},
};

#[tokio::test]
async fn missed_output_is_read_and_live_output_follows() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "r1").await.process;
    server.output("r1", 1, "YQo=").await;
    let mut stream = process.follow(ALL);
    assert!(matches!(
        within(stream.next()).await,
        Some(Event::Output(_))
    ));
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    assert_eq!(
        read["params"],
        json!({"processId": "r1", "afterSeq": 1, "waitMs": 0})
    );
    server.page(&read, &[2], 3).await;
    server.output("r1", 3, "Ywo=").await;
    server.exited("r1", 4).await;
    server.closed("r1", 5).await;
    let remaining: Vec<_> = within(stream.collect()).await;
    assert_eq!(numbers(&remaining), [2, 3, 4, 5]);
    assert_eq!(client.session().session_id.as_str(), "s");
}

#[tokio::test]
async fn events_before_the_initialize_response_are_kept() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    server.output("p", 2, "Yg==").await;
    server.answer(&initialize, session("s")).await;
    server.expect("initialized").await;
    let read = server.expect("process/read").await;
    // The early events are not on the page.
    server.page(&read, &[1], 3).await;
    server.exited("p", 3).await;
    server.closed("p", 4).await;
    assert_eq!(numbers(&events(&process).await), [1, 2, 3, 4]);
}

#[tokio::test]
async fn missed_exit_and_close_are_inferred() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    let chunk = json!({"seq": 1, "stream": "stdout", "chunk": "YQ=="});
    let page = json!({"chunks": [chunk], "nextSeq": 4, "exited": true, "exitCode": 7,
        "closed": true, "failure": null, "sandboxDenied": false});
    server.answer(&read, page).await;
    let events = events(&process).await;
    assert_eq!(numbers(&events), [1, 2, 3]);
    assert!(
        matches!(&events[1], Event::Exited(_, exit) if exit.code == 7
            && exit.cause == ExitCause::Unknown)
    );
}

#[tokio::test(start_paused = true)]
async fn still_attached_session_is_retried() {
    let (mut connector, server, client) = ConnectorControl::connect().await;
    drop(server);
    for _ in 0..3 {
        let mut server = connector.accept().await;
        let initialize = server.expect("initialize").await;
        server
            .refuse(&initialize, -32010, "session s is attached")
            .await;
    }
    let mut server = connector.resume().await;
    let times = connector.times();
    let gaps: Vec<_> = times.windows(2).map(|two| two[1] - two[0]).collect();
    // The first attempt is immediate, the others follow the backoff.
    assert_eq!(gaps[0], Duration::ZERO);
    assert!(
        gaps[1..]
            .iter()
            .all(|gap| *gap >= Duration::from_millis(100) && *gap < Duration::from_millis(110)),
        "{gaps:?}"
    );
    answers(&mut server, &client).await;
}

#[tokio::test(start_paused = true)]
async fn unreachable_or_silent_server_is_retried() {
    let (mut connector, server, client) = ConnectorControl::connect().await;
    connector.fail_attempts(5);
    drop(server);
    let mut silent = connector.accept().await;
    silent.expect("initialize").await;
    // Only the handshake timeout ends this attempt.
    let brief = connector.accept().await;
    drop((silent, brief));
    let mut server = connector.resume().await;
    answers(&mut server, &client).await;
    assert_eq!(connector.times().len(), 9);
}

#[tokio::test]
async fn calls_wait_during_recovery() {
    let (mut connector, server, client) = ConnectorControl::connect().await;
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    let status = client.call(ReadEnvironmentStatus);
    server.answer(&initialize, session("s")).await;
    server.expect("initialized").await;
    let request = server.expect("environment/status").await;
    server.answer(&request, json!({"status": "ready"})).await;
    assert_eq!(within(status).await.unwrap().status, "ready");
}

#[tokio::test]
async fn unanswered_start_is_found_running() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let backend = RemoteBackend::new(client);
    let respond = async {
        server.expect("process/start").await;
        drop(server);
        let mut server = connector.resume().await;
        let read = server.expect("process/read").await;
        assert_eq!(read["params"]["afterSeq"], 0);
        server.page(&read, &[1], 2).await;
        server.exited("p", 2).await;
        server.closed("p", 3).await;
        server
    };
    let (started, _server) = futures_util::join!(within(backend.start(command("p"))), respond);
    let started = started.unwrap();
    assert_eq!(started.sandbox_type, None);
    assert_eq!(numbers(&events(&started.process).await), [1, 2, 3]);
}

#[tokio::test]
async fn lost_start_fails_and_is_terminated() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let backend = RemoteBackend::new(client.clone());
    let respond = async {
        server.expect("process/start").await;
        drop(server);
        let mut server = connector.resume().await;
        let read = server.expect("process/read").await;
        server.refuse(&read, -32600, "unknown process id p").await;
        let terminate = server.expect("process/terminate").await;
        assert_eq!(terminate["params"]["processId"], "p");
        server
    };
    let (started, mut server) = futures_util::join!(within(backend.start(command("p"))), respond);
    let text = "connection broke before `process/start` was answered: server closed the connection";
    let reason = DisconnectReason::Transport(text.to_owned());
    assert!(matches!(started, Err(StartError::Disconnected(error)) if error == reason));
    // The id is unused.
    server.start(&client, "p").await;
}

#[tokio::test]
async fn cancelled_start_is_terminated_after_resume() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let backend = RemoteBackend::new(client.clone());
    let mut start = backend.start(command("p"));
    assert!((&mut start).now_or_never().is_none());
    server.expect("process/start").await;
    drop(start);
    drop(server);
    let mut server = connector.resume().await;
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "p");
    server.expect("process/read").await;
}

#[tokio::test]
async fn process_dropped_during_recovery_is_terminated() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await;
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    drop(process);
    server.answer(&initialize, session("s")).await;
    server.expect("initialized").await;
    server.expect("process/terminate").await;
    let read = server.expect("process/read").await;
    // The server handled the earlier termination and has forgotten the process.
    server.refuse(&read, -32600, "unknown process id p").await;
    let terminate = server.expect("process/terminate").await;
    server.answer(&terminate, json!({"running": false})).await;
    // After the response the id is unused.
    answers(&mut server, &client).await;
    server.start(&client, "p").await;
}

#[tokio::test]
async fn gap_fails_only_its_process() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let lost = server.start(&client, "lost").await.process;
    let other = server.start(&client, "other").await.process;
    server.output("lost", 1, "YQ==").await;
    within(lost.follow(ALL).next()).await;
    drop(server);
    let mut server = connector.resume().await;
    for _ in 0..2 {
        let read = server.expect("process/read").await;
        if read["params"]["processId"] == "lost" {
            server.page(&read, &[5], 6).await;
        } else {
            server.page(&read, &[1], 2).await;
        }
    }
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "lost");
    let text = "process lost failed: events 2 to 4 are lost";
    let error = ProcessError::from(RpcError::internal(text));
    let received = events(&lost).await;
    assert_eq!(received[1..], [Event::Failed(error.clone())]);
    assert_eq!(
        within(lost.wait(WaitUntil::Closed, None)).await,
        Err(error.clone())
    );
    assert_eq!(
        within(lost.read(OutputReadRequest::default())).await,
        Err(error)
    );
    server.exited("other", 2).await;
    server.closed("other", 3).await;
    assert_eq!(numbers(&events(&other).await), [1, 2, 3]);
}

#[tokio::test]
async fn process_unknown_after_resume_fails() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let finished = server.start(&client, "over").await.process;
    server.exited("over", 1).await;
    server.closed("over", 2).await;
    assert_eq!(numbers(&events(&finished).await), [1, 2]);
    let process = server.start(&client, "p").await.process;
    drop(server);
    let mut server = connector.resume().await;
    // A closed process is not read.
    let read = server.expect("process/read").await;
    assert_eq!(read["params"]["processId"], "p");
    server.refuse(&read, -32600, "unknown process id p").await;
    let text = "process p failed: the server has forgotten it: unknown process id p";
    let error = ProcessError::from(RpcError::internal(text));
    assert_eq!(events(&process).await, [Event::Failed(error)]);
    assert_eq!(numbers(&events(&finished).await), [1, 2]);
}

#[tokio::test]
async fn pending_gap_is_filled_after_resume() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    server.output("p", 3, "Yw==").await;
    server.expect("process/read").await;
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    assert_eq!(read["params"]["afterSeq"], 0);
    server.page(&read, &[1, 2], 4).await;
    server.exited("p", 4).await;
    server.closed("p", 5).await;
    assert_eq!(numbers(&events(&process).await), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn second_disconnect_is_recovered() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let mut next = 1;
    for _ in 0..20 {
        server.output("p", next, "YQ==").await;
        drop(server);
        server = connector.resume().await;
        let read = server.expect("process/read").await;
        // The last message may or may not have arrived.
        let after = read["params"]["afterSeq"].as_u64().unwrap();
        let missing: Vec<u64> = (after + 1..=next + 1).collect();
        next += 2;
        server.page(&read, &missing, next).await;
    }
    server.exited("p", next).await;
    server.closed("p", next + 1).await;
    let all: Vec<u64> = (1..=next + 1).collect();
    assert_eq!(numbers(&events(&process).await), all);
}

#[tokio::test]
async fn watches_and_open_files_end_with_their_connection() {
    use exec_env::filesystem::{
        ExecutorFileSystem, FileError, OpenFileRequest, PathWatcher, WatchDepth, WatchPathRequest,
    };
    use exec_wire::fs::OpenMode;

    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let files = RemoteFileSystem::new(client.clone());
    let open = files.open(OpenFileRequest {
        path: "file:///path".parse().unwrap(),
        mode: OpenMode::Read,
        sandbox: None,
    });
    let watch = files.watch(WatchPathRequest {
        path: "file:///path".parse().unwrap(),
        depth: WatchDepth::Tree,
        sandbox: None,
    });
    let opened = server.expect("fs/open").await;
    let id = &opened["params"]["handleId"];
    server.answer(&opened, json!({"handleId": id})).await;
    let watched = server.expect("fs/watch").await;
    server
        .answer(&watched, json!({"path": "file:///path"}))
        .await;
    let file = within(open).await.unwrap();
    let PathWatcher { mut changes, .. } = within(watch).await.unwrap();
    drop(server);
    assert_eq!(within(changes.next()).await, None);
    let mut server = connector.resume().await;
    let block = within(file.read_block(0, 1)).await;
    assert!(
        matches!(&block, Err(FileError::Disconnected(DisconnectReason::Transport(text)))
            if text.contains("`fs/readBlock`")),
        "{block:?}"
    );
    // No release is sent, because the server closed them with the connection.
    drop((file, changes));
    answers(&mut server, &client).await;
}

/// Asserts that the client works.
async fn answers(server: &mut ScriptedServer, client: &exec_client::client::ExecServerClient) {
    let status = client.call(ReadEnvironmentStatus);
    let request = server.expect("environment/status").await;
    server.answer(&request, json!({"status": "ready"})).await;
    assert_eq!(within(status).await.unwrap().status, "ready");
}

#[tokio::test]
async fn resume_reads_after_the_last_delivered_event() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    for seq in 1..=3 {
        server.output("p", seq, "YQ==").await;
    }
    let mut stream = process.follow(ALL);
    for _ in 0..3 {
        within(stream.next()).await;
    }
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    assert_eq!(read["params"]["afterSeq"], 3);
    assert_eq!(process.status().next_seq, OutputSeq(4));
}

#[tokio::test]
async fn interrupted_page_is_read_in_smaller_parts() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    assert_eq!(read["params"].get("maxBytes"), None);
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    assert_eq!(read["params"]["maxBytes"], 32 << 10);
    server.page(&read, &[1, 2], 3).await;
    server.expect("process/read").await;
    drop(server);
    // Delivered parts are not read again.
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    assert_eq!(read["params"]["afterSeq"], 2);
    server.page(&read, &[3, 5], 6).await;
    let read = server.expect("process/read").await;
    assert_eq!(read["params"]["afterSeq"], 5);
    let end = json!({"chunks": [], "nextSeq": 7, "exited": true, "exitCode": 0,
        "closed": true, "failure": null, "sandboxDenied": false});
    server.answer(&read, end).await;
    let events = events(&process).await;
    assert_eq!(numbers(&events), [1, 2, 3, 4, 5, 6]);
    assert!(matches!(&events[3], Event::Exited(..)));
}

#[tokio::test]
async fn pages_without_progress_fail_their_process() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    drop(server);
    let mut server = connector.resume().await;
    server.expect("process/read").await;
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    server.page(&read, &[1], 1).await;
    let received = events(&process).await;
    assert!(
        matches!(&received[..], [Event::Failed(ProcessError::Remote(error))]
        if error.message.ends_with("`process/read` after 0 made no progress: it ended at 0")),
        "{received:?}"
    );
}

#[tokio::test]
async fn parts_after_a_missed_exit_are_not_read_again() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    drop(server);
    let mut server = connector.resume().await;
    server.expect("process/read").await;
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    // The first event is the exit, which is not on any page.
    server.page(&read, &[2], 3).await;
    server.expect("process/read").await;
    drop(server);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    assert_eq!(read["params"]["afterSeq"], 2);
    let end = json!({"chunks": [], "nextSeq": 4, "exited": true, "exitCode": 0,
        "closed": true, "failure": null, "sandboxDenied": false});
    server.answer(&read, end).await;
    let events = events(&process).await;
    assert_eq!(numbers(&events), [1, 2, 3]);
    assert!(matches!(&events[0], Event::Exited(..)));
}
