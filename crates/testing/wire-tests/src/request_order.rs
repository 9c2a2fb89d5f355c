//! Order of requests on one connection.

use serde_json::json;

use crate::{
    client::{encode, script_params, with},
    over_every_transport,
    server::{Server, Transport},
};

over_every_transport!(
    long_wait_does_not_block_a_later_terminate,
    long_poll_does_not_block_others,
    serial_mode_is_strictly_serial,
    serial_mode_answers_in_order,
    read_sees_every_earlier_start,
    process_can_be_used_before_its_start_is_answered,
    control_methods_run_beyond_the_concurrency_limit,
    too_many_unanswered_requests_are_refused,
    overloaded_connection_can_still_terminate,
);

async fn long_wait_does_not_block_a_later_terminate(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "exec sleep 1000").await;
    let wait = client
        .request("process/wait", json!({"processId": "p"}))
        .await;
    let terminated = client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    assert_eq!(terminated, json!({"running": true}));
    assert_eq!(
        client.answer(wait).await["result"],
        json!({
            "exited": true, "exitCode": 137, "signal": "SIGKILL", "closed": true, "timedOut": false,
        })
    );
}

async fn long_poll_does_not_block_others(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start_with(script_params("p", "cat"), json!({"pipeStdin": true}))
        .await;
    let mut polls = Vec::new();
    for _ in 0..300 {
        polls.push(
            client
                .request("process/read", json!({"processId": "p", "waitMs": 60_000}))
                .await,
        );
    }
    client.start("q", "echo q").await;
    assert_eq!(client.finish("q").await.stdout(), "q\n");
    let write = json!({"processId": "p", "chunk": encode(b"x"), "writeId": "1"});
    assert_eq!(
        client.call("process/write", write).await,
        json!({"status": "accepted"})
    );
    for poll in polls {
        assert_eq!(
            client.answer(poll).await["result"]["chunks"][0]["chunk"],
            encode(b"x")
        );
    }
}

async fn serial_mode_is_strictly_serial(transport: Transport) {
    let mut server = Server::start(transport, &["--concurrent-requests", "1"]).await;
    let mut client = server.ready().await;
    client.start("p", "exec sleep 1000").await;
    let wait = client
        .request("process/wait", json!({"processId": "p", "timeoutMs": 300}))
        .await;
    let status = client.request("environment/status", json!({})).await;
    let terminate = client
        .request("process/terminate", json!({"processId": "p"}))
        .await;
    let mut answers = Vec::new();
    while answers.len() < 3 {
        let message = client.recv().await;
        if message.get("method").is_none() {
            answers.push(message);
        }
    }
    let ids: Vec<_> = answers
        .iter()
        .map(|answer| answer["id"].as_i64().unwrap())
        .collect();
    assert_eq!(ids, [wait, status, terminate]);
    assert_eq!(
        answers[0]["result"]["timedOut"], true,
        "wait returned too early"
    );
    assert_eq!(answers[2]["result"], json!({"running": true}));
}

async fn serial_mode_answers_in_order(transport: Transport) {
    let mut server = Server::start(transport, &["--concurrent-requests", "1"]).await;
    let mut client = server.ready().await;
    let mut ids = Vec::new();
    for round in 0..20 {
        let id = format!("p{round}");
        ids.push(
            client
                .request("process/start", script_params(&id, "echo x; exit 2"))
                .await,
        );
        ids.push(
            client
                .request("process/wait", json!({"processId": id}))
                .await,
        );
        ids.push(client.request("nope", json!({})).await);
        ids.push(client.request("process/list", json!({})).await);
    }
    let mut response_ids = Vec::new();
    while response_ids.len() < ids.len() {
        let message = client.recv().await;
        if message.get("method").is_none() {
            response_ids.push(message["id"].as_i64().unwrap());
        }
    }
    assert_eq!(response_ids, ids);
}

async fn read_sees_every_earlier_start(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for number in 0..30 {
        let params = script_params(&format!("p{number:02}"), "exec sleep 1000");
        client.request("process/start", params).await;
    }
    let list = client.call("process/list", json!({})).await;
    let processes = list["processes"].as_array().unwrap().iter();
    let ids: Vec<_> = processes
        .map(|process| process["processId"].clone())
        .collect();
    let expected: Vec<_> = (0..30)
        .map(|number| json!(format!("p{number:02}")))
        .collect();
    assert_eq!(ids, expected);
}

async fn process_can_be_used_before_its_start_is_answered(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for round in 0..20 {
        let id = format!("p{round}");
        let start = with(script_params(&id, "cat"), json!({"pipeStdin": true}));
        client.request("process/start", start).await;
        let write = json!({"processId": id, "chunk": encode(b"hi"), "writeId": "1"});
        let write = client.request("process/write", write).await;
        let close = client
            .request("process/closeStdin", json!({"processId": id}))
            .await;
        let wait = client
            .request("process/wait", json!({"processId": id}))
            .await;
        assert_eq!(
            client.answer(write).await["result"],
            json!({"status": "accepted"})
        );
        assert_eq!(
            client.answer(close).await["result"],
            json!({"status": "accepted"})
        );
        assert_eq!(client.answer(wait).await["result"]["exitCode"], 0);
        assert_eq!(client.finish(&id).await.stdout(), "hi");
    }
}

async fn control_methods_run_beyond_the_concurrency_limit(transport: Transport) {
    let mut server = Server::start(transport, &["--concurrent-requests", "2"]).await;
    let mut client = server.ready().await;
    client.start("p", "exec sleep 1000").await;
    let mut waits = Vec::new();
    for _ in 0..5 {
        waits.push(
            client
                .request("process/wait", json!({"processId": "p"}))
                .await,
        );
    }
    // Waits do not block others, and control methods never queue.
    client.expect_alive().await;
    client.call("process/list", json!({})).await;
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    for wait in waits {
        assert_eq!(client.answer(wait).await["result"]["exitCode"], 137);
    }
}

async fn too_many_unanswered_requests_are_refused(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "exec sleep 1000").await;
    for _ in 0..4 {
        client
            .pipeline(1024, "process/wait", &json!({"processId": "p"}))
            .await;
    }
    let message = client
        .expect_error(-32603, "process/wait", json!({"processId": "p"}))
        .await;
    assert!(message.contains("4096"), "{message}");
}

async fn overloaded_connection_can_still_terminate(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "exec sleep 1000").await;
    let mut waits = Vec::new();
    for _ in 0..4 {
        waits.extend(
            client
                .pipeline(1024, "process/wait", &json!({"processId": "p"}))
                .await,
        );
    }
    let terminated = client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    assert_eq!(terminated, json!({"running": true}));
    for wait in waits {
        assert_eq!(client.answer(wait).await["result"]["exited"], true);
    }
}
