//! Detached processes belong to the server and can be used by any client.

use serde_json::json;

use crate::{
    client::{Client, TREE, TREE_SIZE, encode, script_params, with},
    over_every_socket,
    server::{Server, Transport, WatchedProcess},
};

over_every_socket!(
    detached_process_outlives_its_session,
    attach_replays_then_streams_live_output,
    attach_resumes_after_a_sequence_number,
    several_connections_follow_one_process,
    release_stops_the_events,
    any_client_may_write_to_signal_and_terminate_a_detached_process,
    session_process_cannot_be_attached_or_released,
    detached_id_is_in_use_for_every_session,
    detached_process_is_reachable_by_every_client,
    stalled_follower_does_not_block_others,
    detached_process_dies_with_the_server,
);

async fn start_detached(client: &mut Client, id: &str, script: &str) {
    let change = json!({"detached": true, "pipeStdin": true});
    client.start_with(script_params(id, script), change).await;
}

async fn write(client: &mut Client, id: &str, data: &str) {
    let params = json!({"processId": id, "chunk": encode(data.as_bytes()), "writeId": data});
    assert_eq!(
        client.call("process/write", params).await,
        json!({"status": "accepted"})
    );
}

async fn detached_process_outlives_its_session(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "0"]).await;
    let mut first = server.ready().await;
    let own = script_params("own", "echo $$; exec sleep 1000");
    let own = WatchedProcess::new(first.start_tree(own, 1).await[0]);
    let params = with(
        script_params("d", "echo $$; exec cat"),
        json!({"detached": true, "pipeStdin": true}),
    );
    let detached = WatchedProcess::new(first.start_tree(params, 1).await[0]);
    drop(first);
    own.death().await;
    assert!(detached.is_alive());
    let mut second = server.ready().await;
    let list = second.call("process/list", json!({})).await;
    assert_eq!(list["processes"].as_array().unwrap().len(), 1);
    let listed = &list["processes"][0];
    assert_eq!(
        (&listed["processId"], &listed["detached"]),
        (&json!("d"), &json!(true))
    );
    write(&mut second, "d", "still here\n").await;
    second
        .call("process/closeStdin", json!({"processId": "d"}))
        .await;
    let page = second.call("process/wait", json!({"processId": "d"})).await;
    assert_eq!(page["exitCode"], 0);
    let page = second
        .call("process/read", json!({"processId": "d", "afterSeq": 1}))
        .await;
    assert_eq!(page["chunks"][0]["chunk"], encode(b"still here\n"));
}

async fn attach_replays_then_streams_live_output(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut first = server.ready().await;
    start_detached(
        &mut first,
        "d",
        "echo one; read x; echo two; read x; exit 4",
    )
    .await;
    first.output_until("d", "one\n").await;
    let mut second = server.ready().await;
    let attached = second
        .call("process/attach", json!({"processId": "d"}))
        .await;
    assert_eq!(attached, json!({"nextSeq": 2, "running": true}));
    assert_eq!(second.output_until("d", "\n").await, "one\n");
    write(&mut second, "d", "\n").await;
    assert_eq!(second.output_until("d", "\n").await, "two\n");
    assert_eq!(first.output_until("d", "\n").await, "two\n");
    write(&mut first, "d", " \n").await;
    assert_eq!(second.note("process/exited").await["exitCode"], 4);
    assert_eq!(second.note("process/closed").await["seq"], 4);
    // The events of an exited process are replayed as well.
    let mut third = server.ready().await;
    let attached = third
        .call("process/attach", json!({"processId": "d"}))
        .await;
    assert_eq!(attached, json!({"nextSeq": 5, "running": false}));
    let events = third.finish("d").await;
    assert_eq!((events.stdout().as_str(), events.code()), ("one\ntwo\n", 4));
}

async fn attach_resumes_after_a_sequence_number(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut first = server.ready().await;
    start_detached(
        &mut first,
        "d",
        "echo one; read x; echo two; read x; exit 4",
    )
    .await;
    first.output_until("d", "one\n").await;
    write(&mut first, "d", "\n").await;
    first.output_until("d", "two\n").await;
    let mut second = server.ready().await;
    second
        .call("process/attach", json!({"processId": "d", "afterSeq": 1}))
        .await;
    assert_eq!(second.note("process/output").await["seq"], 2);
    second
        .expect_error(
            -32602,
            "process/attach",
            json!({"processId": "d", "afterSeq": -1}),
        )
        .await;
}

