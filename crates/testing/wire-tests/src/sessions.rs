//! Sessions: their lifetime after a disconnect, and resuming them.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    client::{Client, TREE, TREE_SIZE, encode, script_params, with},
    over_every_socket,
    server::{Server, Transport, WatchedProcess, until},
};

over_every_socket!(
    disconnected_session_is_resumed_by_its_id,
    resume_follows_the_documented_transcript,
    notifications_are_sent_before_initialized,
    attached_session_is_not_taken_over,
    expired_session_is_unknown,
    process_trees_die_with_their_session,
    without_ttl_process_trees_die_with_the_connection,
    each_disconnect_restarts_the_ttl,
    long_poll_does_not_delay_a_resume,
    long_poll_does_not_delay_a_resume_in_serial_mode,
    sessions_do_not_see_each_other,
    repeated_write_after_resume_is_not_written_again,
    connection_without_session_leaves_nothing_behind,
);

/// Resumes a session once the server has noticed the disconnect.
pub(crate) async fn resume(server: &mut Server, session: &str) -> Client {
    resume_with(server, session, json!({})).await
}

/// Does the same with extra params.
pub(crate) async fn resume_with(server: &mut Server, session: &str, extra: Value) -> Client {
    let params = with(
        json!({"clientName": "c", "resumeSessionId": session}),
        extra,
    );
    for _ in 0..1000 {
        let mut client = server.connect().await;
        let id = client.request("initialize", params.clone()).await;
        let answer = client.answer(id).await;
        if answer["error"]["code"] == -32010 {
            sleep(Duration::from_millis(5)).await;
            continue;
        }
        assert_eq!(answer["result"]["sessionId"], session, "{answer}");
        assert!(
            answer["result"]["environmentInfo"]["shell"].is_object(),
            "{answer}"
        );
        return client;
    }
    panic!("session {session} stays attached");
}

