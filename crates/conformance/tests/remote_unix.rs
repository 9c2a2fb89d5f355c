//! The suite over a unix socket, to a server of its own.
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

conformance_suite!(remote_unix, subject());

async fn subject() -> Subject {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let server = Server::listen(&format!("unix://{}", socket.display())).await;
    let link = connect::unix(&socket).await.unwrap();
    let client = ExecServerClient::connect(link, Default::default())
        .await
        .unwrap();
    let capabilities = Capabilities {
        refusals: Refusals::Rpc,
        ids: Ids::Unique,
    };
    let backend = Arc::new(RemoteBackend::new(client));
    let probe = env!("CARGO_BIN_EXE_exec-probe");
    Subject::new(backend, capabilities, probe, (server, directory))
}
