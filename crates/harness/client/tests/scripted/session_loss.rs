//! Disconnects without recovery: everything fails immediately, with the reason.

use std::time::Duration;

use exec_client::{
    backend::RemoteBackend,
    client::ExecServerClient,
    connect::SessionContinuity,
    error::{ConnectError, ExecServerError, FaultParty},
};
use exec_env::{
    environment::{DisconnectReason, ExecBackend, StartError},
    process::{ExecProcessEvent as Event, OutputReadRequest, ProcessError},
};
use exec_transport::link::DataEncoding;
use exec_wire::{
    environment::ReadEnvironmentStatus,
    outgoing_message::OutgoingMessage,
    process::{TerminateMode, WaitUntil},
};
use futures_util::FutureExt;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::{
    scripted_connector::ConnectorControl,
    scripted_server::{ScriptedServer, command, events, session, within},
};

/// The failure for a session that the server has dropped.
const UNKNOWN: &str = "server closed the connection; session was not resumed: server refused the session: \
    unknown session id s (-32600)";

/// Asserts that the next call opens a new session, and that the previous process stays failed.
async fn expect_new_session(
    connector: &mut ConnectorControl,
    client: &ExecServerClient,
) -> ScriptedServer {
    let status = client.call(ReadEnvironmentStatus);
    let mut server = connector.accept().await;
    let initialize = server.handshake(session("t")).await;
    assert_eq!(initialize["params"]["resumeSessionId"], json!(null));
    let request = server.expect("environment/status").await;
    server.answer(&request, json!({"status": "ready"})).await;
    within(status).await.unwrap();
    assert_eq!(client.session().session_id.as_str(), "t");
    server
}

#[tokio::test]
async fn unknown_session_is_lost_immediately() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let pending = process.wait(WaitUntil::Closed, None);
    server.expect("process/wait").await;
    let closed = client.closed();
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    let queued = client.call(ReadEnvironmentStatus);
    server
        .refuse(&initialize, -32600, "unknown session id s")
        .await;
    let reason = DisconnectReason::Session(UNKNOWN.to_owned());
    let error = ProcessError::Disconnected(reason.clone());
    assert_eq!(within(pending).await, Err(error.clone()));
    let failure = within(queued).await.unwrap_err();
    assert_eq!(failure, ExecServerError::Disconnected(reason));
    assert_eq!(failure.fault(), FaultParty::Session);
    within(closed).await;
    assert_eq!(events(&process).await, [Event::Failed(error.clone())]);
    let mut server = expect_new_session(&mut connector, &client).await;
    assert_eq!(
        within(process.wait(WaitUntil::Closed, None)).await,
        Err(error)
    );
    // Its id is unused in the new session, and dropping the old handle does not terminate the new
    // process.
    let other = server.start(&client, "p").await;
    drop(process);
    drop(client.call(ReadEnvironmentStatus));
    server.expect("environment/status").await;
    drop(other);
    server.expect("process/terminate").await;
}

#[tokio::test]
async fn resuming_a_different_session_is_a_protocol_error() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    server.answer(&initialize, session("x")).await;
    let text = "server closed the connection; session was not resumed: \
        server resumed session `x` instead of `s`";
    let error = ProcessError::Disconnected(DisconnectReason::Protocol(text.to_owned()));
    assert_eq!(events(&process).await, [Event::Failed(error)]);
}

#[tokio::test(start_paused = true)]
async fn recovery_without_a_session_ttl_ends_after_45_seconds() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let begin = Instant::now();
    connector.fail_attempts(usize::MAX);
    let backend = RemoteBackend::new(client.clone());
    let respond = async {
        server.expect("process/start").await;
        drop(server);
    };
    let limit = Duration::from_secs(60);
    let start = timeout(limit, backend.start(command("q")));
    let (started, ()) = futures_util::join!(start, respond);
    assert_eq!(begin.elapsed().as_secs(), 45);
    assert!(connector.times().len() > 240, "{}", connector.times().len());
    let text = "server closed the connection; session was not resumed within 45s: ";
    assert!(
        matches!(started.unwrap(), Err(StartError::Disconnected(DisconnectReason::Transport(reason)))
            if reason.starts_with(text) && reason.contains("connection refused"))
    );
    assert!(matches!(
        &events(&process).await[..],
        [Event::Failed(ProcessError::Disconnected(
            DisconnectReason::Transport(_)
        ))]
    ));
    // A call makes one attempt and returns its error.
    let failure = within(client.call(ReadEnvironmentStatus))
        .await
        .unwrap_err();
    assert!(matches!(
        &failure,
        ExecServerError::Connect(ConnectError::Link(_))
    ));
    assert_eq!(failure.fault(), FaultParty::Transport);
    assert_eq!(begin.elapsed().as_secs(), 45);
    connector.fail_attempts(0);
    expect_new_session(&mut connector, &client).await;
}

#[tokio::test(start_paused = true)]
async fn hanging_handshake_is_abandoned_in_time() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let begin = Instant::now();
    drop(server);
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(connector.accept().await);
    }
    let end = timeout(Duration::from_secs(60), client.closed()).await;
    end.expect("timed out");
    assert_eq!(begin.elapsed().as_secs(), 45);
    let received = events(&process).await;
    let text = "did not answer `initialize` within 10s";
    assert!(
        matches!(&received[..], [Event::Failed(ProcessError::Disconnected(reason))]
            if reason.to_string().contains(text)),
        "{received:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn server_that_accepts_and_disconnects_is_abandoned_in_time() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let begin = Instant::now();
    drop(server);
    let respond = async {
        loop {
            let mut server = connector.accept().await;
            let initialize = server.expect("initialize").await;
            let answer = json!({"id": initialize["id"], "result": session("s")});
            let text = answer.to_string().into_bytes();
            server
                .0
                .writer
                .push(OutgoingMessage::Text(text), DataEncoding::Text);
            // The last attempt may have timed out already.
            drop(server.0.writer.flush().await);
        }
    };
    let end = timeout(Duration::from_secs(60), client.closed());
    tokio::select! {
        () = respond => {}
        ended = end => ended.expect("timed out"),
    }
    assert!(begin.elapsed() < Duration::from_secs(47));
    assert!(matches!(&events(&process).await[..], [Event::Failed(_)]));
}

