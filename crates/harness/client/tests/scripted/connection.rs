//! Whether a client is connected, as it tells those who show it.

use exec_client::{
    client::ExecServerClient, connection::ConnectionState, connector::Continuity,
    error::ExecServerError,
};
use exec_wire::environment::ReadEnvironmentStatus;
use serde_json::json;
use tokio::sync::watch;

use crate::{
    doors::House,
    server::{Server, session, within},
};

async fn until(states: &mut watch::Receiver<ConnectionState>, state: ConnectionState) {
    within(states.wait_for(|now| *now == state)).await.unwrap();
}

#[tokio::test]
async fn a_broken_connection_is_told_of_and_so_is_the_next() {
    let (mut house, server, client) = House::connect().await;
    let mut states = client.connection();
    assert_eq!(*states.borrow(), ConnectionState::Connected);
    house.close(1);
    drop(server);
    until(&mut states, ConnectionState::Reconnecting).await;
    let _server = house.resume().await;
    until(&mut states, ConnectionState::Connected).await;
    // Who looks later sees the last of them.
    assert_eq!(*client.connection().borrow(), ConnectionState::Connected);
}

#[tokio::test]
async fn a_lost_session_is_told_of_until_there_is_another() {
    let (mut house, server, client) = House::connect().await;
    let mut states = client.connection();
    drop(server);
    let mut server = house.knock().await;
    let initialize = server.expect("initialize").await;
    server.refuse(&initialize, -32600, "unknown session").await;
    until(&mut states, ConnectionState::Lost).await;
    house.refuse(503);
    let asked = client.call(ReadEnvironmentStatus).await;
    assert!(matches!(asked, Err(ExecServerError::Connect(_))));
    until(&mut states, ConnectionState::Lost).await;
    house.refuse(0);
    let asked = {
        let client = client.clone();
        tokio::spawn(async move { client.call(ReadEnvironmentStatus).await })
    };
    let mut server = house.knock().await;
    until(&mut states, ConnectionState::Reconnecting).await;
    server.shake_hands(session("t")).await;
    let status = server.expect("environment/status").await;
    server.answer(&status, json!({"status": "ready"})).await;
    within(asked).await.unwrap().unwrap();
    until(&mut states, ConnectionState::Connected).await;
}

/// Returns the last state of a client whose one connection ends.
async fn last_state(client: &ExecServerClient, server: Server) {
    let mut states = client.connection();
    drop(server);
    until(&mut states, ConnectionState::Lost).await;
    assert_eq!(*client.connection().borrow(), ConnectionState::Lost);
}

#[tokio::test]
async fn without_another_way_to_the_server_the_end_of_the_connection_is_the_end() {
    let (server, client) = Server::connect().await;
    last_state(&client, server).await;
    let (_house, server, client) = House::connect_to(Continuity::Ended, session("s")).await;
    last_state(&client, server).await;
}

#[tokio::test]
async fn whoever_watches_does_not_keep_the_connection() {
    let (_server, client) = Server::connect().await;
    let mut states = client.connection();
    drop(client);
    // The sender is gone, or it says so.
    let lost = within(states.wait_for(|now| *now == ConnectionState::Lost)).await;
    drop(lost);
    assert_eq!(*states.borrow(), ConnectionState::Lost);
}

#[tokio::test]
async fn a_client_ends_once_everybody_has_let_go_and_its_last_words_are_said() {
    let (_house, mut server, client) = House::connect().await;
    let (ended, another) = (client.ended(), client.clone());
    let mut ended = std::pin::pin!(ended);
    drop(client);
    let early = tokio::time::timeout(std::time::Duration::from_millis(20), &mut ended).await;
    assert!(early.is_err(), "somebody still needs it");
    drop(another);
    within(ended).await;
    // By then the server has all that there was to say.
    assert!(matches!(server.0.reader.next().await, Ok(None)));
}
