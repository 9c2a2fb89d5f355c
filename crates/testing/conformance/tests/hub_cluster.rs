//! A hub cluster of three nodes on one NATS server: executors and harnesses meet across nodes, and
//! killing a node costs only a reconnect.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed assertion panics"
)]

use std::{net::SocketAddr, time::Duration};

use exec_client::{client::ExecServerClient, connect::RelayExecServerConnectArgs};
use exec_conformance::{
    hub::LoadBalancer,
    hub::NatsServer,
    hub::{Executor, Hub, token},
    load_generator::LoadGenerator,
};
use exec_wire::id::SessionId;
use futures_util::{FutureExt, future::join_all};
use tempfile::TempDir;
use tokio::{process::Child, time::timeout};

/// Enough that each node serves some executors and harnesses.
const PAIRS: usize = 3;
/// Rounds of work before and after a node is killed.
const ROUNDS: u64 = 12;
/// Timeout of the whole test.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);

/// Three hub nodes. Dropping it kills them.
struct HubCluster {
    nodes: Vec<Child>,
    addresses: Vec<SocketAddr>,
    token: String,
    _nats: NatsServer,
    _data: TempDir,
}

impl HubCluster {
    async fn start() -> Self {
        let nats = NatsServer::start().await;
        let data = tempfile::tempdir().unwrap();
        let token = token(&data).await;
        let (mut nodes, mut addresses) = (Vec::new(), Vec::new());
        for name in ["one", "two", "three"] {
            let flags = [
                "--listen",
                "127.0.0.1:0",
                "--nats",
                &nats.url,
                "--node-name",
                name,
            ];
            let (node, url) = Hub::node(&data, &flags).await;
            nodes.push(node);
            addresses.push(url.trim_start_matches("http://").parse().unwrap());
        }
        Self {
            nodes,
            addresses,
            token,
            _nats: nats,
            _data: data,
        }
    }

    fn url(&self, node: usize) -> String {
        format!("http://{}", self.addresses[node])
    }
}

#[tokio::test]
async fn executor_on_one_node_serves_a_harness_on_another() {
    let cluster = HubCluster::start().await;
    let _executor = Executor::start(&cluster.url(0), &cluster.token, "box").await;
    for node in [0, 1, 2] {
        let client = connect(&cluster.url(node), &cluster.token, "box").await;
        let load = LoadGenerator::new(client.environment());
        // One round of all kinds of work.
        let rounds = timeout(TEST_TIMEOUT, load.run(async {})).await.unwrap();
        assert!(rounds > 0, "work is done through node {node}");
        assert_eq!(load.refused(), 0);
    }
}

#[tokio::test]
async fn killed_node_under_load_loses_no_byte() {
    let mut cluster = HubCluster::start().await;
    let balancer = LoadBalancer::start(cluster.addresses.clone()).await;
    let mut executors = Vec::new();
    for pair in 0..PAIRS {
        let name = format!("box-{pair}");
        executors.push(Executor::start(&balancer.url(), &cluster.token, &name).await);
    }
    let mut loads = Vec::new();
    for pair in 0..PAIRS {
        let client = connect(&balancer.url(), &cluster.token, &format!("box-{pair}")).await;
        loads.push((LoadGenerator::new(client.environment()), client));
    }
    let began = sessions(&loads);
    // Kill a node under load; all sessions continue over the other nodes.
    let killed = async {
        join_all(loads.iter().map(|(load, _)| load.until_more(ROUNDS))).await;
        cluster.nodes[0].kill().await.unwrap();
        join_all(loads.iter().map(|(load, _)| load.until_more(ROUNDS))).await;
    };
    let killed = killed.shared();
    let work = join_all(loads.iter().map(|(load, _)| load.run(killed.clone())));
    timeout(TEST_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| panic!("something hangs after a node was killed"));
    assert_eq!(sessions(&loads), began);
    assert!(
        loads.iter().all(|(load, _)| load.refused() == 0),
        "{loads:?}"
    );
}

fn sessions(loads: &[(LoadGenerator, ExecServerClient)]) -> Vec<SessionId> {
    let session =
        |(_, client): &(LoadGenerator, ExecServerClient)| client.session().session_id.clone();
    loads.iter().map(session).collect()
}

async fn connect(registry: &str, token: &str, environment: &str) -> ExecServerClient {
    let args = RelayExecServerConnectArgs::new(registry, environment, token, "nodes");
    ExecServerClient::connect_relay(args).await.unwrap()
}
