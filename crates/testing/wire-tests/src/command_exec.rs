//! The older method family `command/exec*`.

use serde_json::{Value, json};

use crate::{
    client::{Client, decode_text, encode, script_params, with},
    over_every_transport,
    server::{PATH, Server, Transport},
};

over_every_transport!(
    example_session_of_the_command_exec_document,
    command_on_pipes_has_no_stdin,
    errors_have_the_codes_of_the_command_exec_document,
    terminate_reports_whether_it_was_running,
    process_reports_with_the_methods_that_started_it,
    output_cap_bounds_retained_output,
);

fn exec(id: &str, script: &str) -> Value {
    json!({
        "processId": id, "argv": ["sh", "-c", script], "cwd": "/", "env": {"PATH": PATH},
        "tty": false,
    })
}

async fn output_until(client: &mut Client, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let delta = client.note("command/exec/outputDelta").await;
        assert_eq!(delta.as_object().unwrap().len(), 3, "{delta}");
        assert_eq!(delta["stream"], "stdout");
        text.push_str(&decode_text(&delta["chunk"]));
    }
    text
}

async fn example_session_of_the_command_exec_document(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = r#"stty -echo; printf 'ready\n'; while IFS= read -r line; do printf 'echo:%s\n' "$line"; done"#;
    let params = with(
        exec("proc-1", script),
        json!({"tty": true, "outputBytesCap": 4096, "arg0": null}),
    );
    assert_eq!(
        client.call("command/exec", params).await,
        json!({
            "processId": "proc-1", "running": true, "exitCode": null, "stdout": null, "stderr": null,
        })
    );
    assert_eq!(output_until(&mut client, "ready\r\n").await, "ready\r\n");
    let write = json!({"processId": "proc-1", "chunk": encode(b"hello\n")});
    assert_eq!(
        client.call("command/exec/write", write).await,
        json!({"accepted": true})
    );
    assert_eq!(output_until(&mut client, "\n").await, "echo:hello\r\n");
    let target = json!({"processId": "proc-1"});
    assert_eq!(
        client.call("command/exec/terminate", target).await,
        json!({"running": true})
    );
    let exited = client.note("command/exec/exited").await;
    assert_eq!(exited, json!({"processId": "proc-1", "exitCode": 137}));
}

async fn command_on_pipes_has_no_stdin(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .call(
            "command/exec",
            exec("p", "cat; echo end; echo err >&2; exit 3"),
        )
        .await;
    client
        .expect_error(
            -32600,
            "command/exec/write",
            json!({"processId": "p", "chunk": "YQ=="}),
        )
        .await;
    let mut texts = [String::new(), String::new()];
    while !(texts[0] == "end\n" && texts[1] == "err\n") {
        let delta = client.note("command/exec/outputDelta").await;
        texts[usize::from(delta["stream"] == "stderr")].push_str(&decode_text(&delta["chunk"]));
    }
    let exited = client.note("command/exec/exited").await;
    assert_eq!(exited, json!({"processId": "p", "exitCode": 3}));
}

async fn errors_have_the_codes_of_the_command_exec_document(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let cases = [
        (-32602, json!({"argv": []}), "argv"),
        (-32602, json!({"argv": "x"}), "argv"),
        (-32602, json!({"cwd": "relative"}), "cwd"),
        (-32602, json!({"cwd": ""}), "cwd"),
        (-32602, json!({"tty": null}), "tty"),
        (-32602, json!({"outputBytesCap": -1}), "outputBytesCap"),
        (-32603, json!({"argv": ["no-such-program"]}), "No such file"),
        (-32603, json!({"cwd": "/no/such/directory"}), "No such file"),
    ];
    for (code, change, word) in cases {
        let params = with(exec("p", "true"), change);
        let message = client
            .expect_error(code, "command/exec", params.clone())
            .await;
        assert!(message.contains(word), "{params}: {message}");
    }
    client
        .call("command/exec", exec("p", "exec sleep 1000"))
        .await;
    let message = client
        .expect_error(-32600, "command/exec", exec("p", "true"))
        .await;
    assert_eq!(message, "process p already exists");
    let unknown = json!({"processId": "zz", "chunk": ""});
    client
        .expect_error(-32600, "command/exec/write", unknown)
        .await;
    let bad = json!({"processId": "p", "chunk": "YQ"});
    client.expect_error(-32602, "command/exec/write", bad).await;
}

async fn terminate_reports_whether_it_was_running(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .call("command/exec", exec("p", "exec sleep 1000"))
        .await;
    for (id, running) in [("p", true), ("zz", false)] {
        let result = client
            .call("command/exec/terminate", json!({"processId": id}))
            .await;
        assert_eq!(result, json!({"running": running}));
    }
    client.note("command/exec/exited").await;
    let result = client
        .call("command/exec/terminate", json!({"processId": "p"}))
        .await;
    assert_eq!(result, json!({"running": false}));
}

async fn process_reports_with_the_methods_that_started_it(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.call("command/exec", exec("first", "echo 1")).await;
    client.start("second", "echo 2").await;
    client
        .call("process/wait", json!({"processId": "first"}))
        .await;
    client
        .call("process/wait", json!({"processId": "second"}))
        .await;
    client.note("command/exec/exited").await;
    client.note("process/closed").await;
    let mut notifications = Vec::new();
    let id = client.request("environment/status", json!({})).await;
    loop {
        let message = client.recv().await;
        if message["id"] == id {
            break;
        }
        notifications.push((
            message["params"]["processId"].clone(),
            message["method"].clone(),
        ));
    }
    notifications.sort_by_key(|(id, method)| format!("{id}{method}"));
    assert_eq!(
        notifications,
        [
            (json!("first"), json!("command/exec/outputDelta")),
            (json!("second"), json!("process/exited")),
            (json!("second"), json!("process/output")),
        ]
    );
    // Both kinds of processes can be read by the same methods.
    client
        .start_with(script_params("third", "true"), json!({}))
        .await;
    let page = client
        .call("process/read", json!({"processId": "first"}))
        .await;
    assert_eq!(page["chunks"][0]["chunk"], "MQo=");
}

async fn output_cap_bounds_retained_output(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script =
        "i=0; while [ $i -lt 300 ]; do echo 0123456789; sleep 0; i=$((i+1)); done; sleep 0.1";
    let params = with(exec("p", script), json!({"outputBytesCap": 100}));
    client.call("command/exec", params).await;
    client.call("process/wait", json!({"processId": "p"})).await;
    let page = client.call("process/read", json!({"processId": "p"})).await;
    let chunks = page["chunks"].as_array().unwrap();
    let retained: usize = chunks
        .iter()
        .map(|chunk| decode_text(&chunk["chunk"]).len())
        .sum();
    assert!(retained <= 100, "{retained} bytes are retained");
    let mut live = String::new();
    while live.len() < 3300 {
        live.push_str(&decode_text(
            &client.note("command/exec/outputDelta").await["chunk"],
        ));
    }
    assert_eq!(
        live,
        "0123456789\n".repeat(300),
        "live output must not be capped"
    );
}
