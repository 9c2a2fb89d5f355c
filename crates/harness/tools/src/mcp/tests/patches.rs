//! Patches of several files: all or nothing.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use futures_util::{future::join_all, poll};
use serde_json::{Value, json};

use super::{Stage, faulty_files::Fault};

fn patch(body: &str) -> serde_json::Value {
    json!({"patch": format!("*** Begin Patch\n{body}*** End Patch\n")})
}

#[tokio::test]
async fn files_are_added_updated_moved_and_deleted_at_once() {
    let stage = Stage::new();
    stage.put("old.txt", "gone\n");
    stage.put("a.txt", "one\ntwo\nthree\n");
    stage.put("m.txt", "moved\n");
    let told = stage.told(
        "apply_patch",
        patch(
            "*** Add File: new/n.txt\n+hello\n*** Delete File: old.txt\n*** Update File: a.txt\n@@\n one\n\
             -two\n+2\n*** Update File: m.txt\n*** Move to: dir/m2.txt\n@@\n-moved\n+there\n",
        ),
    );
    assert_eq!(
        told.await,
        "A new/n.txt\nD old.txt\nM a.txt\nR m.txt -> dir/m2.txt"
    );
    assert_eq!(stage.text("new/n.txt").unwrap(), "hello\n");
    assert_eq!(stage.text("old.txt"), None);
    assert_eq!(stage.text("a.txt").unwrap(), "one\n2\nthree\n");
    assert_eq!(stage.text("m.txt"), None);
    assert_eq!(stage.text("dir/m2.txt").unwrap(), "there\n");
}

#[tokio::test]
async fn nothing_is_written_if_one_hunk_does_not_fit() {
    let stage = Stage::new();
    stage.put("a.txt", "one\n");
    stage.put("b.txt", "two\n");
    let refused = stage.refused(
        "apply_patch",
        patch("*** Update File: a.txt\n@@\n-one\n+1\n*** Update File: b.txt\n@@\n-three\n+3\n"),
    );
    let refused = refused.await;
    assert!(
        refused
            .starts_with("`b.txt`: hunk 1 (patch line 7): these lines are not in the file:\nthree"),
        "{refused}"
    );
    assert_eq!(stage.text("a.txt").unwrap(), "one\n");
}

#[tokio::test]
async fn files_that_are_in_the_way_or_missing_are_named() {
    let stage = Stage::new();
    stage.put("a.txt", "one\n");
    for (body, says) in [
        ("*** Add File: a.txt\n+x\n", "`a.txt` exists already"),
        (
            "*** Update File: a.txt\n*** Move to: a.txt\n@@\n-one\n+1\n",
            "`a.txt` exists already",
        ),
        ("*** Delete File: none.txt\n", "none.txt"),
        (
            "*** Delete File: a.txt\n*** Delete File: a.txt\n",
            "`a.txt` is gone by then",
        ),
    ] {
        let refused = stage.refused("apply_patch", patch(body)).await;
        assert!(refused.contains(says), "{refused}");
        assert_eq!(stage.text("a.txt").unwrap(), "one\n");
    }
    // What one part of a patch does, the next part finds.
    let twice = patch("*** Delete File: a.txt\n*** Add File: a.txt\n+new\n");
    stage.told("apply_patch", twice).await;
    assert_eq!(stage.text("a.txt").unwrap(), "new\n");
}

#[tokio::test]
async fn what_was_written_is_put_back_if_a_later_file_cannot_be() {
    let stage = Stage::new();
    stage.put("a.txt", "one\n");
    // The name is too long for any file system, which only writing finds out.
    let long = "z".repeat(250);
    let refused = stage.refused(
        "apply_patch",
        patch(&format!(
            "*** Update File: a.txt\n@@\n-one\n+1\n*** Add File: {long}/{long}{long}\n+x\n"
        )),
    );
    let refused = refused.await;
    assert!(refused.ends_with("; no file was changed"), "{refused}");
    assert_eq!(stage.text("a.txt").unwrap(), "one\n");
}