async fn disconnected_session_is_resumed_by_its_id(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = client.handshake().await;
    client
        .start_with(script_params("p", "cat"), json!({"pipeStdin": true}))
        .await;
    for round in 0..3 {
        drop(client);
        client = resume(&mut server, &session).await;
        client.send(r#"{"method":"initialized"}"#).await;
        let data = format!("{round}\n");
        let write = json!({"processId": "p", "chunk": encode(data.as_bytes()), "writeId": data});
        client.call("process/write", write).await;
        assert_eq!(client.output_until("p", "\n").await, data);
    }
}

async fn resume_follows_the_documented_transcript(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = client.handshake().await;
    let script = "echo a; until [ -e b ]; do sleep 0.01; done; echo b; touch c
        until [ -e d ]; do sleep 0.01; done; echo c; exit 5";
    let cwd = format!("file://{}", server.dir.path().display());
    client
        .start_with(script_params("r1", script), json!({"cwd": cwd}))
        .await;
    let output = client.note("process/output").await;
    assert_eq!(
        output,
        json!({"processId": "r1", "seq": 1, "stream": "stdout", "chunk": "YQo="})
    );
    drop(client);
    fs::write(server.path("b"), "").unwrap();
    let written = server.path("c");
    until("b is written while detached", || written.exists()).await;
    let mut client = resume(&mut server, &session).await;
    client.send(r#"{"method":"initialized","params":{}}"#).await;
    let params = json!({"processId": "r1", "afterSeq": 1, "maxBytes": null, "waitMs": 5000});
    assert_eq!(
        client.call("process/read", params).await,
        json!({
            "chunks": [{"seq": 2, "stream": "stdout", "chunk": "Ygo="}], "nextSeq": 3, "exited": false,
            "exitCode": null, "closed": false, "failure": null, "sandboxDenied": false,
        })
    );
    fs::write(server.path("d"), "").unwrap();
    let output = client.note("process/output").await;
    assert_eq!(
        output,
        json!({"processId": "r1", "seq": 3, "stream": "stdout", "chunk": "Ywo="})
    );
    let exited = client.note("process/exited").await;
    assert_eq!(
        (&exited["seq"], &exited["exitCode"]),
        (&json!(4), &json!(5))
    );
    assert_eq!(
        client.note("process/closed").await,
        json!({"processId": "r1", "seq": 5})
    );
}

async fn notifications_are_sent_before_initialized(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = client.handshake().await;
    client
        .start("p", "while :; do echo tick; sleep 0.02; done")
        .await;
    client.note("process/output").await;
    drop(client);
    let mut client = resume(&mut server, &session).await;
    let first = client.note("process/output").await["seq"].as_u64().unwrap();
    assert!(first > 1);
    assert_eq!(client.note("process/output").await["seq"], first + 1);
    client.expect_error(-32600, "process/list", json!({})).await;
    client.send(r#"{"method":"initialized"}"#).await;
    // Nothing was replayed; missed output can be read.
    let page = client
        .call("process/read", json!({"processId": "p", "maxBytes": 1}))
        .await;
    assert_eq!(page["chunks"][0]["seq"], 1);
}

async fn attached_session_is_not_taken_over(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut first = server.connect().await;
    let session = first.handshake().await;
    let mut second = server.connect().await;
    let params = json!({"clientName": "c", "resumeSessionId": session});
    for _ in 0..2 {
        let message = second
            .expect_error(-32010, "initialize", params.clone())
            .await;
        assert_eq!(
            message,
            format!("session {session} is already attached to another connection")
        );
    }
    first.expect_alive().await;
    // The connection stays usable after the failure.
    drop(first);
    for _ in 0..1000 {
        let id = second.request("initialize", params.clone()).await;
        let answer = second.answer(id).await;
        if answer["result"]["sessionId"] == session {
            second.send(r#"{"method":"initialized"}"#).await;
            return second.expect_alive().await;
        }
        assert_eq!(answer["error"]["code"], -32010, "{answer}");
        sleep(Duration::from_millis(5)).await;
    }
    panic!("session stays attached");
}

async fn expired_session_is_unknown(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "0.05"]).await;
    let mut client = server.connect().await;
    let session = client.handshake().await;
    let pids = client
        .start_tree(script_params("p", "echo $$; exec sleep 1000"), 1)
        .await;
    let watched = WatchedProcess::new(pids[0]);
    drop(client);
    watched.death().await;
    let mut client = server.connect().await;
    let params = json!({"clientName": "c", "resumeSessionId": session});
    let message = client.expect_error(-32600, "initialize", params).await;
    assert_eq!(message, format!("unknown session id {session}"));
}

async fn process_trees_die_with_their_session(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "0.2"]).await;
    let mut client = server.connect().await;
    let result = client.initialize(json!({})).await;
    assert_eq!(result["sessionTtlMs"], 200);
    client.send(r#"{"method":"initialized"}"#).await;
    let pids = client.start_tree(script_params("p", TREE), TREE_SIZE).await;
    let watched: Vec<WatchedProcess> = pids.into_iter().map(WatchedProcess::new).collect();
    drop(client);
    for process in watched {
        process.death().await;
    }
}

async fn without_ttl_process_trees_die_with_the_connection(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "0"]).await;
    for tty in [false, true] {
        let mut client = server.connect().await;
        let session = client.handshake().await;
        let params = with(script_params("p", TREE), json!({"tty": tty}));
        let pids = client.start_tree(params, TREE_SIZE).await;
        let watched: Vec<WatchedProcess> = pids.into_iter().map(WatchedProcess::new).collect();
        drop(client);
        for process in watched {
            process.death().await;
        }
        let mut client = server.connect().await;
        let params = json!({"clientName": "c", "resumeSessionId": session});
        client.expect_error(-32600, "initialize", params).await;
    }
}

async fn each_disconnect_restarts_the_ttl(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "2"]).await;
    let mut client = server.connect().await;
    let session = client.handshake().await;
    let params = script_params("p", "echo $$; exec sleep 1000");
    let process = WatchedProcess::new(client.start_tree(params, 1).await[0]);
    // The test depends on real time. All waits together exceed one TTL; each alone is far below it.
    for _ in 0..3 {
        drop(client);
        sleep(Duration::from_millis(800)).await;
        client = resume(&mut server, &session).await;
        assert!(process.is_alive());
    }
    drop(client);
    process.death().await;
}