async fn several_connections_follow_one_process(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut first = server.ready().await;
    start_detached(&mut first, "d", "cat").await;
    let mut followers = Vec::new();
    for _ in 0..5 {
        let mut follower = server.ready().await;
        follower
            .call("process/attach", json!({"processId": "d"}))
            .await;
        followers.push(follower);
    }
    write(&mut first, "d", "all\n").await;
    first
        .call("process/closeStdin", json!({"processId": "d"}))
        .await;
    followers.push(first);
    for mut follower in followers {
        assert_eq!(follower.finish("d").await.stdout(), "all\n");
    }
}

async fn release_stops_the_events(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut first = server.ready().await;
    start_detached(&mut first, "d", "cat").await;
    assert_eq!(
        first
            .call("process/release", json!({"processId": "d"}))
            .await,
        json!({})
    );
    assert_eq!(
        first
            .call("process/release", json!({"processId": "d"}))
            .await,
        json!({})
    );
    write(&mut first, "d", "unheard\n").await;
    let page = json!({"processId": "d", "waitMs": 5000});
    assert_eq!(first.call("process/read", page).await["nextSeq"], 2);
    let id = first.request("environment/status", json!({})).await;
    assert_eq!(first.recv().await["id"], id, "no event came");
    first
        .call("process/attach", json!({"processId": "d"}))
        .await;
    assert_eq!(first.output_until("d", "\n").await, "unheard\n");
}

async fn any_client_may_write_to_signal_and_terminate_a_detached_process(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let (mut first, mut second) = (server.ready().await, server.ready().await);
    let script = "trap 'echo usr' USR1; echo up; while :; do sleep 0.02; done";
    start_detached(&mut first, "d", script).await;
    first.output_until("d", "up\n").await;
    second
        .call(
            "process/signal",
            json!({"processId": "d", "signal": "user1"}),
        )
        .await;
    assert_eq!(first.output_until("d", "\n").await, "usr\n");
    let terminated = second
        .call("process/terminate", json!({"processId": "d"}))
        .await;
    assert_eq!(terminated, json!({"running": true}));
    assert_eq!(first.note("process/exited").await["cause"], "terminated");
}

async fn session_process_cannot_be_attached_or_released(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "exec sleep 1000").await;
    for method in ["process/attach", "process/release"] {
        let message = client
            .expect_error(-32600, method, json!({"processId": "p"}))
            .await;
        assert!(message.contains("session"), "{message}");
        client
            .expect_error(-32600, method, json!({"processId": "zz"}))
            .await;
    }
}

async fn detached_id_is_in_use_for_every_session(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let (mut first, mut second) = (server.ready().await, server.ready().await);
    start_detached(&mut first, "d", "exec sleep 1000").await;
    for detached in [false, true] {
        let params = with(script_params("d", "true"), json!({"detached": detached}));
        for client in [&mut first, &mut second] {
            let message = client
                .expect_error(-32600, "process/start", params.clone())
                .await;
            assert_eq!(message, "process d already exists");
        }
    }
}

async fn detached_process_is_reachable_by_every_client(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let (mut first, mut second) = (server.ready().await, server.ready().await);
    second.start("d", "exec sleep 1000").await;
    // The id is unique on the server: the start is refused, or every client can reach the process.
    let params = with(
        script_params("d", "exec sleep 1000"),
        json!({"detached": true}),
    );
    let id = first.request("process/start", params).await;
    if first.answer(id).await.get("result").is_some() {
        second
            .call("process/attach", json!({"processId": "d"}))
            .await;
    }
}

async fn stalled_follower_does_not_block_others(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let (mut first, mut lazy) = (server.ready().await, server.ready().await);
    start_detached(&mut first, "d", "read x; head -c 30000000 /dev/zero").await;
    lazy.call("process/attach", json!({"processId": "d"})).await;
    write(&mut first, "d", "\n").await;
    first
        .call("process/release", json!({"processId": "d"}))
        .await;
    assert_eq!(
        first.call("process/wait", json!({"processId": "d"})).await["exitCode"],
        0
    );
}

async fn detached_process_dies_with_the_server(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let params = with(script_params("d", TREE), json!({"detached": true}));
    let pids = client.start_tree(params, TREE_SIZE).await;
    let watched: Vec<WatchedProcess> = pids.into_iter().map(WatchedProcess::new).collect();
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.ended().await.0.code(), Some(0));
    for process in watched {
        process.death().await;
    }
}
