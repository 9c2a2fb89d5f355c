//! Params of `process/start`: refused values and host errors.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::{
    client::{argv_params, script_params, with},
    over_every_transport,
    params::{ready, refused, without},
    server::Transport,
};

over_every_transport!(
    start_names_the_missing_field,
    start_names_the_field_of_the_wrong_type,
    start_refuses_working_directories_of_other_hosts,
    start_reports_the_host_error,
    nul_byte_is_refused_and_named,
    terminal_start_fails_like_a_pipe_start,
    failed_start_leaves_the_id_free,
    id_in_use_is_refused_until_retention_ends,
    process_ids_may_be_empty_but_are_bounded,
);

async fn start_names_the_missing_field(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    for member in ["processId", "argv", "cwd", "env", "tty"] {
        let params = without(script_params("p", "true"), member);
        let message = client.expect_error(-32602, "process/start", params).await;
        assert_eq!(message, format!("missing field `{member}`"));
    }
}

async fn start_names_the_field_of_the_wrong_type(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    let start = |change| with(script_params("p", "true"), change);
    refused(
        &mut client,
        -32602,
        "process/start",
        &[
            (
                start(json!({"processId": 1})),
                &["processId", "expected a string"],
            ),
            (
                start(json!({"argv": "true"})),
                &["argv", "expected a sequence"],
            ),
            (
                start(json!({"argv": ["true", 1]})),
                &["argv[1]", "expected a string"],
            ),
            (start(json!({"argv": []})), &["argv must not be empty"]),
            (start(json!({"env": []})), &["env", "expected a map"]),
            (
                start(json!({"env": {"A": 1}})),
                &["env", "A", "expected a string"],
            ),
            (start(json!({"tty": 1})), &["tty", "expected a boolean"]),
            (start(json!({"tty": null})), &["tty", "expected a boolean"]),
            (start(json!({"arg0": 1})), &["arg0", "expected a string"]),
            (start(json!({"envPolicy": {}})), &["envPolicy", "inherit"]),
            (
                start(
                    json!({"envPolicy": {"inherit": "some", "ignoreDefaultExcludes": false,
                "exclude": [], "set": {}, "includeOnly": []}}),
                ),
                &["envPolicy.inherit", "some", "core"],
            ),
            (
                start(json!({"metadata": {"threadId": "x"}})),
                &["metadata.threadId", "UUID"],
            ),
            (start(json!({"metadata": 1})), &["metadata"]),
            (
                start(json!({"size": {"rows": 0, "cols": 80}})),
                &["size", "row"],
            ),
            (start(json!({"size": {"rows": 24}})), &["size", "cols"]),
            (
                start(json!({"size": {"rows": 65536, "cols": 1}})),
                &["size.rows", "u16"],
            ),
            (
                start(json!({"mode": "other"})),
                &["mode", "direct", "prepared"],
            ),
            (
                start(json!({"limits": {"wallMs": -1}})),
                &["limits.wallMs", "expected u64"],
            ),
            (
                start(json!({"limits": {"cpuMs": 1.5}})),
                &["limits.cpuMs", "expected u64"],
            ),
            (
                start(json!({"detached": "yes"})),
                &["detached", "expected a boolean"],
            ),
            (
                start(json!({"shellSnapshot": {}})),
                &["shellSnapshot", "scopeId"],
            ),
        ],
    )
    .await;
    client.start("p", "true").await;
}

async fn start_refuses_working_directories_of_other_hosts(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    for cwd in [
        json!("/"),
        json!(""),
        json!("relative"),
        json!("http://host/x"),
        json!("file:///a?q=1"),
        json!("file:///a#f"),
        json!("file:///a%00b"),
        json!("file:///C:/x"),
        json!("file:///C%3A/x"),
        json!(5),
        json!(null),
        json!("file://other-host/share"),
    ] {
        let params = with(script_params("p", "true"), json!({"cwd": cwd}));
        let message = client.expect_error(-32602, "process/start", params).await;
        assert!(message.contains("cwd"), "{cwd}: {message}");
    }
    client.start("p", "true").await;
}

async fn start_reports_the_host_error(transport: Transport) {
    let (server, mut client) = ready(transport).await;
    let (missing, plain) = (server.path("missing"), server.path("plain"));
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
    let start = |change| with(script_params("p", "true"), change);
    refused(
        &mut client,
        -32603,
        "process/start",
        &[
            (
                start(json!({"argv": ["no-such-program-here"]})),
                &["No such file", "no-such-program-here"],
            ),
            (
                start(json!({"argv": [missing]})),
                &["No such file", "missing"],
            ),
            (
                start(json!({"argv": [plain]})),
                &["Permission denied", "plain"],
            ),
            (start(json!({"argv": ["/"]})), &["Permission denied"]),
            (start(json!({"argv": [""]})), &["missing program"]),
            (
                start(json!({"cwd": format!("file://{}", missing.display())})),
                &["No such file", "missing"],
            ),
            (
                start(json!({"cwd": format!("file://{}", plain.display())})),
                &["Not a directory"],
            ),
        ],
    )
    .await;
}

async fn nul_byte_is_refused_and_named(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    let start = |change| with(script_params("p", "true"), change);
    refused(
        &mut client,
        -32603,
        "process/start",
        &[
            (start(json!({"argv": ["sh", "a\0b"]})), &["argv"]),
            (start(json!({"argv": ["s\0h"]})), &["argv"]),
            (start(json!({"env": {"A": "b\0c"}})), &["env"]),
            (start(json!({"env": {"A\0": "b"}})), &["env"]),
        ],
    )
    .await;
}

async fn terminal_start_fails_like_a_pipe_start(transport: Transport) {
    let (server, mut client) = ready(transport).await;
    let missing = format!("file://{}", server.path("missing").display());
    let start = |change| {
        with(
            with(script_params("p", "true"), json!({"tty": true})),
            change,
        )
    };
    refused(
        &mut client,
        -32603,
        "process/start",
        &[
            (
                start(json!({"argv": ["no-such-program-here"]})),
                &["No such file"],
            ),
            (start(json!({"cwd": missing})), &["No such file"]),
            (start(json!({"argv": [""]})), &["missing program"]),
        ],
    )
    .await;
}

async fn failed_start_leaves_the_id_free(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    for _ in 0..2 {
        client
            .expect_error(
                -32603,
                "process/start",
                argv_params("p", &["no-such-program"]),
            )
            .await;
        client
            .expect_error(-32600, "process/read", json!({"processId": "p"}))
            .await;
    }
    assert_eq!(
        client.call("process/list", json!({})).await,
        json!({"processes": []})
    );
    client.start("p", "exit 4").await;
    assert_eq!(client.finish("p").await.code(), 4);
}

async fn id_in_use_is_refused_until_retention_ends(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    client
        .start_with(script_params("p", "cat"), json!({"pipeStdin": true}))
        .await;
    let again = script_params("p", "true");
    let message = client
        .expect_error(-32600, "process/start", again.clone())
        .await;
    assert_eq!(message, "process p already exists");
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    client.finish("p").await;
    client.expect_error(-32600, "process/start", again).await;
}

async fn process_ids_may_be_empty_but_are_bounded(transport: Transport) {
    let (_server, mut client) = ready(transport).await;
    for id in ["", "é\u{0}\n\"", &"x".repeat(1024)] {
        client.start(id, "echo out").await;
        assert_eq!(client.finish(id).await.stdout(), "out\n");
    }
    let params = script_params(&"x".repeat(1025), "true");
    let message = client.expect_error(-32602, "process/start", params).await;
    assert!(
        message.contains("processId") && message.contains("1024"),
        "{message}"
    );
}
