//! Executor on one node, harness on another.

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
