//! Command tools, and the size limits of answers.

use std::time::Duration;

use rmcp::model::CallToolResult;
use serde_json::json;
use tokio::time::timeout;

use super::McpFixture;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn oversized_patterns_are_rejected_and_common_ones_accepted() {
    let fixture = McpFixture::new();
    let wait = |pattern: &str| json!({"cmd": "true", "wait_for": {"pattern": pattern}});
    let slow = wait("(?-u)a[^z]{9000}c");
    let error = fixture.call_err("exec_command", slow).await;
    assert!(error.contains("too large"), "{error}");
    for pattern in [
        r"(?i)listening on https?://\S+:\d{2,5}",
        r"^\s*\[\w+\]\s+\w+@\w+(\.\w+)+$",
        r"(error|warning|note)(\[E\d{4}\])?: .{1,80}",
        r"\$ $",
        r"(?s)BEGIN.{0,200}END",
    ] {
        fixture.call_ok("exec_command", wait(pattern)).await;
    }
}

#[tokio::test]
async fn command_has_no_stdin_unless_requested() {
    let fixture = McpFixture::new();
    let command = json!({"cmd": "cat; echo read", "yield_time_ms": 40_000});
    let answer = timeout(TEST_TIMEOUT, fixture.call_ok("exec_command", command)).await;
    assert!(answer.unwrap().ends_with("Output:\nread\n"));

    let command = json!({"cmd": "sleep 600", "yield_time_ms": 250});
    let started = fixture.call("exec_command", command).await;
    let session = started.structured_content.unwrap()["session_id"].clone();
    let write = json!({"session_id": session, "chars": "x"});
    let error = fixture.call_err("write_stdin", write).await;
    assert!(error.contains("`open_stdin`"), "{error}");
    let interrupt = json!({"session_id": session, "chars": "\u{3}", "yield_time_ms": 40_000});
    let answer = timeout(TEST_TIMEOUT, fixture.call_ok("write_stdin", interrupt)).await;
    assert!(answer.unwrap().contains("exited with code 130"));

    let command = json!({"cmd": "cat", "open_stdin": true, "yield_time_ms": 250});
    let started = fixture.call("exec_command", command).await;
    let session = started.structured_content.unwrap()["session_id"].clone();
    let write =
        json!({"session_id": session, "chars": "x", "close_stdin": true, "yield_time_ms": 40_000});
    let answer = timeout(TEST_TIMEOUT, fixture.call_ok("write_stdin", write)).await;
    assert!(answer.unwrap().ends_with("Output:\nx"));
}

#[tokio::test]
async fn errors_name_commands_by_session_id() {
    let fixture = McpFixture::new();
    for tool in ["write_stdin", "terminate_process"] {
        let error = fixture.call_err(tool, json!({"session_id": "c77"})).await;
        assert_eq!(error, "no command has session_id c77");
    }
    let command = json!({"cmd": "sleep 600", "yield_time_ms": 250});
    let started = fixture.call("exec_command", command).await;
    let session = started.structured_content.unwrap()["session_id"].clone();
    let long = json!({"session_id": session, "yield_time_ms": 40_000});
    let waiting = fixture.call_ok("write_stdin", long);
    let other = async {
        let error = fixture.call_err("write_stdin", json!({"session_id": session}));
        let error = error.await;
        fixture
            .call_ok("terminate_process", json!({"session_id": session}))
            .await;
        error
    };
    let (_, error) = tokio::join!(waiting, other);
    assert!(
        error.contains("another call waits for the command with session_id"),
        "{error}"
    );
}

#[tokio::test]
async fn null_argument_counts_as_absent() {
    let fixture = McpFixture::new();
    let command = json!({
        "cmd": "echo hello",
        "workdir": null,
        "tty": null,
        "env": null,
        "wait_for": {"idle_ms": null, "pattern": "hello", "bytes": null},
    });
    let answer = fixture.call_ok("exec_command", command).await;
    assert!(answer.contains("hello"), "{answer}");
    let error = fixture.call_err("read_file", json!({"path": null})).await;
    assert!(error.contains("missing field `path`"), "{error}");
}

/// Maximum message size of the most limited known client.
const MESSAGE_BYTES: usize = 1 << 20;

fn weight(result: &CallToolResult) -> usize {
    serde_json::to_string(result).unwrap().len()
}

#[tokio::test]
async fn oversized_image_is_described() {
    let fixture = McpFixture::new();
    let picture = |size: usize| {
        let mut picture = b"\x89PNG\r\n\x1a\n".to_vec();
        picture.resize(size, 7);
        picture
    };
    fixture.write_file("large.png", picture(800 << 10));
    let answer = fixture
        .call_ok("read_file", json!({"path": "large.png"}))
        .await;
    assert!(
        answer.contains("image/png file of 819200 bytes") && answer.contains("smaller"),
        "{answer}"
    );
    fixture.write_file("small.png", picture(700 << 10));
    let answer = fixture
        .call("read_file", json!({"path": "small.png"}))
        .await;
    assert!(matches!(
        answer.content[..],
        [rmcp::model::ContentBlock::Image(_)]
    ));
    assert!(weight(&answer) < MESSAGE_BYTES);
}

#[tokio::test]
async fn escaped_output_is_truncated_and_the_exit_reported() {
    let fixture = McpFixture::new();
    let command = json!({
        "cmd": "printf first; head -c 300000 /dev/zero | tr '\\0' '\\033'; printf last; exit 3",
        "view": "raw",
        "max_output_tokens": 50_000,
    });
    let result = fixture.call("exec_command", command).await;
    assert!(weight(&result) < MESSAGE_BYTES, "{}", weight(&result));
    let structured = result.structured_content.unwrap();
    assert_eq!(structured["exit_code"], 3);
    let output = structured["output"].as_str().unwrap();
    assert!(output.starts_with("first") && output.ends_with("last"));
    assert!(output.contains("left out"));
}

#[tokio::test]
async fn many_long_names_are_truncated() {
    let fixture = McpFixture::new();
    let long = "\u{1}".repeat(200);
    for directory in 0..4 {
        for name in 0..250 {
            fixture.write_file(&format!("{long}/{directory}/{name}-{long}"), "");
        }
    }
    let found = fixture.call("find_files", json!({"query": "-", "max_results": 2000}));
    assert!(weight(&found.await) < MESSAGE_BYTES);
    let listed = fixture.call("list_directory", json!({"depth": 5}));
    assert!(weight(&listed.await) < MESSAGE_BYTES);
    let missing: String = (0..200_000).map(|_| "-\u{1}\n").collect();
    let patch = format!(
        "*** Begin Patch\n*** Update File: {long}/0/0-{long}\n@@\n{missing}*** End Patch\n"
    );
    let error = fixture.call("apply_patch", json!({"patch": patch})).await;
    assert!(weight(&error) < MESSAGE_BYTES, "{}", weight(&error));
}
