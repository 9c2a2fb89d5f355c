//! Invalid params: every refusal has its code, names the field and states the expected type.

use serde_json::{Value, json};

use crate::{
    client::{Client, script_params, with},
    over_every_transport,
    server::{Server, Transport},
};

over_every_transport!(
    initialize_names_the_invalid_field,
    null_is_refused_for_fields_with_a_default,
    null_means_absent_for_optional_fields,
    read_names_the_invalid_field,
    write_names_the_invalid_field,
    unknown_signals_are_refused,
    extension_methods_name_the_invalid_field,
    unknown_fields_are_ignored,
    params_of_the_wrong_type_are_refused,
);

pub(crate) async fn ready(transport: Transport) -> (Server, Client) {
    let mut server = Server::start(transport, &[]).await;
    let client = server.ready().await;
    (server, client)
}

/// Sends each of the params; the error message must contain each of the words.
pub(crate) async fn refused(
    client: &mut Client,
    code: i64,
    method: &str,
    cases: &[(Value, &[&str])],
) {
    for (params, words) in cases {
        let message = client.expect_error(code, method, params.clone()).await;
        for word in *words {
            assert!(
                message.contains(word),
                "{method} {params}: {message:?} lacks {word:?}"
            );
        }
    }
}

pub(crate) fn without(mut params: Value, member: &str) -> Value {
    params
        .as_object_mut()
        .unwrap()
        .remove(member)
        .expect("field was missing");
    params
}

async fn initialize_names_the_invalid_field(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    refused(
        &mut client,
        -32602,
        "initialize",
        &[
            (json!({}), &["missing field `clientName`"]),
            (json!(null), &[]),
            (json!([]), &[]),
            (json!("c"), &[]),
            (
                json!({"clientName": 5}),
                &["clientName", "expected a string"],
            ),
            (
                json!({"clientName": null}),
                &["clientName", "expected a string"],
            ),
            (
                json!({"clientName": "c", "resumeSessionId": 1}),
                &["resumeSessionId", "expected a string"],
            ),
            (
                json!({"clientName": "c", "extensions": "x"}),
                &["extensions", "expected a sequence"],
            ),
            (
                json!({"clientName": "c", "extensions": [1]}),
                &["extensions[0]", "expected a string"],
            ),
        ],
    )
    .await;
    client.handshake().await;
}

async fn null_is_refused_for_fields_with_a_default(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    for member in ["pipeStdin", "enforceManagedNetwork", "detached"] {
        let params = with(script_params("p", "true"), json!({member: null}));
        let message = client.expect_error(-32602, "process/start", params).await;
        assert!(
            message.contains(member) && message.contains("expected a boolean"),
            "{message}"
        );
    }
    let params = json!({"processId": "p", "until": null});
    let message = client.expect_error(-32602, "process/wait", params).await;
    assert!(message.contains("until"), "{message}");
}

async fn null_means_absent_for_optional_fields(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    let nulls = json!({
        "metadata": null, "envPolicy": null, "shellSnapshot": null, "arg0": null, "sandbox": null,
        "managedNetwork": null, "networkProxy": null, "size": null, "mode": null, "limits": null,
    });
    client.start_with(script_params("p", "true"), nulls).await;
    client.finish("p").await;
    let nulls = json!({"processId": "p", "afterSeq": null, "maxBytes": null, "waitMs": null});
    assert_eq!(client.call("process/read", nulls).await["closed"], true);
    client
        .call("process/wait", json!({"processId": "p", "timeoutMs": null}))
        .await;
    client
        .call("process/terminate", json!({"processId": "p", "mode": null}))
        .await;
    let metadata = json!({"metadata": {"threadId": null, "toolCallId": null}});
    client
        .start_with(script_params("q", "true"), metadata)
        .await;
}

async fn read_names_the_invalid_field(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    refused(
        &mut client,
        -32602,
        "process/read",
        &[
            (json!({}), &["missing field `processId`"]),
            (json!({"processId": 1}), &["processId", "expected a string"]),
            (
                json!({"processId": "p", "afterSeq": -1}),
                &["afterSeq", "expected u64"],
            ),
            (
                json!({"processId": "p", "afterSeq": 1.0}),
                &["afterSeq", "expected u64"],
            ),
            (
                json!({"processId": "p", "maxBytes": "1"}),
                &["maxBytes", "expected usize"],
            ),
            (
                json!({"processId": "p", "waitMs": -5}),
                &["waitMs", "expected u64"],
            ),
            (
                json!({"processId": "p", "waitMs": 18_446_744_073_709_551_616.0}),
                &["waitMs"],
            ),
        ],
    )
    .await;
    for method in [
        "process/read",
        "process/wait",
        "process/snapshot",
        "process/attach",
    ] {
        let message = client
            .expect_error(-32600, method, json!({"processId": "zz"}))
            .await;
        assert_eq!(message, "unknown process id zz");
    }
}