async fn long_poll_does_not_delay_a_resume(transport: Transport) {
    long_poll_and_resume(transport, &[]).await;
}

async fn long_poll_does_not_delay_a_resume_in_serial_mode(transport: Transport) {
    long_poll_and_resume(transport, &["--concurrent-requests", "1"]).await;
}

async fn long_poll_and_resume(transport: Transport, flags: &[&str]) {
    let mut server = Server::start(transport, flags).await;
    let mut client = server.connect().await;
    let session = client.handshake().await;
    client.start("p", "exec sleep 1000").await;
    client
        .request("process/read", json!({"processId": "p", "waitMs": 60_000}))
        .await;
    client
        .request("process/wait", json!({"processId": "p"}))
        .await;
    drop(client);
    let mut client = resume(&mut server, &session).await;
    client.send(r#"{"method":"initialized"}"#).await;
    client.expect_alive().await;
}

async fn sessions_do_not_see_each_other(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let (mut first, mut second) = (server.ready().await, server.ready().await);
    first
        .start_with(
            script_params("p", "echo first; cat"),
            json!({"pipeStdin": true}),
        )
        .await;
    assert_eq!(first.output_until("p", "\n").await, "first\n");
    let target = json!({"processId": "p"});
    second
        .expect_error(-32600, "process/read", target.clone())
        .await;
    second
        .expect_error(-32600, "process/wait", target.clone())
        .await;
    second
        .expect_error(-32600, "process/attach", target.clone())
        .await;
    let write = json!({"processId": "p", "chunk": "", "writeId": "1"});
    assert_eq!(
        second.call("process/write", write).await,
        json!({"status": "unknownProcess"})
    );
    let terminated = second.call("process/terminate", target.clone()).await;
    assert_eq!(terminated, json!({"running": false}));
    second
        .call(
            "process/signal",
            json!({"processId": "p", "signal": "kill"}),
        )
        .await;
    assert_eq!(
        second.call("process/list", json!({})).await,
        json!({"processes": []})
    );
    let mut third = server.ready().await;
    let all = third.call("process/list", json!({"all": true})).await;
    let listed = &all["processes"][0];
    assert_eq!(
        (&listed["processId"], &listed["owner"], &listed["state"]),
        (&json!("p"), &json!("session"), &json!("running"))
    );
    second.start("p", "echo second").await;
    assert_eq!(second.finish("p").await.stdout(), "second\n");
    // A start time selects this process.
    let attach = json!({"processId": "p", "startedAtMs": listed["startedAtMs"]});
    third.call("process/attach", attach).await;
    assert_eq!(third.output_until("p", "\n").await, "first\n");
    let page = first.call("process/read", target).await;
    assert_eq!(
        (&page["exited"], page["chunks"].as_array().unwrap().len()),
        (&json!(false), 1)
    );
}

async fn repeated_write_after_resume_is_not_written_again(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = client.handshake().await;
    client
        .start_with(script_params("p", "cat"), json!({"pipeStdin": true}))
        .await;
    let write = json!({"processId": "p", "chunk": encode(b"once\n"), "writeId": "7"});
    client.call("process/write", write.clone()).await;
    drop(client);
    let mut client = resume(&mut server, &session).await;
    client.send(r#"{"method":"initialized"}"#).await;
    assert_eq!(
        client.call("process/write", write).await,
        json!({"status": "accepted"})
    );
    client
        .call("process/closeStdin", json!({"processId": "p"}))
        .await;
    client.call("process/wait", json!({"processId": "p"})).await;
    let page = client.call("process/read", json!({"processId": "p"})).await;
    assert_eq!(page["chunks"].as_array().unwrap().len(), 1, "{page}");
}

async fn connection_without_session_leaves_nothing_behind(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    server.ready().await.expect_alive().await;
    let pid = server.pid();
    let before = crate::server::descriptors(pid);
    for _ in 0..20 {
        let mut client = server.connect().await;
        client.expect_refused("{bad").await;
    }
    until("descriptors are given back", || {
        crate::server::descriptors(pid) <= before
    })
    .await;
}
