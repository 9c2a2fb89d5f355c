//! Connections that are cut under load, direct and through a hub: nothing is lost, repeated or
//! hangs.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed assertion panics"
)]

use std::{net::SocketAddr, pin::pin, time::Duration};

use bytes::Bytes;
use exec_client::{
    client::ExecServerClient,
    connect::{RelayExecServerConnectArgs, RemoteExecServerConnectArgs},
};
use exec_conformance::{
    cutting_proxy::CuttingProxy,
    hub::{ENVIRONMENT, Executor, Hub},
    load_generator::LoadGenerator,
    pattern,
    server::Server,
};
use exec_env::{
    environment::{Command, ProcessIo, StdinMode},
    process::CommunicateOptions,
    tunnel::TunnelTarget,
};
use exec_wire::{id::ProcessId, path_uri::PathUri};
use futures_util::future::poll_immediate;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, split},
    net::TcpListener,
    runtime::Builder,
    time::timeout,
};

const WEBSOCKET_CUTS: usize = 1000;
/// Timeout of the whole test.
const WEBSOCKET_TIMEOUT: Duration = Duration::from_secs(220);

#[tokio::test]
async fn thousand_disconnects_lose_and_repeat_nothing() {
    let server = Server::listen("ws://127.0.0.1:0").await;
    let upstream: SocketAddr = server.url.trim_start_matches("ws://").parse().unwrap();
    let proxy = CuttingProxy::start(upstream, WEBSOCKET_CUTS, 0x5eed).await;
    let client = connect_websocket(&proxy).await;
    let load = LoadGenerator::new(client.environment());
    let rounds = timeout(WEBSOCKET_TIMEOUT, load.run(proxy.until_cut(WEBSOCKET_CUTS)))
        .await
        .unwrap_or_else(|_| panic!("test hangs after {} cuts", proxy.cuts()));
    assert_eq!(proxy.cuts(), WEBSOCKET_CUTS);
    assert!(rounds > 100, "too few rounds under load: {rounds}");
    load.assert_most_starts_succeeded();
}

async fn connect_websocket(proxy: &CuttingProxy) -> ExecServerClient {
    loop {
        // The first handshake may be cut as well; retry it.
        let args = RemoteExecServerConnectArgs::new(format!("ws://{}", proxy.address()), "cuts");
        if let Ok(client) = ExecServerClient::connect_websocket(args).await {
            return client;
        }
    }
}

/// Cut connections of the harness, including registry requests.
const HARNESS_CUTS: usize = 120;
/// Cut connections of the executor, whose backoff grows after each.
const EXECUTOR_CUTS: usize = 3;
/// Timeout of the whole test.
const RELAY_TIMEOUT: Duration = Duration::from_secs(110);

#[tokio::test]
async fn disconnected_harness_resumes_without_a_new_session() {
    let hub = Hub::start().await;
    let _executor = hub.executor().await;
    let proxy = before(&hub, 0, HARNESS_CUTS).await;
    survive(&hub, &url(&proxy), &proxy, HARNESS_CUTS).await;
}

#[tokio::test]
async fn disconnected_executor_resumes_its_streams() {
    let hub = Hub::start().await;
    // The first connection is the registry request. An executor exits if it does not know whether
    // the registry received it.
    let proxy = before(&hub, 1, EXECUTOR_CUTS).await;
    let _executor = Executor::start(&url(&proxy), &hub.token, ENVIRONMENT).await;
    survive(&hub, &hub.url, &proxy, EXECUTOR_CUTS).await;
}

/// Cuts of the harness and of the executor during the transfer through a tunnel.
const TUNNEL_CUTS: [usize; 2] = [10, 2];

