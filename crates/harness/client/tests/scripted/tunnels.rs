//! Tunnels that the client did not ask for.

use exec_env::tunnel::{TunnelError, TunnelTarget};
use serde_json::{Value, json};

use crate::scripted_server::{ScriptedServer, session, within};

fn with_tunnels() -> Value {
    let mut session = session("s");
    session["extensions"] = json!(["tunnels"]);
    session
}

/// Announces a connection, and expects that the client takes neither it nor its data.
async fn expect_refused(server: &mut ScriptedServer, listener: &str) {
    let incoming = json!({"listenId": listener, "tunnelId": "zz"});
    server
        .send(json!({"method": "tunnel/incoming", "params": incoming}))
        .await;
    for id in [listener, "zz"] {
        let close = server.expect("tunnel/close").await;
        assert_eq!(close["params"], json!({"tunnelId": id}));
    }
    let data = json!({"tunnelId": "zz", "seq": 1, "chunk": "eA=="});
    server
        .send(json!({"method": "tunnel/data", "params": data}))
        .await;
    let close = server.expect("tunnel/close").await;
    let unknown = json!({"tunnelId": "zz", "reason": "unknown tunnel"});
    assert_eq!(close["params"], unknown);
}

#[tokio::test]
async fn connection_of_a_listener_that_was_not_opened_is_refused() {
    let (mut server, client) = ScriptedServer::connect_as(with_tunnels()).await;
    expect_refused(&mut server, "l").await;
    // One that the server has refused was not opened, either.
    let network = client.environment().network;
    let listening = tokio::spawn(network.listen(TunnelTarget::loopback(0)));
    let request = server.expect("tunnel/listen").await;
    let id = request["params"]["listenId"].as_str().unwrap().to_owned();
    server.refuse(&request, -32602, "sandbox: refused").await;
    let refused = within(listening).await.unwrap().unwrap_err();
    assert_eq!(refused, TunnelError::Refused("sandbox: refused".to_owned()));
    expect_refused(&mut server, &id).await;
}

#[tokio::test]
async fn connection_of_a_dropped_listener_is_refused() {
    let (mut server, client) = ScriptedServer::connect_as(with_tunnels()).await;
    let network = client.environment().network;
    let listening = tokio::spawn(network.listen(TunnelTarget::loopback(0)));
    let request = server.expect("tunnel/listen").await;
    assert_eq!(request["params"].get("host"), None, "{request}");
    server.answer(&request, json!({"port": 9000})).await;
    let listener = within(listening).await.unwrap().unwrap();
    let id = request["params"]["listenId"].as_str().unwrap();
    drop(listener);
    let close = server.expect("tunnel/close").await;
    assert_eq!(close["params"], json!({"tunnelId": id}));
    expect_refused(&mut server, id).await;
}
