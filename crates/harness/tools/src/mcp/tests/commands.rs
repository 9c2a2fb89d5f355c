//! Commands, as an agent calls them.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::stage::Stage;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_pattern_that_would_be_slow_is_refused_and_common_ones_are_not() {
    let stage = Stage::new();
    let wait = |pattern: &str| json!({"cmd": "true", "wait_for": {"pattern": pattern}});
    let slow = wait("(?-u)a[^z]{9000}c");
    let refused = stage.refused("exec_command", slow).await;
    assert!(refused.contains("too large"), "{refused}");
    for pattern in [
        r"(?i)listening on https?://\S+:\d{2,5}",
        r"^\s*\[\w+\]\s+\w+@\w+(\.\w+)+$",
        r"(error|warning|note)(\[E\d{4}\])?: .{1,80}",
        r"\$ $",
        r"(?s)BEGIN.{0,200}END",
    ] {
        stage.told("exec_command", wait(pattern)).await;
    }
}

#[tokio::test]
async fn a_command_has_no_input_unless_it_is_asked_for() {
    let stage = Stage::new();
    let command = json!({"cmd": "cat; echo read", "yield_time_ms": 40_000});
    let told = timeout(SOON, stage.told("exec_command", command)).await;
    assert!(told.unwrap().ends_with("Output:\nread\n"));

    let command = json!({"cmd": "sleep 600", "yield_time_ms": 250});
    let started = stage.call("exec_command", command).await;
    let session = started.structured_content.unwrap()["session_id"].clone();
    let write = json!({"session_id": session, "chars": "x"});
    let refused = stage.refused("write_stdin", write).await;
    assert!(refused.contains("`open_stdin`"), "{refused}");
    let interrupt = json!({"session_id": session, "chars": "\u{3}", "yield_time_ms": 40_000});
    let told = timeout(SOON, stage.told("write_stdin", interrupt)).await;
    assert!(told.unwrap().contains("exited with code 130"));

    let command = json!({"cmd": "cat", "open_stdin": true, "yield_time_ms": 250});
    let started = stage.call("exec_command", command).await;
    let session = started.structured_content.unwrap()["session_id"].clone();
    let write =
        json!({"session_id": session, "chars": "x", "close_stdin": true, "yield_time_ms": 40_000});
    let told = timeout(SOON, stage.told("write_stdin", write)).await;
    assert!(told.unwrap().ends_with("Output:\nx"));
}

#[tokio::test]
async fn a_command_that_is_not_there_is_called_as_the_tools_call_it() {
    let stage = Stage::new();
    for tool in ["write_stdin", "terminate_process"] {
        let refused = stage.refused(tool, json!({"session_id": 77})).await;
        assert_eq!(refused, "there is no command with session_id 77");
    }
    let command = json!({"cmd": "sleep 600", "yield_time_ms": 250});
    let started = stage.call("exec_command", command).await;
    let session = started.structured_content.unwrap()["session_id"].clone();
    let long = json!({"session_id": session, "yield_time_ms": 40_000});
    let waiting = stage.told("write_stdin", long);
    let other = async {
        let refused = stage.refused("write_stdin", json!({"session_id": session}));
        let refused = refused.await;
        stage
            .told("terminate_process", json!({"session_id": session}))
            .await;
        refused
    };
    let (_, refused) = tokio::join!(waiting, other);
    assert!(
        refused.contains("another call waits for the command with session_id"),
        "{refused}"
    );
}

#[tokio::test]
async fn an_argument_that_is_null_is_one_that_was_left_out() {
    let stage = Stage::new();
    let command = json!({
        "cmd": "echo hello",
        "workdir": null,
        "tty": null,
        "env": null,
        "wait_for": {"idle_ms": null, "pattern": "hello", "bytes": null},
    });
    let told = stage.told("exec_command", command).await;
    assert!(told.contains("hello"), "{told}");
    let refused = stage.refused("read_file", json!({"path": null})).await;
    assert!(refused.contains("missing field `path`"), "{refused}");
}