#[tokio::test(start_paused = true)]
async fn stable_connections_reset_the_recovery_window() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    let wait = process.wait(WaitUntil::Exited, None);
    server.expect("process/wait").await;
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(5)).await;
        drop(server);
        server = connector.resume().await;
        // Neither call is answered.
        server.expect("process/read").await;
        server.expect("process/wait").await;
    }
    assert!(wait.now_or_never().is_none());
    assert!(process.status().tree_alive);
}

#[tokio::test]
async fn non_resumable_server_is_not_reconnected() {
    let session = session("s");
    let (mut connector, mut server, client) =
        ConnectorControl::connect_to(SessionContinuity::Ended, session).await;
    let process = server.start(&client, "p").await.process;
    let pending = client.call(ReadEnvironmentStatus);
    server.expect("environment/status").await;
    drop(server);
    let reason = DisconnectReason::Transport("server closed the connection".to_owned());
    assert_eq!(
        within(pending).await,
        Err(ExecServerError::Disconnected(reason.clone()))
    );
    let error = ProcessError::Disconnected(reason);
    assert_eq!(events(&process).await, [Event::Failed(error)]);
    assert_eq!(connector.times().len(), 1);
    expect_new_session(&mut connector, &client).await;
}

#[tokio::test]
async fn dropped_client_does_not_recover() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await;
    drop(server);
    let mut server = connector.accept().await;
    server.expect("initialize").await;
    drop((client, process));
    // The link is closed, so the server's session timeout is running.
    let end = within(server.0.reader.next()).await;
    assert!(matches!(end, Ok(None)));
}

#[tokio::test]
async fn finished_process_stays_readable_after_session_loss() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let process = server.start(&client, "p").await.process;
    server.output("p", 1, "YQ==").await;
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    let received = events(&process).await;
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    server
        .refuse(&initialize, -32600, "unknown session id s")
        .await;
    within(client.closed()).await;
    let page = within(process.read(OutputReadRequest::default()))
        .await
        .unwrap();
    assert_eq!((page.chunks.len(), page.closed), (1, true));
    assert_eq!(events(&process).await, received);
    let mut server = expect_new_session(&mut connector, &client).await;
    let _other = server.start(&client, "p").await;
    let ended = within(process.terminate(TerminateMode::Force)).await;
    let reason = DisconnectReason::Session(UNKNOWN.to_owned());
    assert_eq!(ended, Err(ProcessError::Disconnected(reason)));
}

#[tokio::test(start_paused = true)]
async fn rejected_client_does_not_retry() {
    for status in [401, 403, 404, 426] {
        let (connector, mut server, client) = ConnectorControl::connect().await;
        let process = server.start(&client, "p").await.process;
        let begin = Instant::now();
        connector.refuse_with(status);
        drop(server);
        let text = format!(
            "server closed the connection; session was not resumed: server refused the connection: {status} no entry"
        );
        let error = ProcessError::Disconnected(DisconnectReason::Transport(text));
        assert_eq!(events(&process).await, [Event::Failed(error)]);
        assert_eq!(begin.elapsed(), Duration::ZERO);
        assert_eq!(connector.times().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn unavailable_server_is_retried() {
    for status in [408, 429, 500, 503] {
        let (mut connector, mut server, client) = ConnectorControl::connect().await;
        let process = server.start(&client, "p").await.process;
        connector.refuse_with(status);
        drop(server);
        while connector.times().len() < 4 {
            tokio::time::advance(Duration::from_millis(50)).await;
            tokio::task::yield_now().await;
        }
        connector.refuse_with(0);
        let mut server = connector.resume().await;
        server.expect("process/read").await;
        assert!(process.status().tree_alive);
    }
}

/// Connects to a server that keeps sessions for ten minutes.
async fn connect_with_ttl() -> (ConnectorControl, ScriptedServer, ExecServerClient) {
    let mut session = session("s");
    session["sessionTtlMs"] = json!(600_000);
    ConnectorControl::connect_to(SessionContinuity::Resumed, session).await
}

#[tokio::test(start_paused = true)]
async fn session_is_resumable_for_its_ttl() {
    let (mut connector, mut server, client) = connect_with_ttl().await;
    let process = server.start(&client, "p").await.process;
    connector.fail_attempts(usize::MAX);
    drop(server);
    tokio::time::sleep(Duration::from_secs(599)).await;
    connector.fail_attempts(0);
    let mut server = connector.resume().await;
    let read = server.expect("process/read").await;
    server.page(&read, &[1], 2).await;
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    assert_eq!(events(&process).await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn recovery_ends_with_the_session_ttl() {
    let (connector, server, client) = connect_with_ttl().await;
    connector.fail_attempts(usize::MAX);
    let begin = Instant::now();
    drop(server);
    client.closed().await;
    assert_eq!(begin.elapsed().as_secs(), 600);
}

#[tokio::test(start_paused = true)]
async fn reconnect_timeout_shortens_recovery() {
    let (connector, server, client) = connect_with_ttl().await;
    client.set_reconnect_timeout(Duration::from_secs(5));
    connector.fail_attempts(usize::MAX);
    let begin = Instant::now();
    drop(server);
    client.closed().await;
    assert_eq!(begin.elapsed().as_secs(), 5);
}
