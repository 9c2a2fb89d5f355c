//! Running processes and their events.

use serde_json::{Value, json};

use crate::{
    client::{encode, script_params, with},
    over_every_transport,
    server::{Server, Transport},
};

over_every_transport!(
    process_reports_output_exit_and_close,
    process_answers_on_stdin_and_signals,
    exit_codes_are_those_of_the_child,
    exit_does_not_wait_for_descendants_but_close_does,
    output_keeps_its_order_and_its_bytes,
    chunks_are_at_most_64_kib,
    exited_is_sent_once_with_every_field,
    output_of_many_processes_does_not_mix,
    reported_wall_time_is_at_least_the_childs_sleep,
);

async fn process_reports_output_exit_and_close(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p1", "echo out; echo err >&2; exit 3").await;
    let events = client.finish("p1").await;
    assert_eq!(
        (
            events.stream("stdout").as_str(),
            events.stream("stderr").as_str()
        ),
        ("out\n", "err\n")
    );
    assert_eq!(events.code(), 3);
    assert_eq!(events.exited["sandboxDenied"], false);
    assert_eq!(
        events.closed.as_object().unwrap().len(),
        2,
        "{:?}",
        events.closed
    );
    for chunk in &events.output {
        let mut members: Vec<&str> = chunk
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        members.sort_unstable();
        assert_eq!(members, ["chunk", "processId", "seq", "stream"]);
    }
}

async fn process_answers_on_stdin_and_signals(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = "trap 'echo int; exit 9' INT; while read -r line; do echo got $line; done";
    client
        .start_with(script_params("p", script), json!({"pipeStdin": true}))
        .await;
    let write = json!({"processId": "p", "chunk": encode(b"one\n"), "writeId": "1"});
    assert_eq!(
        client.call("process/write", write).await,
        json!({"status": "accepted"})
    );
    assert_eq!(client.output_until("p", "\n").await, "got one\n");
    let page = client
        .call("process/read", json!({"processId": "p", "afterSeq": 0}))
        .await;
    assert_eq!(
        page["chunks"],
        json!([{"seq": 1, "stream": "stdout", "chunk": "Z290IG9uZQo="}])
    );
    let signal = json!({"processId": "p", "signal": "interrupt"});
    assert_eq!(client.call("process/signal", signal).await, json!({}));
    assert_eq!(client.output_until("p", "\n").await, "int\n");
    assert_eq!(client.note("process/exited").await["exitCode"], 9);
    client.note("process/closed").await;
    let terminate = json!({"processId": "p"});
    assert_eq!(
        client.call("process/terminate", terminate).await,
        json!({"running": false})
    );
}

async fn exit_codes_are_those_of_the_child(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (code, tty) in [
        (0, false),
        (1, false),
        (255, false),
        (0, true),
        (42, true),
        (255, true),
    ] {
        let id = format!("{code}-{tty}");
        let change = json!({"tty": tty});
        client
            .start_with(script_params(&id, &format!("exit {code}")), change)
            .await;
        let events = client.finish(&id).await;
        assert_eq!(
            (events.code(), &events.exited["cause"]),
            (code, &json!("exit"))
        );
        assert_eq!(events.exited.get("signal"), None);
    }
}

async fn exit_does_not_wait_for_descendants_but_close_does(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "(sleep 0.3; echo late) & echo now").await;
    let events = client.finish("p").await;
    assert_eq!(events.stdout(), "now\nlate\n");
    let exited = events.exited["seq"].as_u64().unwrap();
    let late = events.output.last().unwrap()["seq"].as_u64().unwrap();
    assert!(exited < late, "exited {exited}, late output {late}");
}

async fn output_keeps_its_order_and_its_bytes(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start(
            "p",
            "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done",
        )
        .await;
    let events = client.finish("p").await;
    let expected: String = (0..3000).map(|line| format!("{line}\n")).collect();
    assert_eq!(events.stdout(), expected);
    client.start("q", r"printf '\000\001\377\376\n'").await;
    let chunk = client.note("process/output").await["chunk"].clone();
    assert_eq!(chunk, encode(b"\x00\x01\xff\xfe\n"));
}

async fn chunks_are_at_most_64_kib(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "head -c 3000000 /dev/zero").await;
    let events = client.finish("p").await;
    assert_eq!(events.stdout().len(), 3_000_000, "live output was dropped");
    for chunk in &events.output {
        let length = crate::client::decode(&chunk["chunk"]).len();
        assert!((1..=65_536).contains(&length), "chunk of {length} bytes");
    }
}

async fn exited_is_sent_once_with_every_field(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "echo x; sleep 0.05; exit 2").await;
    let events = client.finish("p").await;
    assert_eq!(events.exited["cause"], "exit");
    let usage = &events.exited["usage"];
    assert!(
        (1..10_000).contains(&usage["wallMs"].as_u64().unwrap()),
        "{usage}"
    );
    assert!(usage["maxRssBytes"].as_u64().unwrap() > 100_000, "{usage}");
    assert!(
        usage["userMs"].is_u64() && usage["systemMs"].is_u64(),
        "{usage}"
    );
    // Nothing follows: the next message is the response.
    let id = client.request("environment/status", json!({})).await;
    assert_eq!(client.recv().await["id"], id);
}

async fn output_of_many_processes_does_not_mix(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let ids: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
    let mut answers = Vec::new();
    for id in &ids {
        let params = with(
            script_params(id, "echo $ID; echo $ID >&2; exit 5"),
            json!({"env": {"ID": id}}),
        );
        answers.push(client.request("process/start", params).await);
    }
    for (id, answer) in ids.iter().zip(answers) {
        assert_eq!(
            client.answer(answer).await["result"]["processId"],
            Value::from(id.as_str())
        );
        let events = client.finish(id).await;
        assert_eq!(
            (events.stdout(), events.stream("stderr")),
            (format!("{id}\n"), format!("{id}\n"))
        );
        assert_eq!(events.code(), 5);
    }
}

async fn reported_wall_time_is_at_least_the_childs_sleep(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let ids: Vec<String> = (0..40).map(|number| format!("p{number}")).collect();
    for id in &ids {
        let params = script_params(id, "exec sleep 0.05");
        client.request("process/start", params).await;
    }
    let mut shortest = u64::MAX;
    for id in &ids {
        let usage = client.finish(id).await.exited["usage"].take();
        shortest = shortest.min(usage["wallMs"].as_u64().unwrap());
    }
    assert!(
        shortest >= 50,
        "a child that slept 50 ms lived {shortest} ms"
    );
}
