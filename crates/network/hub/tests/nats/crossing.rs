//! Executor on one node, harness on another.

use exec_registry::api::EnvironmentId;
use exec_relay::identity::Identity;

use crate::{
    cluster::Cluster,
    load::{connect, echo, say},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_any_size_cross_nodes() {
    let cluster = Cluster::start().await;
    let here = cluster.door([0, 1, 2]).await;
    let there = cluster.door([1, 2, 0]).await;
    echo(cluster.registry(&here), "env");
    let mut link = connect(cluster.registry(&there), "env").await;
    for size in [1, 1000, 61_440, 61_441, 3_000_000] {
        say(&mut link, &vec![b'x'; size]).await;
    }
    let mut same = connect(cluster.registry(&here), "env").await;
    say(&mut same, b"at the executor's own node").await;
    say(&mut link, b"at another").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_restart_one_by_one_interrupt_nobody() {
    let mut cluster = Cluster::start().await;
    let here = cluster.door([0, 1, 2]).await;
    let there = cluster.door([1, 2, 0]).await;
    echo(cluster.registry(&here), "env");
    let mut link = connect(cluster.registry(&there), "env").await;
    say(&mut link, b"three nodes").await;
    cluster.nodes[1].stop().await;
    say(&mut link, b"two nodes").await;
    cluster.nodes[0].stop().await;
    say(&mut link, b"one node").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_online_on_every_node_as_soon_as_its_upgrade_is_answered() {
    let cluster = Cluster::start().await;
    let doors = (cluster.door([0, 1, 2]).await, cluster.door([1, 2, 0]).await);
    let (here, there) = (cluster.registry(&doors.0), cluster.registry(&doors.1));
    let identity = Identity::generate();
    for round in 0..20 {
        let environment = EnvironmentId::new(&format!("env-{round}")).unwrap();
        let registered = here.register(&environment, identity.public_key()).await;
        let url = registered.unwrap().url.into_exposed();
        let opened = tokio_tungstenite::connect_async(url).await;
        let (_socket, _) = opened.unwrap();
        for registry in [&here, &there] {
            let connected = registry.connect(&environment, identity.public_key());
            connected.await.unwrap();
        }
    }
}
