//! Several changes at once: none is lost.

use futures_util::future::join_all;
use serde_json::json;

use super::stage::Stage;

#[tokio::test]
async fn edits_of_one_file_at_once_are_all_in_it() {
    let stage = Stage::new();
    let lines: Vec<String> = (0..10).map(|line| format!("line {line};\n")).collect();
    stage.put("f", lines.concat());
    let edits = (0..10).map(|line| {
        let edit =
            json!({"path": "f", "old": format!("line {line};"), "new": format!("new {line};")});
        stage.told("edit_file", edit)
    });
    join_all(edits).await;
    assert_eq!(
        stage.text("f").unwrap(),
        lines.concat().replace("line", "new")
    );
}

#[tokio::test]
async fn of_patches_that_add_one_file_at_once_one_does() {
    let stage = Stage::new();
    let patches = (0..5).map(|number| {
        let patch = format!("*** Begin Patch\n*** Add File: f\n+{number}\n*** End Patch\n");
        stage.call("apply_patch", json!({"patch": patch}))
    });
    let results = join_all(patches).await;
    let done = |result: &&rmcp::model::CallToolResult| result.is_error == Some(false);
    assert_eq!(results.iter().filter(done).count(), 1);
}

#[tokio::test]
async fn a_patch_and_a_write_do_not_mix() {
    let stage = Stage::new();
    stage.put("f", "one\n");
    let patch =
        "*** Begin Patch\n*** Update File: f\n@@\n-one\n+two\n*** Add File: g\n+x\n*** End Patch\n";
    let patched = stage.call("apply_patch", json!({"patch": patch}));
    let written = stage.told("write_file", json!({"path": "f", "content": "three\n"}));
    let (_, _) = tokio::join!(patched, written);
    assert_eq!(stage.text("f").unwrap(), "three\n", "the write came last");
}
