//! Commands, as an agent calls them.

use std::time::Duration;

use rmcp::model::CallToolResult;
use serde_json::json;
use tokio::time::timeout;

use super::Stage;

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

/// What the smallest known client takes.
const MESSAGE_BYTES: usize = 1 << 20;

fn weight(result: &CallToolResult) -> usize {
    serde_json::to_string(result).unwrap().len()
}

#[tokio::test]
async fn a_picture_that_no_message_holds_is_described() {
    let stage = Stage::new();
    let picture = |size: usize| {
        let mut picture = b"\x89PNG\r\n\x1a\n".to_vec();
        picture.resize(size, 7);
        picture
    };
    stage.put("large.png", picture(800 << 10));
    let told = stage.told("read_file", json!({"path": "large.png"})).await;
    assert!(
        told.contains("image/png file of 819200 bytes") && told.contains("smaller"),
        "{told}"
    );
    stage.put("small.png", picture(700 << 10));
    let shown = stage.call("read_file", json!({"path": "small.png"})).await;
    assert!(matches!(
        shown.content[..],
        [rmcp::model::ContentBlock::Image(_)]
    ));
    assert!(weight(&shown) < MESSAGE_BYTES);
}

#[tokio::test]
async fn output_that_grows_when_it_is_escaped_is_cut_and_the_end_is_told() {
    let stage = Stage::new();
    let command = json!({
        "cmd": "printf first; head -c 300000 /dev/zero | tr '\\0' '\\033'; printf last; exit 3",
        "view": "raw",
        "max_output_tokens": 50_000,
    });
    let result = stage.call("exec_command", command).await;
    assert!(weight(&result) < MESSAGE_BYTES, "{}", weight(&result));
    let structured = result.structured_content.unwrap();
    assert_eq!(structured["exit_code"], 3);
    let output = structured["output"].as_str().unwrap();
    assert!(output.starts_with("first") && output.ends_with("last"));
    assert!(output.contains("left out"));
}

#[tokio::test]
async fn many_long_names_are_cut() {
    let stage = Stage::new();
    let long = "\u{1}".repeat(200);
    for directory in 0..4 {
        for name in 0..250 {
            stage.put(&format!("{long}/{directory}/{name}-{long}"), "");
        }
    }
    let found = stage.call("find_files", json!({"query": "-", "max_results": 2000}));
    assert!(weight(&found.await) < MESSAGE_BYTES);
    let listed = stage.call("list_directory", json!({"depth": 5}));
    assert!(weight(&listed.await) < MESSAGE_BYTES);
    let missing: String = (0..200_000).map(|_| "-\u{1}\n").collect();
    let patch = format!(
        "*** Begin Patch\n*** Update File: {long}/0/0-{long}\n@@\n{missing}*** End Patch\n"
    );
    let refused = stage.call("apply_patch", json!({"patch": patch})).await;
    assert!(weight(&refused) < MESSAGE_BYTES, "{}", weight(&refused));
}