#[tokio::test]
async fn a_file_that_is_moved_keeps_its_mode() {
    let stage = Stage::new();
    let path = |name: &str| stage.directory.path().join(name);
    let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
    for (name, mode) in [("run.sh", 0o755), ("secret", 0o600)] {
        stage.put(name, "one\n");
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let moves = patch(
        "*** Update File: run.sh\n*** Move to: bin/run.sh\n@@\n-one\n+1\n*** Update File: secret\n\
         *** Move to: hidden\n",
    );
    stage.told("apply_patch", moves).await;
    assert_eq!((mode("bin/run.sh"), mode("hidden")), (0o755, 0o600));
}

#[tokio::test]
async fn one_file_under_two_names_is_refused() {
    let stage = Stage::new();
    stage.put("a.txt", "one\ntwo\n");
    std::os::unix::fs::symlink("a.txt", stage.directory.path().join("b.txt")).unwrap();
    let refused = stage.refused(
        "apply_patch",
        patch("*** Update File: a.txt\n@@\n-one\n+1\n*** Update File: b.txt\n@@\n-two\n+2\n"),
    );
    let refused = refused.await;
    assert!(refused.contains("are the same file"), "{refused}");
    assert_eq!(stage.text("a.txt").unwrap(), "one\ntwo\n");
    // One of them is enough, and the link stays.
    let one = patch("*** Update File: b.txt\n@@\n-two\n+2\n");
    stage.told("apply_patch", one).await;
    assert_eq!(stage.text("a.txt").unwrap(), "one\n2\n");
}

#[tokio::test]
async fn a_call_that_is_dropped_while_files_are_written_writes_them_all() {
    let stage = Stage::new();
    let files: String = (100..200)
        .map(|number| format!("*** Add File: f{number}\n+x\n"))
        .collect();
    let there = async |name: &str| {
        while stage.text(name).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = there("f100") => {}
        told = stage.told("apply_patch", patch(&files)) => panic!("not dropped: {told}"),
    }
    let all = tokio::time::timeout(Duration::from_secs(20), there("f199"));
    all.await.unwrap();
}

#[tokio::test]
async fn what_is_deleted_or_moved_need_not_be_text() {
    let stage = Stage::new();
    stage.put("binary", b"\xff\0");
    stage.put("moved", b"\xfe\0");
    stage.put("large", vec![b'x'; (16 << 20) + 1]);
    let told = stage.told(
        "apply_patch",
        patch(
            "*** Delete File: binary\n*** Update File: moved\n*** Move to: there\n*** Delete File: large\n",
        ),
    );
    assert_eq!(told.await, "D binary\nR moved -> there\nD large");
    let path = |name: &str| stage.directory.path().join(name);
    assert!(!path("binary").exists() && !path("large").exists() && !path("moved").exists());
    assert_eq!(fs::read(path("there")).unwrap(), b"\xfe\0");
}

#[tokio::test]
async fn of_files_that_are_too_large_to_be_put_back_one_patch_deletes_one() {
    let stage = Stage::new();
    stage.put("a", b"\xff\0");
    for name in ["large", "large2"] {
        stage.put(name, vec![b'x'; (16 << 20) + 1]);
    }
    let both = patch("*** Delete File: a\n*** Delete File: large\n*** Delete File: large2\n");
    let refused = stage.refused("apply_patch", both).await;
    assert!(refused.contains("`large2`"), "{refused}");
    let path = |name: &str| stage.directory.path().join(name);
    assert!(path("a").exists() && path("large").exists());
    let moved = patch("*** Update File: large\n*** Move to: there\n");
    let refused = stage.refused("apply_patch", moved).await;
    assert!(refused.contains("too large to be moved"), "{refused}");
}

#[tokio::test]
async fn one_new_file_under_two_names_is_refused() {
    let stage = Stage::new();
    stage.put("d/old", "x\n");
    std::os::unix::fs::symlink("d", stage.directory.path().join("dl")).unwrap();
    for (one, other) in [("d/new", "dl/new"), ("d/deep/new", "dl/deep/new")] {
        let refused = stage.refused(
            "apply_patch",
            patch(&format!(
                "*** Add File: {one}\n+1\n*** Add File: {other}\n+2\n"
            )),
        );
        let refused = refused.await;
        assert!(refused.contains("are the same file"), "{refused}");
        assert_eq!(stage.text(one), None);
    }
    let refused = stage.refused(
        "apply_patch",
        patch("*** Add File: d/new\n+1\n*** Update File: d/old\n*** Move to: dl/new\n"),
    );
    assert!(refused.await.contains("are the same file"));
}

#[tokio::test]
async fn a_file_that_is_there_is_not_added_and_what_to_do_is_said() {
    let stage = Stage::new();
    stage.put("a.txt", "one\n");
    let refused = stage.refused("apply_patch", patch("*** Add File: a.txt\n+x\n"));
    let refused = refused.await;
    assert!(refused.contains("use `*** Update File:`"), "{refused}");
}

#[tokio::test]
async fn a_patch_that_was_undone_leaves_no_directory_behind() {
    let stage = Stage::new();
    stage.put("old/a.txt", "one\n");
    let long = "z".repeat(250);
    let refused = stage.refused(
        "apply_patch",
        patch(&format!(
            "*** Add File: fresh/deep/f\n+x\n*** Add File: old/fresh/f\n+x\n*** Add File: {long}/{long}{long}\n+x\n"
        )),
    );
    let refused = refused.await;
    assert!(refused.ends_with("; no file was changed"), "{refused}");
    assert!(!stage.directory.path().join("fresh").exists());
    assert!(!stage.directory.path().join("old/fresh").exists());
    assert!(!stage.directory.path().join(long).exists());
    assert!(stage.directory.path().join("old").exists());
}

/// Changes of `b` that come second, behind one of `a`.
const SECOND: [&str; 3] = [
    "*** Update File: b\n@@\n-two\n+2\n",
    "*** Delete File: b\n",
    "*** Add File: dir/new\n+x\n",
];

const FIRST: &str = "*** Update File: a\n@@\n-one\n+1\n";

fn put(stage: &Stage) {
    stage.put("a", "one\n");
    stage.put("b", "two\n");
}

#[tokio::test]
async fn a_change_that_was_made_without_an_answer_is_put_back() {
    for second in SECOND {
        let (stage, _) = Stage::with_fault(Fault::Unanswered(2));
        put(&stage);
        let refused = stage
            .refused("apply_patch", patch(&format!("{FIRST}{second}")))
            .await;
        assert_eq!(stage.text("a").unwrap(), "one\n", "{second}");
        assert_eq!(stage.text("b").as_deref(), Some("two\n"), "{second}");
        assert!(!stage.directory.path().join("dir").exists(), "{second}");
        assert!(refused.contains("cut on purpose"), "{refused}");
        assert!(refused.ends_with("; no file was changed"), "{refused}");
    }
}

#[tokio::test]
async fn what_may_have_been_changed_is_not_said_to_be_as_it_was() {
    for at in [1, 2] {
        for second in SECOND {
            let (stage, _) = Stage::with_fault(Fault::CutBehind(at));
            put(&stage);
            let refused = stage
                .refused("apply_patch", patch(&format!("{FIRST}{second}")))
                .await;
            let says = "; files may not be as they were";
            assert!(refused.ends_with(says), "{refused}");
        }
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_put_back_goes_with_the_rest_or_not_at_all() {
    let large = vec![b'x'; (16 << 20) + 1];
    let both = patch(&format!("{FIRST}*** Delete File: large\n"));
    let (stage, _) = Stage::with_fault(Fault::Unanswered(2));
    put(&stage);
    stage.put("large", &large);
    let told = stage.told("apply_patch", both.clone()).await;
    assert_eq!(told, "M a\nD large");
    assert_eq!(stage.text("a").unwrap(), "1\n");
    assert!(!stage.directory.path().join("large").exists());

    let (stage, _) = Stage::with_fault(Fault::CutBehind(2));
    put(&stage);
    stage.put("large", &large);
    let refused = stage.refused("apply_patch", both).await;
    let says = "; files may not be as they were";
    assert!(refused.ends_with(says), "{refused}");
}

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
