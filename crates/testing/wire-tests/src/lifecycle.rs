//! The handshake, and requests before it.

use serde_json::{Value, json};

use crate::{
    client::{error_message, script_params},
    over_every_transport, over_one_transport,
    server::{Server, Transport},
};

over_every_transport!(
    initialize_returns_session_and_environment,
    extensions_are_granted_by_name,
    initialized_before_initialize_has_no_effect,
    method_params_and_handshake_are_checked_in_this_order,
    handshake_errors_name_the_method_family,
    pipelined_handshake_is_handled_in_order,
    request_before_initialized_is_refused,
    second_initialize_is_refused,
    failed_initialize_can_be_retried,
    initialized_may_be_repeated_with_any_params,
    methods_without_params_accept_absent_null_or_empty_params,
    environment_info_equals_that_of_initialize,
);

over_one_transport!(server_works_with_a_stack_limit_of_64_kib);

async fn server_works_with_a_stack_limit_of_64_kib(transport: Transport) {
    let script = "ulimit -s 64; exec \"$0\" \"$@\"";
    let mut server = Server::start_by(script, transport, &[]).await;
    let mut client = server.ready().await;
    // Commands inherit the limit.
    client.start("p", "ulimit -s").await;
    assert_eq!(client.finish("p").await.stdout(), "64\n");
    let path = server.path("file");
    std::fs::write(&path, "x").unwrap();
    let uri = format!("file://{}", path.display());
    let read = client.call("fs/readFile", json!({"path": uri})).await;
    assert_eq!(read["dataBase64"], "eA==");
}

async fn initialize_returns_session_and_environment(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let result = client.initialize(json!({"resumeSessionId": null})).await;
    let session = result["sessionId"].as_str().unwrap();
    assert_eq!(
        (session.len(), session.as_bytes()[14]),
        (36, b'4'),
        "{session} is not a UUIDv4"
    );
    assert_eq!(result["extensions"], json!([]));
    assert_eq!(result["server"]["name"], "exec-server");
    assert!(result["server"]["version"].is_string(), "{result}");
    assert_eq!(result["sessionTtlMs"], 80_000);
    let info = &result["environmentInfo"];
    assert!(
        info["shell"]["name"].is_string() && info["shell"]["path"].is_string(),
        "{info}"
    );
    assert!(
        info["executorVersion"].is_string() && info["capabilities"].is_object(),
        "{info}"
    );
    let cwd = server.dir.path().canonicalize().unwrap();
    assert_eq!(info["cwd"], format!("file://{}", cwd.display()));
    assert_eq!(info["platformOs"], std::env::consts::OS);
}

