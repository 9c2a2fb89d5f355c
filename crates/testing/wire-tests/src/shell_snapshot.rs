//! `shellSnapshot`: the replayed state of a login shell.

use serde_json::{Value, json};

use crate::{
    client::{argv_params, with},
    over_every_transport,
    server::{PATH, Server, Transport},
};

over_every_transport!(
    profile_functions_and_variables_are_replayed,
    snapshot_scope_has_1_to_256_bytes,
    other_shells_are_refused_if_a_snapshot_applies,
    commands_without_a_snapshot_run_unchanged,
);

const BASH: &str = "/bin/bash";

fn snapshot(scope: &str, name: &str) -> Value {
    json!({"scopeId": scope, "shell": {"name": name, "path": BASH}})
}

async fn profile_functions_and_variables_are_replayed(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let profile = "echo sourced >> \"$HOME/count\"; greet() { echo hello $1; }; export MINE='a b'";
    std::fs::write(server.path(".bash_profile"), profile).unwrap();
    let home = server.dir.path().display().to_string();
    for round in 0..3 {
        let id = format!("p{round}");
        let params = with(
            argv_params(&id, &[BASH, "-lc", "greet you; echo \"$MINE\"; exit 4"]),
            json!({"shellSnapshot": snapshot("s", "bash"), "env": {"PATH": PATH, "HOME": home}}),
        );
        client.start_with(params, json!({})).await;
        let events = client.finish(&id).await;
        assert_eq!(
            (events.stdout().as_str(), events.code()),
            ("hello you\na b\n", 4)
        );
    }
    let count = std::fs::read_to_string(server.path("count")).unwrap();
    assert_eq!(count, "sourced\n", "the profile was sourced once");
}

async fn snapshot_scope_has_1_to_256_bytes(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for scope in ["", &"x".repeat(257)] {
        for argv in [&[BASH, "-lc", "true"][..], &["true"]] {
            let change = json!({"shellSnapshot": snapshot(scope, "bash")});
            let params = with(argv_params("p", argv), change);
            let message = client.expect_error(-32602, "process/start", params).await;
            assert!(
                message.contains("shellSnapshot") && message.contains("256"),
                "{message}"
            );
        }
    }
}

async fn other_shells_are_refused_if_a_snapshot_applies(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let change = json!({"shellSnapshot": snapshot("s", "fish")});
    let params = with(argv_params("p", &[BASH, "-lc", "true"]), change);
    let message = client.expect_error(-32602, "process/start", params).await;
    assert!(message.contains("shell"), "{message}");
}

async fn commands_without_a_snapshot_run_unchanged(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (id, argv) in [
        ("a", &["/bin/sh", "-lc", "echo x"][..]),
        ("b", &[BASH, "-c", "echo x"]),
    ] {
        let change = json!({"shellSnapshot": snapshot("s", "fish")});
        client.start_with(argv_params(id, argv), change).await;
        assert_eq!(client.finish(id).await.stdout(), "x\n");
    }
}
