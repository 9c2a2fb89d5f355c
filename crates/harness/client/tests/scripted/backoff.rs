//! Reconnect backoff, and resuming only on the server that has the session.

use std::time::Duration;

use exec_client::connect::BackoffDelay;
use exec_env::{
    environment::DisconnectReason,
    process::{ExecProcessEvent as Event, ProcessError},
};
use exec_wire::environment::ReadEnvironmentStatus;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    scripted_connector::ConnectorControl,
    scripted_server::{events, session, within},
};

/// One second after the first failure, doubled after each further one.
fn doubling_backoff(failures: u32) -> BackoffDelay {
    BackoffDelay::FromEnd(Duration::from_secs(1 << failures))
}

/// Returns the whole seconds between attempts, and asserts that the rest is zero.
fn gaps(connector: &ConnectorControl) -> Vec<u64> {
    let times = connector.times();
    let gaps = times.windows(2).map(|two| two[1] - two[0]);
    gaps.map(|gap| {
        assert!(gap.subsec_millis() < 20, "{gap:?}");
        gap.as_secs()
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn attempts_follow_the_connector_backoff() {
    let (mut connector, server, _client) =
        ConnectorControl::connect_with_backoff(doubling_backoff).await;
    connector.fail_attempts(3);
    drop(server);
    connector.resume().await;
    // The first attempt is immediate.
    assert_eq!(gaps(&connector), [0, 1, 2, 4]);
}

#[tokio::test(start_paused = true)]
async fn backoff_starts_when_the_attempt_fails() {
    let (mut connector, server, _client) =
        ConnectorControl::connect_with_backoff(doubling_backoff).await;
    drop(server);
    let mut silent = connector.accept().await;
    // The server does not answer for ten seconds.
    silent.expect("initialize").await;
    connector.resume().await;
    assert_eq!(gaps(&connector), [0, 11]);
}

#[tokio::test(start_paused = true)]
async fn useful_connection_resets_the_backoff() {
    let (mut connector, server, client) =
        ConnectorControl::connect_with_backoff(doubling_backoff).await;
    connector.fail_attempts(2);
    drop(server);
    let mut server = connector.resume().await;
    let call = client.call(ReadEnvironmentStatus);
    let answer = async {
        let request = server.expect("environment/status").await;
        server.answer(&request, json!({"status": "ready"})).await;
    };
    let (called, ()) = futures_util::join!(within(call), answer);
    called.unwrap();
    connector.fail_attempts(1);
    drop(server);
    connector.resume().await;
    assert_eq!(gaps(&connector), [0, 1, 2, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn replaced_server_ends_the_session_immediately() {
    let (mut connector, mut server, client) =
        ConnectorControl::connect_with_backoff(doubling_backoff).await;
    let process = server.start(&client, "p").await.process;
    connector.replace_server();
    drop(server);
    let failed = events(&process).await;
    let reason = "server closed the connection; session was not resumed: executor key changed";
    assert!(
        matches!(&failed[..], [Event::Failed(ProcessError::Disconnected(DisconnectReason::Session(text)))]
            if text == reason),
        "{failed:?}"
    );
    assert_eq!(connector.times().len(), 1, "no further attempt");
    // The next call opens a session on the new server.
    let call = client.call(ReadEnvironmentStatus);
    let answer = async {
        let mut server = connector.accept().await;
        let initialize = server.handshake(session("t")).await;
        assert_eq!(
            initialize["params"]
                .get("resumeSessionId")
                .cloned()
                .unwrap_or_default(),
            json!(null)
        );
        let request = server.expect("environment/status").await;
        server.answer(&request, json!({"status": "ready"})).await;
        server
    };
    let (called, _server) = futures_util::join!(within(call), answer);
    assert_eq!(called.unwrap().status, "ready");
    assert_eq!(client.session().session_id.as_str(), "t");
}

#[tokio::test(start_paused = true)]
async fn requested_retry_skips_the_backoff() {
    let (mut connector, server, client) =
        ConnectorControl::connect_with_backoff(doubling_backoff).await;
    connector.fail_attempts(5);
    let begin = Instant::now();
    drop(server);
    // The sixth attempt would start 31 seconds after the first.
    sleep(Duration::from_secs(16)).await;
    connector.fail_attempts(0);
    client.retry_now();
    connector.resume().await;
    assert_eq!(begin.elapsed().as_secs(), 16);
    assert_eq!(connector.times().len(), 7);
}
