//! Nothing that a server started survives it, however it ends.

use rustix::process::Signal;
use serde_json::json;

use crate::{
    client::{TREE, TREE_SIZE, script_params, with},
    over_every_transport,
    server::{Server, Transport, Watched},
};

over_every_transport!(
    sigkill_of_the_server_leaves_nothing_alive,
    terminate_kills_the_whole_tree,
    descendants_of_a_finished_process_live_until_the_session_ends,
);

async fn sigkill_of_the_server_leaves_nothing_alive(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let mut watched = Vec::new();
    for (id, change) in [
        ("pipes", json!({})),
        ("stdin", json!({"pipeStdin": true})),
        ("tty", json!({"tty": true})),
        ("detached", json!({"detached": true})),
    ] {
        let pids = client
            .start_tree(with(script_params(id, TREE), change), TREE_SIZE)
            .await;
        watched.extend(pids.into_iter().map(Watched::new));
    }
    server.signal(Signal::KILL);
    for process in watched {
        process.death().await;
    }
    client.expect_closed().await;
    assert_eq!(server.ended().await.0.code(), None);
}

async fn terminate_kills_the_whole_tree(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (id, tty) in [("p", false), ("t", true)] {
        let params = with(script_params(id, TREE), json!({"tty": tty}));
        let pids = client.start_tree(params, TREE_SIZE).await;
        let watched: Vec<Watched> = pids.into_iter().map(Watched::new).collect();
        client
            .call("process/terminate", json!({"processId": id}))
            .await;
        for process in watched {
            process.death().await;
        }
        client.note("process/closed").await;
    }
}

async fn descendants_of_a_finished_process_live_until_the_session_ends(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "0"]).await;
    let mut client = server.ready().await;
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!; exit 0";
    let pid = client.start_tree(script_params("p", script), 1).await[0];
    let daemon = Watched::new(pid);
    client.note("process/closed").await;
    // A process that is over is not ended again, and neither is what it left behind.
    let terminated = client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    assert_eq!(terminated, json!({"running": false}));
    client.start("q", "true").await;
    client.finish("q").await;
    assert!(daemon.is_alive());
    drop(client);
    daemon.death().await;
}