async fn write_names_the_invalid_field(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    let write = |change| {
        with(
            json!({"processId": "p", "writeId": "1", "chunk": "YQ=="}),
            change,
        )
    };
    refused(
        &mut client,
        -32602,
        "process/write",
        &[
            (
                write(json!({"writeId": ""})),
                &["writeId must not be empty"],
            ),
            (
                write(json!({"writeId": 1})),
                &["writeId", "expected a string"],
            ),
            (
                without(write(json!({})), "writeId"),
                &["missing field `writeId`"],
            ),
            (
                without(write(json!({})), "chunk"),
                &["missing field `chunk`"],
            ),
            (
                without(write(json!({})), "processId"),
                &["missing field `processId`"],
            ),
            (write(json!({"chunk": 1})), &["chunk", "base64"]),
            (
                write(json!({"chunk": "YQ"})),
                &["chunk", "base64", "padding"],
            ),
            (write(json!({"chunk": "YQ="})), &["chunk", "base64"]),
            (write(json!({"chunk": "_-8="})), &["chunk", "base64"]),
            (write(json!({"chunk": "Y Q=="})), &["chunk", "base64"]),
            (write(json!({"chunk": "YQ==\n"})), &["chunk", "base64"]),
            (write(json!({"chunk": "💥"})), &["chunk", "base64"]),
        ],
    )
    .await;
    let unknown = client
        .call("process/write", write(json!({"processId": "zz"})))
        .await;
    assert_eq!(unknown, json!({"status": "unknownProcess"}));
}

async fn unknown_signals_are_refused(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    for signal in [
        json!("SIGINT"),
        json!("INT"),
        json!(2),
        json!("Interrupt"),
        json!(null),
    ] {
        let params = json!({"processId": "p", "signal": signal});
        let message = client.expect_error(-32602, "process/signal", params).await;
        assert!(message.contains("signal"), "{signal}: {message}");
    }
    let params = json!({"processId": "p", "signal": "winch"});
    let message = client.expect_error(-32602, "process/signal", params).await;
    assert!(
        message.contains("`winch`") && message.contains("`interrupt`"),
        "{message}"
    );
    let message = client
        .expect_error(-32602, "process/signal", json!({"processId": "p"}))
        .await;
    assert_eq!(message, "missing field `signal`");
}

async fn extension_methods_name_the_invalid_field(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    let params = json!({"processId": "p", "rows": 0, "cols": 70000});
    let message = client.expect_error(-32602, "process/resize", params).await;
    assert!(
        message.contains("cols") && message.contains("u16"),
        "{message}"
    );
    let params = json!({"processId": "p", "until": "done"});
    let message = client.expect_error(-32602, "process/wait", params).await;
    assert!(
        message.contains("until") && message.contains("`exited`"),
        "{message}"
    );
    for mode in [
        json!("force"),
        json!({}),
        json!({"type": "slow"}),
        json!({"type": "graceful"}),
    ] {
        let params = json!({"processId": "p", "mode": mode});
        let message = client
            .expect_error(-32602, "process/terminate", params)
            .await;
        assert!(message.contains("mode"), "{mode}: {message}");
    }
    let params = json!({"processId": "p", "writeId": ""});
    let message = client
        .expect_error(-32602, "process/closeStdin", params)
        .await;
    assert!(message.contains("writeId"), "{message}");
}

async fn unknown_fields_are_ignored(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    let extra = json!({"future": {"x": [1]}, "metadata": {"later": 1}, "limits": {"later": 1}});
    client.start_with(script_params("p", "true"), extra).await;
    client.finish("p").await;
    let params = json!({"processId": "p", "mode": {"type": "force", "x": 1}, "y": 2});
    client.call("process/terminate", params).await;
}

async fn params_of_the_wrong_type_are_refused(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    for params in [json!("p"), json!(1), json!(true), json!(null), json!({})] {
        for method in [
            "process/start",
            "process/read",
            "process/write",
            "process/terminate",
        ] {
            client.expect_error(-32602, method, params.clone()).await;
        }
    }
    client.expect_alive().await;
}
