//! Extension methods and notifications: wait, snapshot, list, resize, lifecycle.

use serde_json::{Value, json};

use crate::{
    client::{decode_text, encode, script_params, with},
    over_every_transport,
    server::{Server, Transport},
};

over_every_transport!(
    wait_reports_exit_and_close,
    wait_times_out,
    wait_for_exit_does_not_wait_for_close,
    snapshot_has_head_and_tail,
    snapshot_of_a_running_process_says_it_runs,
    process_list_entry_has_every_field,
    terminal_has_the_requested_size,
    resize_reaches_the_terminal,
    resize_needs_a_terminal,
    lifecycle_reports_start_and_failure,
    without_the_extension_no_lifecycle_is_sent,
);

async fn wait_reports_exit_and_close(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "exit 6").await;
    let params = json!({"processId": "p"});
    for _ in 0..2 {
        assert_eq!(
            client.call("process/wait", params.clone()).await,
            json!({
                "exited": true, "exitCode": 6, "signal": null, "closed": true, "timedOut": false,
            })
        );
    }
    let huge = json!({"processId": "p", "timeoutMs": u64::MAX});
    assert_eq!(client.call("process/wait", huge).await["timedOut"], false);
}

async fn wait_times_out(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "exec sleep 1000").await;
    for timeout in [0, 50] {
        let params = json!({"processId": "p", "timeoutMs": timeout});
        assert_eq!(
            client.call("process/wait", params).await,
            json!({
                "exited": false, "exitCode": null, "signal": null, "closed": false, "timedOut": true,
            })
        );
    }
    let huge = json!({"processId": "p", "timeoutMs": u64::MAX});
    let wait = client.request("process/wait", huge).await;
    client
        .call(
            "process/signal",
            json!({"processId": "p", "signal": "user1"}),
        )
        .await;
    assert_eq!(
        client.answer(wait).await["result"],
        json!({
            "exited": true, "exitCode": 138, "signal": "SIGUSR1", "closed": true, "timedOut": false,
        })
    );
}

async fn wait_for_exit_does_not_wait_for_close(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "sleep 1000 & exit 2").await;
    let exited = json!({"processId": "p", "until": "exited"});
    assert_eq!(
        client.call("process/wait", exited).await,
        json!({
            "exited": true, "exitCode": 2, "signal": null, "closed": false, "timedOut": false,
        })
    );
    let closed = json!({"processId": "p", "until": "closed", "timeoutMs": 20});
    let result = client.call("process/wait", closed).await;
    assert_eq!(
        (&result["exited"], &result["timedOut"]),
        (&json!(true), &json!(true))
    );
}

async fn snapshot_has_head_and_tail(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start(
            "p",
            "echo first; echo oops >&2; head -c 5000000 /dev/zero; echo last; exit 1",
        )
        .await;
    client.finish("p").await;
    let snapshot = client
        .call("process/snapshot", json!({"processId": "p"}))
        .await;
    let stdout = decode_text(&snapshot["stdout"]);
    assert!(
        stdout.starts_with("first\n") && stdout.ends_with("last\n"),
        "{} bytes",
        stdout.len()
    );
    assert_eq!(decode_text(&snapshot["stderr"]), "oops\n");
    assert_eq!(snapshot["terminal"], "");
    let omitted = usize::try_from(snapshot["omittedBytes"].as_u64().unwrap()).unwrap();
    assert_eq!(omitted + stdout.len(), 5_000_000 + "first\nlast\n".len());
    assert_eq!(
        (
            &snapshot["truncated"],
            &snapshot["exitCode"],
            &snapshot["running"]
        ),
        (&json!(true), &json!(1), &json!(false))
    );
}

async fn snapshot_of_a_running_process_says_it_runs(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start_with(
            script_params("p", "echo up; exec sleep 1000"),
            json!({"tty": true}),
        )
        .await;
    client.output_until("p", "up\r\n").await;
    assert_eq!(
        client
            .call("process/snapshot", json!({"processId": "p"}))
            .await,
        json!({
            "stdout": "", "stderr": "", "terminal": encode(b"up\r\n"), "truncated": false,
            "omittedBytes": 0, "exitCode": null, "running": true,
        })
    );
}

