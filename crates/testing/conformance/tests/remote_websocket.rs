//! The suite over a websocket, to a server of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use exec_conformance::{conformance_suite, server::Server, subject::Subject};
use exec_transport::connect::WebSocket;

conformance_suite!(remote_websocket, subject());

async fn subject() -> Subject {
    let server = Server::listen("ws://127.0.0.1:0").await;
    let link = WebSocket::new(server.url.parse().unwrap())
        .open()
        .await
        .unwrap();
    Subject::remote(link, env!("CARGO_BIN_EXE_exec-probe"), server).await
}
