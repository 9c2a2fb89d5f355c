//! Three nodes of a hub on one NATS server: executors and harnesses meet across them, and a node that is
//! killed costs a reconnect and nothing else.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a panic is how a test fails"
)]

use std::{net::SocketAddr, time::Duration};

use exec_client::{client::ExecServerClient, connect::RelayExecServerConnectArgs};
use exec_conformance::{
    hub::Balancer,
    hub::Nats,
    hub::{Executor, Hub, token},
    load_generator::Load,
};
use exec_wire::id::SessionId;
use futures_util::{FutureExt, future::join_all};
use tempfile::TempDir;
use tokio::{process::Child, time::timeout};

/// Enough that each node has some of either kind.
const PAIRS: usize = 3;
/// Rounds of work before and after a node is killed.
const ROUNDS: u64 = 12;
/// Longest that all of it may take.
const PATIENCE: Duration = Duration::from_secs(100);

/// Three nodes. They are killed when this is dropped.
struct Cluster {
    nodes: Vec<Child>,
    addresses: Vec<SocketAddr>,
    token: String,
    _nats: Nats,
    _data: TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let nats = Nats::start().await;
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
async fn an_executor_on_one_node_serves_a_harness_on_another() {
    let cluster = Cluster::start().await;
    let _executor = Executor::start(&cluster.url(0), &cluster.token, "box").await;
    for node in [0, 1, 2] {
        let client = connect(&cluster.url(node), &cluster.token, "box").await;
        let load = Load::new(client.environment());
        // One round of everything.
        let rounds = timeout(PATIENCE, load.run(async {})).await.unwrap();
        assert!(rounds > 0, "work is done through node {node}");
        assert_eq!(load.refused(), 0);
    }
}

#[tokio::test]
async fn a_node_that_is_killed_under_load_loses_no_byte() {
    let mut cluster = Cluster::start().await;
    let balancer = Balancer::start(cluster.addresses.clone()).await;
    let mut executors = Vec::new();
    for pair in 0..PAIRS {
        let name = format!("box-{pair}");
        executors.push(Executor::start(&balancer.url(), &cluster.token, &name).await);
    }
    let mut loads = Vec::new();
    for pair in 0..PAIRS {
        let client = connect(&balancer.url(), &cluster.token, &format!("box-{pair}")).await;
        loads.push((Load::new(client.environment()), client));
    }
    let began = sessions(&loads);
    // Everybody is at work; then a node is gone, and all go on over the others.
    let killed = async {
        join_all(loads.iter().map(|(load, _)| load.until_more(ROUNDS))).await;
        cluster.nodes[0].kill().await.unwrap();
        join_all(loads.iter().map(|(load, _)| load.until_more(ROUNDS))).await;
    };
    let killed = killed.shared();
    let work = join_all(loads.iter().map(|(load, _)| load.run(killed.clone())));
    timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| panic!("something hangs after a node was killed"));
    assert_eq!(sessions(&loads), began);
    assert!(
        loads.iter().all(|(load, _)| load.refused() == 0),
        "{loads:?}"
    );
}

fn sessions(loads: &[(Load, ExecServerClient)]) -> Vec<SessionId> {
    let session = |(_, client): &(Load, ExecServerClient)| client.session().session_id.clone();
    loads.iter().map(session).collect()
}

async fn connect(registry: &str, token: &str, environment: &str) -> ExecServerClient {
    let args = RelayExecServerConnectArgs::new(registry, environment, token, "nodes");
    ExecServerClient::connect_relay(args).await.unwrap()
}