async fn process_list_entry_has_every_field(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("b", "exit 3").await;
    client.finish("b").await;
    client
        .start_with(
            script_params("a", "echo $$; exec sleep 1000"),
            json!({"tty": true}),
        )
        .await;
    let pid = client.output_until("a", "\n").await;
    client
        .start_with(
            script_params("c", "exec sleep 1000"),
            json!({"detached": true}),
        )
        .await;
    let list = client.call("process/list", json!({})).await;
    let processes = list["processes"].as_array().unwrap();
    let column = |name: &str| -> Vec<Value> { processes.iter().map(|p| p[name].clone()).collect() };
    assert_eq!(column("processId"), ["a", "b", "c"]);
    assert_eq!(column("tty"), [true, false, false]);
    assert_eq!(column("running"), [true, false, true]);
    assert_eq!(column("exitCode"), [json!(null), json!(3), json!(null)]);
    assert_eq!(column("detached"), [false, false, true]);
    assert_eq!(column("cwd"), ["file:///", "file:///", "file:///"]);
    assert_eq!(processes[1]["argv"], json!(["sh", "-c", "exit 3"]));
    assert_eq!(processes[0]["osPid"].to_string(), pid.trim());
    assert!(processes[1]["usage"]["maxRssBytes"].as_u64().unwrap() > 0);
    assert!(processes[0]["usage"]["maxRssBytes"].as_u64().unwrap() > 0);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let age = now.as_millis() - u128::from(processes[0]["startedAtMs"].as_u64().unwrap());
    assert!(age < 60_000, "started {age} ms ago");
}

async fn terminal_has_the_requested_size(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let params = |id| {
        with(
            script_params(id, "stty size; tty; echo $SHELL"),
            json!({"tty": true}),
        )
    };
    client.start_with(params("p"), json!({})).await;
    let events = client.finish("p").await;
    let text = events.stream("pty");
    assert!(text.starts_with("24 80\r\n/dev/pts/"), "{text:?}");
    assert!(
        text.trim().rsplit("\r\n").next().unwrap().starts_with('/'),
        "SHELL is set: {text:?}"
    );
    client
        .start_with(params("q"), json!({"size": {"rows": 50, "cols": 132}}))
        .await;
    let text = client.finish("q").await.stream("pty");
    assert!(text.starts_with("50 132\r\n"), "{text:?}");
}

async fn resize_reaches_the_terminal(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = "trap 'stty size; exit 0' WINCH; echo up; while :; do sleep 0.02; done";
    client
        .start_with(script_params("p", script), json!({"tty": true}))
        .await;
    client.output_until("p", "up\r\n").await;
    let params = json!({"processId": "p", "rows": 33, "cols": 101});
    assert_eq!(
        client.call("process/resize", params.clone()).await,
        json!({})
    );
    assert_eq!(client.output_until("p", "\n").await, "33 101\r\n");
    let empty = with(params.clone(), json!({"rows": 0}));
    let message = client.expect_error(-32602, "process/resize", empty).await;
    assert!(message.contains("row"), "{message}");
    client.note("process/closed").await;
    assert_eq!(
        client.call("process/resize", params).await,
        json!({}),
        "resize of an exited process must do nothing"
    );
}

async fn resize_needs_a_terminal(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "exec sleep 1000").await;
    for id in ["p", "zz"] {
        let params = json!({"processId": id, "rows": 33, "cols": 101});
        let message = client.expect_error(-32600, "process/resize", params).await;
        assert!(message.contains(id), "{message}");
    }
}

async fn lifecycle_reports_start_and_failure(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let granted = client
        .initialize(json!({"extensions": ["lifecycle"]}))
        .await["extensions"]
        .clone();
    assert_eq!(granted, json!(["lifecycle"]));
    client.send(r#"{"method":"initialized"}"#).await;
    client.start("p", "echo $$; exec sleep 1000").await;
    let started = client.note("process/started").await;
    assert_eq!(started["processId"], "p");
    assert!(started["startedAtMs"].is_u64(), "{started}");
    assert_eq!(
        started["osPid"].to_string(),
        client.output_until("p", "\n").await.trim()
    );
    let params = with(script_params("q", ""), json!({"argv": ["no-such-program"]}));
    let message = client.expect_error(-32603, "process/start", params).await;
    assert_eq!(
        client.note("process/failed").await,
        json!({"processId": "q", "message": message})
    );
}

async fn without_the_extension_no_lifecycle_is_sent(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "true").await;
    client.finish("p").await;
    let params = with(script_params("q", ""), json!({"argv": ["no-such-program"]}));
    client.expect_error(-32603, "process/start", params).await;
    let id = client.request("environment/status", json!({})).await;
    assert_eq!(
        client.recv().await["id"],
        id,
        "notification before the response"
    );
}
