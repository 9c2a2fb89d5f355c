//! Several changes at once: none is lost.

use futures_util::{future::join_all, poll};
use serde_json::{Value, json};

use super::{faulty::Fault, stage::Stage};

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

/// Cancels a change of `f` while it is written, makes another, and returns what `f` holds then.
async fn after_one_that_is_cancelled(first: (&str, Value), second: (&str, Value)) -> String {
    let (stage, files) = Stage::with_fault(Fault::Held(1));
    stage.put("f", "one\ntwo\n");
    tokio::select! {
        biased;
        () = files.is_held() => {}
        told = stage.told(first.0, first.1) => panic!("not cancelled: {told}"),
    }
    let looks = files.looks();
    let second = stage.told(second.0, second.1);
    tokio::pin!(second);
    assert!(poll!(&mut second).is_pending());
    assert_eq!(files.looks(), looks, "it waits for its turn");
    files.open_gate();
    second.await;
    stage.text("f").unwrap()
}

#[tokio::test]
async fn a_change_waits_for_one_that_is_cancelled_and_still_written() {
    let edit = |old: &str, new: &str| json!({"path": "f", "old": old, "new": new});
    let write = |content: &str| json!({"path": "f", "content": content});
    for (first, second, both) in [
        (
            ("edit_file", edit("one", "1")),
            ("edit_file", edit("two", "2")),
            "1\n2\n",
        ),
        (
            ("write_file", write("1\ntwo\n")),
            ("edit_file", edit("two", "2")),
            "1\n2\n",
        ),
        (
            ("edit_file", edit("one", "1")),
            ("write_file", write("2\n")),
            "2\n",
        ),
    ] {
        assert_eq!(after_one_that_is_cancelled(first, second).await, both);
    }
}
