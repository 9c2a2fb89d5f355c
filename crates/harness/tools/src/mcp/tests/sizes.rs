//! What an answer may weigh: some clients take no message of a mebibyte.

use rmcp::model::CallToolResult;
use serde_json::json;

use super::stage::Stage;

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
