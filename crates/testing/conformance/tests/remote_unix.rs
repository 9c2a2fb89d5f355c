//! The suite over a unix socket, to a server of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use exec_conformance::{conformance_suite, server::Server, subject::Subject};
use exec_transport::connect::{Address, WebSocket};

conformance_suite!(remote_unix, subject());

async fn subject() -> Subject {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let server = Server::listen(&format!("unix://{}", socket.display())).await;
    let link = WebSocket::new(Address::Unix(socket)).open().await.unwrap();
    Subject::remote(link, env!("CARGO_BIN_EXE_exec-probe"), (server, directory)).await
}
