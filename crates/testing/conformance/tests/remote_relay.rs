//! The suite through a hub, to an executor of its own: registry, rendezvous and Noise between.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use exec_client::client::ExecServerClient;
use exec_conformance::{conformance_suite, difference::RELAYED, hub::Hub, subject::Subject};

conformance_suite!(remote_relay, subject());

async fn subject() -> Subject {
    let hub = Hub::start().await;
    let executor = hub.executor().await;
    let client = ExecServerClient::connect_relay(hub.args()).await.unwrap();
    let probe = env!("CARGO_BIN_EXE_exec-probe");
    Subject::of_client(&client, RELAYED, probe, (hub, executor))
}
