//! A server that is played by the test.

use std::time::Duration;

use exec_client::{client::ExecServerClient, handshake::ConnectOptions};
use exec_transport::{
    link::{Encoding, Link},
    memory,
};
use exec_wire::outgoing::Outgoing;
use serde_json::{Value, json};
use tokio::time::timeout;

/// How long anything may take on a loaded machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The test's end of a connection.
pub(crate) struct Server(pub(crate) Link);

impl Server {
    /// Answers `initialize`, and waits for `initialized`.
    pub(crate) async fn connect() -> (Self, ExecServerClient) {
        let (here, there) = memory::pair();
        let mut server = Self(there);
        let connect = ExecServerClient::connect(here, ConnectOptions::default());
        let shake = async {
            let initialize = server.expect("initialize").await;
            server.answer(&initialize, json!({"sessionId": "s"})).await;
            server.expect("initialized").await;
        };
        let (client, ()) = futures_util::join!(connect, shake);
        (server, client.unwrap())
    }

    pub(crate) async fn expect(&mut self, method: &str) -> Value {
        let message = timeout(LIMIT, self.0.reader.next())
            .await
            .expect("a message comes");
        let message: Value = serde_json::from_slice(&message.unwrap().unwrap()).unwrap();
        assert_eq!(message["method"], method, "{message}");
        message
    }

    /// Sends a message that is ready.
    pub(crate) async fn push(&mut self, message: Outgoing, encoding: Encoding) {
        self.0.writer.push(message, encoding);
        self.0.writer.flush().await.unwrap();
    }

    pub(crate) async fn say(&mut self, message: Value) {
        let text = message.to_string().into_bytes();
        self.push(Outgoing::Text(text), Encoding::Text).await;
    }

    pub(crate) async fn answer(&mut self, request: &Value, result: Value) {
        self.say(json!({"id": request["id"], "result": result}))
            .await;
    }
}
