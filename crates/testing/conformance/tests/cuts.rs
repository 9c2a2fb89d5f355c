//! A client that is cut off a thousand times under load: nothing is lost, nothing is repeated, and
//! nothing hangs.
#![expect(clippy::panic, reason = "a panic is how a test fails")]

use std::{net::SocketAddr, time::Duration};

use exec_client::{client::ExecServerClient, connect::RemoteExecServerConnectArgs};
use exec_conformance::{cutting::CuttingProxy, load::Load, server::Server};
use tokio::time::timeout;

const CUTS: usize = 1000;
/// Longest that all of it may take.
const PATIENCE: Duration = Duration::from_secs(220);

#[tokio::test]
async fn a_thousand_cuts_lose_nothing_and_repeat_nothing() {
    let server = Server::listen("ws://127.0.0.1:0").await;
    let upstream: SocketAddr = server.url.trim_start_matches("ws://").parse().unwrap();
    let proxy = CuttingProxy::start(upstream, CUTS, 0x5eed).await;
    let client = connect(&proxy).await;
    let load = Load::new(client.environment());
    let rounds = timeout(PATIENCE, load.run(proxy.until_cut(CUTS)))
        .await
        .unwrap_or_else(|_| panic!("something hangs after {} cuts", proxy.cuts()));
    assert_eq!(proxy.cuts(), CUTS);
    assert!(rounds > 100, "there was load all the time: {rounds}");
    load.assert_mostly_started();
}

async fn connect(proxy: &CuttingProxy) -> ExecServerClient {
    loop {
        // The first handshake may be cut, too; who connects hears of it and tries again.
        let args = RemoteExecServerConnectArgs::new(format!("ws://{}", proxy.address()), "cuts");
        if let Ok(client) = ExecServerClient::connect_websocket(args).await {
            return client;
        }
    }
}
