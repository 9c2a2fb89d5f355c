//! Shutdown of a server by signals.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::{
    client::{TREE, TREE_SIZE, script_params, with},
    http_listener::request,
    over_every_transport,
    server::{Server, Transport, WatchedProcess, until},
};

over_every_transport!(
    sigterm_exits_0_promptly_and_kills_everything,
    sigint_exits_0_promptly,
    grace_period_lets_a_trap_run,
    grace_period_ends_with_sigkill,
    second_signal_ends_the_grace_period,
);

async fn sigterm_exits_0_promptly_and_kills_everything(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let mut watched = Vec::new();
    for (id, change) in [
        ("p", json!({})),
        ("t", json!({"tty": true})),
        ("d", json!({"detached": true})),
    ] {
        let pids = client
            .start_tree(with(script_params(id, TREE), change), TREE_SIZE)
            .await;
        watched.extend(pids.into_iter().map(WatchedProcess::new));
    }
    let started_at = Instant::now();
    server.signal(Signal::TERM);
    let (status, printed) = server.ended().await;
    assert_eq!((status.code(), printed.as_str()), (Some(0), ""));
    assert!(
        started_at.elapsed() < Duration::from_secs(2),
        "took {:?}",
        started_at.elapsed()
    );
    for process in watched {
        process.death().await;
    }
    client.expect_closed().await;
}

async fn sigint_exits_0_promptly(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "trap '' TERM; exec sleep 1000").await;
    server.signal(Signal::INT);
    assert_eq!(server.ended().await.0.code(), Some(0));
}

const TRAP: &str =
    "trap 'echo bye; touch flag; exit 0' TERM; echo up; while :; do sleep 0.02; done";

async fn grace_period_lets_a_trap_run(transport: Transport) {
    let mut server = Server::start(transport, &["--shutdown-grace", "8"]).await;
    let mut client = server.ready().await;
    let cwd = json!({"cwd": format!("file://{}", server.dir.path().display())});
    client.start_with(script_params("p", TRAP), cwd).await;
    client.output_until("p", "up\n").await;
    let started_at = Instant::now();
    server.signal(Signal::TERM);
    // The client receives the events.
    assert_eq!(client.output_until("p", "\n").await, "bye\n");
    assert_eq!(server.ended().await.0.code(), Some(0));
    assert!(server.path("flag").exists());
    assert!(
        started_at.elapsed() < Duration::from_secs(4),
        "grace period must end with the last process"
    );
}

async fn grace_period_ends_with_sigkill(transport: Transport) {
    let mut server = Server::start(transport, &["--shutdown-grace", "0.3"]).await;
    let mut client = server.ready().await;
    let pids = client.start_tree(script_params("p", TREE), TREE_SIZE).await;
    let watched: Vec<WatchedProcess> = pids.into_iter().map(WatchedProcess::new).collect();
    let started_at = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.0.code(), Some(0));
    assert!((Duration::from_millis(300)..Duration::from_secs(3)).contains(&started_at.elapsed()));
    for process in watched {
        process.death().await;
    }
}

async fn second_signal_ends_the_grace_period(transport: Transport) {
    let mut server = Server::start(transport, &["--shutdown-grace", "1000"]).await;
    let mut client = server.ready().await;
    let script = "trap 'echo asked' TERM; echo $$; while :; do sleep 0.02; done";
    let process = WatchedProcess::new(client.start_tree(script_params("p", script), 1).await[0]);
    server.signal(Signal::TERM);
    assert_eq!(client.output_until("p", "\n").await, "asked\n");
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.0.code(), Some(0));
    process.death().await;
}

#[tokio::test]
async fn readyz_answers_503_while_draining() {
    let mut server = Server::start(Transport::WebSocket, &["--shutdown-grace", "8"]).await;
    let mut client = server.ready().await;
    let script = "trap 'touch asked' TERM; echo up; until [ -e go ]; do sleep 0.02; done";
    let cwd = json!({"cwd": format!("file://{}", server.dir.path().display())});
    client.start_with(script_params("p", script), cwd).await;
    client.output_until("p", "up\n").await;
    server.signal(Signal::TERM);
    let marker = server.path("asked");
    until("the process is asked", || marker.exists()).await;
    let readyz = request(&server, "GET /readyz", "").await;
    let healthz = request(&server, "GET /healthz", "").await;
    std::fs::write(server.path("go"), "").unwrap();
    assert_eq!((readyz.status, healthz.status), (503, 200));
    assert_eq!(server.ended().await.0.code(), Some(0));
}