async fn extensions_are_granted_by_name(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let params = json!({"extensions": ["lifecycle", "unheardOf", "binaryData", "lifecycle"]});
    let result = client.initialize(params).await;
    let mut granted: Vec<&str> = result["extensions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    granted.sort_unstable();
    let expected: &[&str] = match transport {
        Transport::Stdio => &["lifecycle"],
        Transport::Unix | Transport::WebSocket => &["binaryData", "lifecycle"],
    };
    assert_eq!(granted, expected);
}

async fn initialized_before_initialize_has_no_effect(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let message = client
        .expect_refused(r#"{"method":"initialized","params":{}}"#)
        .await;
    assert!(message.contains("initialize"), "{message}");
    client.initialize(json!({})).await;
    let message = client.expect_error(-32600, "process/list", json!({})).await;
    assert!(
        message.contains("client must send initialized before"),
        "{message}"
    );
    client.send(r#"{"method":"initialized"}"#).await;
    client.expect_alive().await;
}

async fn method_params_and_handshake_are_checked_in_this_order(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    for fixture in ["new", "initialized", "ready"] {
        let message = client.expect_error(-32601, "nope", json!([])).await;
        assert!(message.contains("`nope`"), "{message}");
        client.expect_error(-32602, "process/read", json!({})).await;
        client
            .expect_error(-32602, "environment/status", json!({"a": 1}))
            .await;
        client
            .expect_error(-32600, "process/read", json!({"processId": "p"}))
            .await;
        match fixture {
            "new" => drop(client.initialize(json!({})).await),
            _ => client.send(r#"{"method":"initialized"}"#).await,
        }
    }
    client.expect_alive().await;
}

async fn handshake_errors_name_the_method_family(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let read = json!({"processId": "p"});
    let families = [
        ("process/start", script_params("p", "true"), "exec"),
        ("process/read", read.clone(), "exec"),
        ("process/terminate", read.clone(), "exec"),
        ("process/list", json!({}), "exec"),
        ("command/exec/terminate", read, "exec"),
        ("environment/info", json!(null), "environment info"),
        ("environment/status", json!(null), "environment status"),
    ];
    for (method, params, family) in &families {
        let message = client.expect_error(-32600, method, params.clone()).await;
        assert_eq!(
            message,
            format!("client must call initialize before using {family} methods")
        );
    }
    client.initialize(json!({})).await;
    for (method, params, family) in &families {
        let message = client.expect_error(-32600, method, params.clone()).await;
        assert_eq!(
            message,
            format!("client must send initialized before using {family} methods")
        );
    }
}

async fn pipelined_handshake_is_handled_in_order(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    for text in [
        r#"{"id":1,"method":"initialize","params":{"clientName":"c"}}"#,
        r#"{"method":"initialized","params":{}}"#,
        r#"{"id":2,"method":"environment/status"}"#,
        r#"{"id":3,"method":"process/list"}"#,
    ] {
        client.send(text).await;
    }
    assert!(client.answer(1).await["result"]["sessionId"].is_string());
    assert_eq!(client.answer(2).await["result"], json!({"status": "ready"}));
    assert_eq!(client.answer(3).await["result"], json!({"processes": []}));
}

async fn request_before_initialized_is_refused(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    for text in [
        r#"{"id":1,"method":"initialize","params":{"clientName":"c"}}"#,
        r#"{"id":2,"method":"process/list"}"#,
        r#"{"method":"initialized"}"#,
        r#"{"id":3,"method":"process/list"}"#,
    ] {
        client.send(text).await;
    }
    error_message(-32600, &client.answer(2).await, "before initialized");
    assert_eq!(client.answer(3).await["result"], json!({"processes": []}));
}

async fn second_initialize_is_refused(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = client.initialize(json!({})).await["sessionId"].clone();
    for _ in 0..2 {
        for params in [
            json!({"clientName": "c"}),
            json!({"clientName": "c", "resumeSessionId": session}),
        ] {
            let message = client.expect_error(-32600, "initialize", params).await;
            assert_eq!(message, "initialize may only be sent once per connection");
        }
        client.send(r#"{"method":"initialized"}"#).await;
    }
    client.expect_error(-32602, "initialize", json!({})).await;
    client.expect_alive().await;
}

async fn failed_initialize_can_be_retried(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let missing = "4a2b7f0e-0000-4000-8000-000000000000";
    for id in [missing, "", "detached", "../../etc"] {
        let params = json!({"clientName": "c", "resumeSessionId": id});
        let message = client.expect_error(-32600, "initialize", params).await;
        assert_eq!(message, format!("unknown session id {id}"));
    }
    client.expect_error(-32600, "process/list", json!({})).await;
    let message = client.expect_refused(r#"{"method":"initialized"}"#).await;
    assert!(message.contains("initialize"), "{message}");
    client.handshake().await;
    client.expect_alive().await;
}

async fn initialized_may_be_repeated_with_any_params(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    client.initialize(json!({})).await;
    for params in ["{}", "null", "[1,2]", r#""x""#, r#"{"a":{"b":1}}"#] {
        client
            .send(&format!(r#"{{"method":"initialized","params":{params}}}"#))
            .await;
        client.expect_alive().await;
    }
}

async fn methods_without_params_accept_absent_null_or_empty_params(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for method in ["environment/info", "environment/status", "process/list"] {
        for params in [
            "",
            r#","params":null"#,
            r#","params":{}"#,
            r#","params":{ }"#,
        ] {
            client
                .send(&format!(r#"{{"id":1,"method":"{method}"{params}}}"#))
                .await;
            let answer = client.answer(1).await;
            assert!(answer["result"].is_object(), "{method}{params}: {answer}");
        }
        for params in [json!([]), json!(0), json!(""), json!(false)] {
            client.expect_error(-32602, method, params).await;
        }
    }
    for method in ["environment/info", "environment/status"] {
        client
            .expect_error(-32602, method, json!({"a": null}))
            .await;
    }
}

async fn environment_info_equals_that_of_initialize(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let result = client.initialize(json!({})).await;
    client.send(r#"{"method":"initialized"}"#).await;
    assert_eq!(
        client.call("environment/info", json!(null)).await,
        result["environmentInfo"]
    );
}
