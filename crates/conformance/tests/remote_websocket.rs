//! The suite over a websocket, to a server of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use std::sync::Arc;

use exec_client::{backend::RemoteBackend, client::ExecServerClient};
use exec_conformance::{
    conformance_suite,
    server::Server,
    subject::{Capabilities, Ids, Refusals, Subject},
};
use exec_transport::connect;

conformance_suite!(remote_websocket, subject());

async fn subject() -> Subject {
    let server = Server::listen("ws://127.0.0.1:0").await;
    let link = connect::websocket(&server.url, None, None).await.unwrap();
    let client = ExecServerClient::connect(link, Default::default())
        .await
        .unwrap();
    let capabilities = Capabilities {
        refusals: Refusals::Rpc,
        ids: Ids::Unique,
    };
    let backend = Arc::new(RemoteBackend::new(client));
    Subject::new(
        backend,
        capabilities,
        env!("CARGO_BIN_EXE_exec-probe"),
        server,
    )
}
