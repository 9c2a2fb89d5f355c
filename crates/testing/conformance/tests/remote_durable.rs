//! Runs the families that touch processes and sessions against a server whose processes are all
//! durable: they promise the same as ordinary ones.

use exec_client::{client::ExecServerClient, connect::RemoteExecServerConnectArgs};
use exec_conformance::{
    restarted_server::RestartedServer,
    subject::{REMOTE, Subject},
    transport_suite,
};

const PROBE: &str = env!("CARGO_BIN_EXE_exec-probe");

transport_suite!(remote_durable, durable_server(), over_durable);

/// A slow client pauses a durable process only once its journal is full.
const JOURNAL_BYTES: &str = "8388608";

async fn durable_server() -> RestartedServer {
    RestartedServer::start(&["--journal-bytes", JOURNAL_BYTES]).await
}

#[expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]
async fn over_durable(server: &RestartedServer) -> Subject {
    let args = RemoteExecServerConnectArgs::new(server.url(), "conformance");
    let client = ExecServerClient::connect_websocket(args).await.unwrap();
    Subject::of_client(&client, REMOTE, PROBE, ())
}