#[tokio::test]
async fn tunnel_survives_cuts_of_both_hub_sockets() {
    let hub = Hub::start().await;
    let [harness_cuts, executor_cuts] = TUNNEL_CUTS;
    let executor_proxy = before(&hub, 1, executor_cuts).await;
    let _executor = Executor::start(&url(&executor_proxy), &hub.token, ENVIRONMENT).await;
    let harness_proxy = before(&hub, 0, harness_cuts).await;
    let client = connect_relay(&url(&harness_proxy), &hub.token).await;
    let session = client.session().session_id.clone();
    let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = echo.local_addr().unwrap().port();
    let network = client.environment().network;
    let tunnel = network.open(TunnelTarget::loopback(port)).await.unwrap();
    let (mut far_reader, mut far_writer) = echo.accept().await.unwrap().0.into_split();
    let (mut reader, mut writer) = split(tunnel);
    let block = pattern::bytes(100_003);
    let send = async {
        let mut all_cut = pin!(async {
            tokio::join!(
                harness_proxy.until_cut(harness_cuts),
                executor_proxy.until_cut(executor_cuts)
            )
        });
        let mut sent = 0;
        while poll_immediate(&mut all_cut).await.is_none() {
            writer.write_all(&block).await.unwrap();
            sent += block.len();
        }
        writer.shutdown().await.unwrap();
        sent
    };
    let echoing = async {
        copy(&mut far_reader, &mut far_writer).await.unwrap();
        far_writer.shutdown().await.unwrap();
    };
    let receive = async {
        let (mut received, mut buffer) = (0, vec![0; block.len()]);
        loop {
            let at = received % block.len();
            match reader.read(&mut buffer[at..]).await.unwrap() {
                0 => return received,
                read => {
                    assert!(buffer[at..at + read] == block[at..at + read]);
                    received += read;
                }
            }
        }
    };
    let transfer = async { tokio::join!(send, echoing, receive) };
    let (sent, (), received) = timeout(RELAY_TIMEOUT, transfer)
        .await
        .unwrap_or_else(|_| panic!("transfer hangs"));
    assert_eq!(received, sent);
    assert_eq!(client.session().session_id, session);
}

#[tokio::test]
async fn command_survives_a_silently_dead_executor_connection() {
    let hub = Hub::start().await;
    let proxy = before(&hub, 0, 0).await;
    let _executor = Executor::start(&url(&proxy), &hub.token, ENVIRONMENT).await;
    let client = connect_relay(&hub.url, &hub.token).await;
    let began = client.session().session_id.clone();
    let argv = ["cat"].map(str::to_owned).to_vec();
    let command = Command {
        io: ProcessIo::Pipes {
            stdin: StdinMode::Piped,
        },
        ..Command::new(
            ProcessId::new("cat").unwrap(),
            argv,
            PathUri::parse("file:///").unwrap(),
        )
    };
    let started = client.environment().backend.start(command).await;
    let cat = started.unwrap().process;
    proxy.blackhole_existing();
    let said = cat.communicate(
        Bytes::from_static(b"still there"),
        CommunicateOptions::default(),
    );
    let said = timeout(RELAY_TIMEOUT, said).await.unwrap().unwrap();
    assert_eq!(said.stdout.data, b"still there");
    assert_eq!(client.session().session_id, began);
}

#[test]
fn session_of_a_dead_harness_is_resumed_by_another() {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let ours = runtime();
    // Its tasks end without closing anything, as in a killed process.
    let theirs = runtime();
    let hub = ours.block_on(Hub::start());
    let _executor = ours.block_on(hub.executor());
    let first = theirs.block_on(ExecServerClient::connect_relay(hub.args()));
    let session = first.as_ref().unwrap().session().session_id.clone();
    drop(theirs);
    let args = RelayExecServerConnectArgs {
        resume_session_id: Some(session.clone()),
        ..hub.args()
    };
    let second = ours.block_on(ExecServerClient::connect_relay(args));
    assert_eq!(second.unwrap().session().session_id, session);
}

/// Runs load until all cuts are made, then asserts that the session is still the first one.
async fn survive(hub: &Hub, registry: &str, proxy: &CuttingProxy, cuts: usize) {
    let client = connect_relay(registry, &hub.token).await;
    let began = client.session().session_id.clone();
    let load = LoadGenerator::new(client.environment());
    let rounds = timeout(RELAY_TIMEOUT, load.run(proxy.until_cut(cuts)))
        .await
        .unwrap_or_else(|_| panic!("test hangs after {} cuts", proxy.cuts()));
    assert!(rounds > 5, "too few rounds under load: {rounds}");
    assert_eq!(client.session().session_id, began);
    assert_eq!(load.refused(), 0, "a stream that goes on cuts no start off");
}

async fn connect_relay(registry: &str, token: &str) -> ExecServerClient {
    loop {
        let args = RelayExecServerConnectArgs::new(registry, ENVIRONMENT, token, "cuts");
        // The first connection may be cut as well; retry it.
        if let Ok(client) = ExecServerClient::connect_relay(args).await {
            return client;
        }
    }
}

/// Starts a proxy in front of the hub. The hub returns URLs with the host of the request.
async fn before(hub: &Hub, spared: usize, cuts: usize) -> CuttingProxy {
    let upstream: SocketAddr = hub.url.trim_start_matches("http://").parse().unwrap();
    CuttingProxy::start_after(spared, upstream, cuts, 0x5eed).await
}

fn url(proxy: &CuttingProxy) -> String {
    format!("http://{}", proxy.address())
}
