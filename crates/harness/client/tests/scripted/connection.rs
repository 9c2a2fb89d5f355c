//! The connection state of a client.

use exec_client::{
    client::{ConnectionState, ExecServerClient},
    connect::SessionContinuity,
    error::ExecServerError,
};
use exec_wire::environment::ReadEnvironmentStatus;
use serde_json::json;
use tokio::sync::watch;

use crate::{
    scripted_connector::ConnectorControl,
    scripted_server::{ScriptedServer, session, within},
};

async fn until(states: &mut watch::Receiver<ConnectionState>, state: ConnectionState) {
    within(states.wait_for(|now| *now == state)).await.unwrap();
}

#[tokio::test]
async fn connection_state_reports_disconnect_and_reconnect() {
    let (mut connector, server, client) = ConnectorControl::connect().await;
    let mut states = client.connection();
    assert_eq!(*states.borrow(), ConnectionState::Connected);
    connector.fail_attempts(1);
    drop(server);
    until(&mut states, ConnectionState::Reconnecting).await;
    let _server = connector.resume().await;
    until(&mut states, ConnectionState::Connected).await;
    // A late reader sees the last state.
    assert_eq!(*client.connection().borrow(), ConnectionState::Connected);
}

#[tokio::test]
async fn connection_state_reports_a_lost_session() {
    let (mut connector, server, client) = ConnectorControl::connect().await;
    let mut states = client.connection();
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    server.refuse(&initialize, -32600, "unknown session").await;
    until(&mut states, ConnectionState::Lost).await;
    connector.refuse_with(503);
    let called = client.call(ReadEnvironmentStatus).await;
    assert!(matches!(called, Err(ExecServerError::Connect(_))));
    until(&mut states, ConnectionState::Lost).await;
    connector.refuse_with(0);
    let called = {
        let client = client.clone();
        tokio::spawn(async move { client.call(ReadEnvironmentStatus).await })
    };
    let mut server = connector.accept().await;
    until(&mut states, ConnectionState::Reconnecting).await;
    server.handshake(session("t")).await;
    let status = server.expect("environment/status").await;
    server.answer(&status, json!({"status": "ready"})).await;
    within(called).await.unwrap().unwrap();
    until(&mut states, ConnectionState::Connected).await;
}

/// Returns the last state of a client after its only connection has ended.
async fn last_state(client: &ExecServerClient, server: ScriptedServer) {
    let mut states = client.connection();
    drop(server);
    until(&mut states, ConnectionState::Lost).await;
    assert_eq!(*client.connection().borrow(), ConnectionState::Lost);
}

#[tokio::test]
async fn single_link_client_ends_with_its_link() {
    let (server, client) = ScriptedServer::connect().await;
    last_state(&client, server).await;
    let (_connector, server, client) =
        ConnectorControl::connect_to(SessionContinuity::Ended, session("s")).await;
    last_state(&client, server).await;
}

#[tokio::test]
async fn state_watcher_does_not_keep_the_connection_open() {
    let (_server, client) = ScriptedServer::connect().await;
    let mut states = client.connection();
    drop(client);
    // The sender is dropped, or the state is lost.
    let lost = within(states.wait_for(|now| *now == ConnectionState::Lost)).await;
    drop(lost);
    assert_eq!(*states.borrow(), ConnectionState::Lost);
}

#[tokio::test]
async fn client_ends_after_flushing_when_all_handles_are_dropped() {
    let (_connector, mut server, client) = ConnectorControl::connect().await;
    let (ended, another) = (client.ended(), client.clone());
    let mut ended = std::pin::pin!(ended);
    drop(client);
    let early = tokio::time::timeout(std::time::Duration::from_millis(20), &mut ended).await;
    assert!(early.is_err(), "a handle still exists");
    drop(another);
    within(ended).await;
    // By then the server has received all messages.
    assert!(matches!(server.0.reader.next().await, Ok(None)));
}
