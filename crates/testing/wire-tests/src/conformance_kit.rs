//! The conformance kit, `exec-server conformance`: it passes our server and fails others.

use std::process::{Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::server::{Server, TIMEOUT, Transport, shell};

/// Runs the kit. Its own waits are shorter than ours.
async fn judge(dir: &TempDir, arguments: &[&str]) -> Output {
    let mut command = shell(dir.path(), "exec \"$0\" \"$@\"", &["conformance", "--json"]);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    timeout(6 * TIMEOUT, command.output())
        .await
        .expect("the kit did not end in time")
        .unwrap()
}

/// Returns the lines of the report and the sums.
fn report(output: &Output) -> (Vec<Value>, Value) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let mut lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let sums = lines.pop().unwrap_or_else(|| panic!("{output:?}"));
    (lines, sums)
}

fn with_outcome<'a>(lines: &'a [Value], outcome: &str) -> Vec<&'a Value> {
    let has = |line: &&Value| line["outcome"] == outcome;
    lines.iter().filter(has).collect()
}

#[tokio::test]
async fn our_server_passes_every_case_over_a_websocket() {
    // History needs a state directory.
    let state = TempDir::new().unwrap();
    let state_dir = state.path().join("state");
    let state_dir = ["--state-dir", state_dir.to_str().unwrap()];
    let server = Server::start(Transport::WebSocket, &state_dir).await;
    let url = format!("ws://127.0.0.1:{}", server.port());
    let dir = server.dir.path().to_str().unwrap();
    let output = judge(&server.dir, &["--dir", dir, &url]).await;
    let (lines, sums) = report(&output);
    assert!(with_outcome(&lines, "failed").is_empty(), "{lines:#?}");
    assert!(with_outcome(&lines, "skipped").is_empty(), "{lines:#?}");
    assert!(lines.len() >= 190, "{sums}");
    assert_eq!(sums["passed"], lines.len());
    assert!(output.status.success());
    let left = std::fs::read_dir(dir).unwrap();
    let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains("conformance")).count(), 0);
}

#[tokio::test]
async fn our_server_passes_on_stdio_what_needs_one_connection() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().to_str().unwrap();
    let program = exec_test_support::workspace_program::workspace_program("exec-server");
    let program = program.to_str().unwrap();
    let arguments = [
        "--dir",
        path,
        "--filter",
        "initialize: ",
        "--filter",
        "resume: ",
    ];
    let program = ["--program", program, "--listen", "stdio"];
    let output = judge(&dir, &[&arguments[..], &program].concat()).await;
    let (lines, _) = report(&output);
    assert!(with_outcome(&lines, "failed").is_empty(), "{lines:#?}");
    let skipped = with_outcome(&lines, "skipped");
    assert!(skipped.len() >= 8, "{lines:#?}");
    for line in skipped {
        assert!(
            line["reason"]
                .as_str()
                .unwrap()
                .contains("several connections")
        );
    }
    assert!(with_outcome(&lines, "passed").len() >= 10, "{lines:#?}");
    assert!(output.status.success());
}

/// A server that answers every request with the same result.
const ECHO: &str = r#"while read -r line; do
    id=$(printf %s "$line" | sed -n 's/.*"id":\(-\{0,1\}[0-9]*\).*/\1/p')
    [ -z "$id" ] || printf '{"id":%s,"result":{"sessionId":"s"}}\n' "$id"
done"#;

#[tokio::test]
async fn another_implementation_fails_with_the_reason_of_each_case() {
    let dir = TempDir::new().unwrap();
    let filter = [
        "--filter",
        "errors: an unknown method",
        "--filter",
        "fs: a file is read as",
    ];
    let options = ["--wait", "2s", "--program", "sh", "-c", ECHO];
    let output = judge(&dir, &[&filter[..], &options].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let (lines, sums) = report(&output);
    assert_eq!(sums["failed"], 2, "{lines:#?}");
    let reason = |index: usize| lines[index]["reason"].as_str().unwrap();
    assert_eq!(
        reason(0),
        r#"step 1: process/nope must fail, and returned {"sessionId":"s"}"#
    );
    assert_eq!(
        reason(1),
        r#"step 2: result.dataBase64: expected {"$base64":"content\n"}, got nothing"#
    );
}

#[tokio::test]
async fn server_that_cannot_be_reached_is_not_judged() {
    let dir = TempDir::new().unwrap();
    let output = judge(&dir, &["--program", "false"]).await;
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let unknown = judge(
        &dir,
        &["--filter", "nothing has this name", "--program", "false"],
    )
    .await;
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}
