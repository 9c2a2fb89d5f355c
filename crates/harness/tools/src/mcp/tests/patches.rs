//! Patches of several files: atomicity, rollback after lost connections, and concurrency.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use futures_util::{future::join_all, poll};
use serde_json::{Value, json};

use super::{McpFixture, faulty_files::FileFault};

fn patch(body: &str) -> serde_json::Value {
    json!({"patch": format!("*** Begin Patch\n{body}*** End Patch\n")})
}

#[tokio::test]
async fn patch_adds_updates_moves_and_deletes_files() {
    let fixture = McpFixture::new();
    fixture.write_file("old.txt", "gone\n");
    fixture.write_file("a.txt", "one\ntwo\nthree\n");
    fixture.write_file("m.txt", "moved\n");
    let answer = fixture.call_ok(
        "apply_patch",
        patch(
            "*** Add File: new/n.txt\n+hello\n*** Delete File: old.txt\n*** Update File: a.txt\n@@\n one\n\
             -two\n+2\n*** Update File: m.txt\n*** Move to: dir/m2.txt\n@@\n-moved\n+there\n",
        ),
    );
    assert_eq!(
        answer.await,
        "A new/n.txt\nD old.txt\nM a.txt\nR m.txt -> dir/m2.txt"
    );
    assert_eq!(fixture.read_file("new/n.txt").unwrap(), "hello\n");
    assert_eq!(fixture.read_file("old.txt"), None);
    assert_eq!(fixture.read_file("a.txt").unwrap(), "one\n2\nthree\n");
    assert_eq!(fixture.read_file("m.txt"), None);
    assert_eq!(fixture.read_file("dir/m2.txt").unwrap(), "there\n");
}

#[tokio::test]
async fn failed_hunk_prevents_all_writes() {
    let fixture = McpFixture::new();
    fixture.write_file("a.txt", "one\n");
    fixture.write_file("b.txt", "two\n");
    let error = fixture.call_err(
        "apply_patch",
        patch("*** Update File: a.txt\n@@\n-one\n+1\n*** Update File: b.txt\n@@\n-three\n+3\n"),
    );
    let error = error.await;
    assert!(
        error
            .starts_with("`b.txt`: hunk 1 (patch line 7): these lines are not in the file:\nthree"),
        "{error}"
    );
    assert_eq!(fixture.read_file("a.txt").unwrap(), "one\n");
}

#[tokio::test]
async fn existing_and_missing_files_are_named_in_errors() {
    let fixture = McpFixture::new();
    fixture.write_file("a.txt", "one\n");
    for (body, expected) in [
        ("*** Add File: a.txt\n+x\n", "`a.txt` exists already"),
        (
            "*** Update File: a.txt\n*** Move to: a.txt\n@@\n-one\n+1\n",
            "`a.txt` exists already",
        ),
        ("*** Delete File: none.txt\n", "none.txt"),
        (
            "*** Delete File: a.txt\n*** Delete File: a.txt\n",
            "`a.txt` was already deleted by this patch",
        ),
    ] {
        let error = fixture.call_err("apply_patch", patch(body)).await;
        assert!(error.contains(expected), "{error}");
        assert_eq!(fixture.read_file("a.txt").unwrap(), "one\n");
    }
    // Later operations see the effect of earlier ones.
    let replace = patch("*** Delete File: a.txt\n*** Add File: a.txt\n+new\n");
    fixture.call_ok("apply_patch", replace).await;
    assert_eq!(fixture.read_file("a.txt").unwrap(), "new\n");
}

#[tokio::test]
async fn failed_write_rolls_back_earlier_ones() {
    let fixture = McpFixture::new();
    fixture.write_file("a.txt", "one\n");
    // The name is too long for any file system, which only the write detects.
    let long = "z".repeat(250);
    let error = fixture.call_err(
        "apply_patch",
        patch(&format!(
            "*** Update File: a.txt\n@@\n-one\n+1\n*** Add File: {long}/{long}{long}\n+x\n"
        )),
    );
    let error = error.await;
    assert!(error.ends_with("; no file was changed"), "{error}");
    assert_eq!(fixture.read_file("a.txt").unwrap(), "one\n");
}

#[tokio::test]
async fn moved_file_keeps_its_mode() {
    let fixture = McpFixture::new();
    let path = |name: &str| fixture.directory.path().join(name);
    let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
    for (name, mode) in [("run.sh", 0o755), ("secret", 0o600)] {
        fixture.write_file(name, "one\n");
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let moves = patch(
        "*** Update File: run.sh\n*** Move to: bin/run.sh\n@@\n-one\n+1\n*** Update File: secret\n\
         *** Move to: hidden\n",
    );
    fixture.call_ok("apply_patch", moves).await;
    assert_eq!((mode("bin/run.sh"), mode("hidden")), (0o755, 0o600));
}

#[tokio::test]
async fn file_under_two_names_is_rejected() {
    let fixture = McpFixture::new();
    fixture.write_file("a.txt", "one\ntwo\n");
    std::os::unix::fs::symlink("a.txt", fixture.directory.path().join("b.txt")).unwrap();
    let error = fixture.call_err(
        "apply_patch",
        patch("*** Update File: a.txt\n@@\n-one\n+1\n*** Update File: b.txt\n@@\n-two\n+2\n"),
    );
    let error = error.await;
    assert!(error.contains("are the same file"), "{error}");
    assert_eq!(fixture.read_file("a.txt").unwrap(), "one\ntwo\n");
    // One name is fine, and the link remains.
    let one = patch("*** Update File: b.txt\n@@\n-two\n+2\n");
    fixture.call_ok("apply_patch", one).await;
    assert_eq!(fixture.read_file("a.txt").unwrap(), "one\n2\n");
}

#[tokio::test]
async fn dropped_call_still_writes_the_whole_patch() {
    let fixture = McpFixture::new();
    let files: String = (100..200)
        .map(|number| format!("*** Add File: f{number}\n+x\n"))
        .collect();
    let exists = async |name: &str| {
        while fixture.read_file(name).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = exists("f100") => {}
        answer = fixture.call_ok("apply_patch", patch(&files)) => panic!("not dropped: {answer}"),
    }
    let all = tokio::time::timeout(Duration::from_secs(20), exists("f199"));
    all.await.unwrap();
}

#[tokio::test]
async fn binary_files_can_be_deleted_and_moved() {
    let fixture = McpFixture::new();
    fixture.write_file("binary", b"\xff\0");
    fixture.write_file("moved", b"\xfe\0");
    fixture.write_file("large", vec![b'x'; (16 << 20) + 1]);
    let answer = fixture.call_ok(
        "apply_patch",
        patch(
            "*** Delete File: binary\n*** Update File: moved\n*** Move to: there\n*** Delete File: large\n",
        ),
    );
    assert_eq!(answer.await, "D binary\nR moved -> there\nD large");
    let path = |name: &str| fixture.directory.path().join(name);
    assert!(!path("binary").exists() && !path("large").exists() && !path("moved").exists());
    assert_eq!(fs::read(path("there")).unwrap(), b"\xfe\0");
}

#[tokio::test]
async fn patch_deletes_at_most_one_file_too_large_to_restore() {
    let fixture = McpFixture::new();
    fixture.write_file("a", b"\xff\0");
    for name in ["large", "large2"] {
        fixture.write_file(name, vec![b'x'; (16 << 20) + 1]);
    }
    let both = patch("*** Delete File: a\n*** Delete File: large\n*** Delete File: large2\n");
    let error = fixture.call_err("apply_patch", both).await;
    assert!(error.contains("`large2`"), "{error}");
    let path = |name: &str| fixture.directory.path().join(name);
    assert!(path("a").exists() && path("large").exists());
    let moved = patch("*** Update File: large\n*** Move to: there\n");
    let error = fixture.call_err("apply_patch", moved).await;
    assert!(error.contains("too large to be moved"), "{error}");
}

#[tokio::test]
async fn new_file_under_two_names_is_rejected() {
    let fixture = McpFixture::new();
    fixture.write_file("d/old", "x\n");
    std::os::unix::fs::symlink("d", fixture.directory.path().join("dl")).unwrap();
    for (one, other) in [("d/new", "dl/new"), ("d/deep/new", "dl/deep/new")] {
        let error = fixture.call_err(
            "apply_patch",
            patch(&format!(
                "*** Add File: {one}\n+1\n*** Add File: {other}\n+2\n"
            )),
        );
        let error = error.await;
        assert!(error.contains("are the same file"), "{error}");
        assert_eq!(fixture.read_file(one), None);
    }
    let error = fixture.call_err(
        "apply_patch",
        patch("*** Add File: d/new\n+1\n*** Update File: d/old\n*** Move to: dl/new\n"),
    );
    assert!(error.await.contains("are the same file"));
}

#[tokio::test]
async fn adding_an_existing_file_suggests_an_update() {
    let fixture = McpFixture::new();
    fixture.write_file("a.txt", "one\n");
    let error = fixture.call_err("apply_patch", patch("*** Add File: a.txt\n+x\n"));
    let error = error.await;
    assert!(error.contains("use `*** Update File:`"), "{error}");
}

#[tokio::test]
async fn rolled_back_patch_leaves_no_directories() {
    let fixture = McpFixture::new();
    fixture.write_file("old/a.txt", "one\n");
    let long = "z".repeat(250);
    let error = fixture.call_err(
        "apply_patch",
        patch(&format!(
            "*** Add File: fresh/deep/f\n+x\n*** Add File: old/fresh/f\n+x\n*** Add File: {long}/{long}{long}\n+x\n"
        )),
    );
    let error = error.await;
    assert!(error.ends_with("; no file was changed"), "{error}");
    assert!(!fixture.directory.path().join("fresh").exists());
    assert!(!fixture.directory.path().join("old/fresh").exists());
    assert!(!fixture.directory.path().join(long).exists());
    assert!(fixture.directory.path().join("old").exists());
}

/// Changes of `b` that follow one of `a`.
const SECOND: [&str; 3] = [
    "*** Update File: b\n@@\n-two\n+2\n",
    "*** Delete File: b\n",
    "*** Add File: dir/new\n+x\n",
];

const FIRST: &str = "*** Update File: a\n@@\n-one\n+1\n";

fn write_both(fixture: &McpFixture) {
    fixture.write_file("a", "one\n");
    fixture.write_file("b", "two\n");
}

#[tokio::test]
async fn unacknowledged_change_is_rolled_back() {
    for second in SECOND {
        let (fixture, _) = McpFixture::with_fault(FileFault::LostResponse(2));
        write_both(&fixture);
        let error = fixture
            .call_err("apply_patch", patch(&format!("{FIRST}{second}")))
            .await;
        assert_eq!(fixture.read_file("a").unwrap(), "one\n", "{second}");
        assert_eq!(fixture.read_file("b").as_deref(), Some("two\n"), "{second}");
        assert!(!fixture.directory.path().join("dir").exists(), "{second}");
        assert!(error.contains("cut on purpose"), "{error}");
        assert!(error.ends_with("; no file was changed"), "{error}");
    }
}

#[tokio::test]
async fn uncertain_rollback_is_reported() {
    for at in [1, 2] {
        for second in SECOND {
            let (fixture, _) = McpFixture::with_fault(FileFault::CutAfter(at));
            write_both(&fixture);
            let error = fixture
                .call_err("apply_patch", patch(&format!("{FIRST}{second}")))
                .await;
            let expected = "; some files may have been changed";
            assert!(error.ends_with(expected), "{error}");
        }
    }
}

#[tokio::test]
async fn file_too_large_to_restore_is_deleted_last() {
    let large = vec![b'x'; (16 << 20) + 1];
    let both = patch(&format!("{FIRST}*** Delete File: large\n"));
    let (fixture, _) = McpFixture::with_fault(FileFault::LostResponse(2));
    write_both(&fixture);
    fixture.write_file("large", &large);
    let answer = fixture.call_ok("apply_patch", both.clone()).await;
    assert_eq!(answer, "M a\nD large");
    assert_eq!(fixture.read_file("a").unwrap(), "1\n");
    assert!(!fixture.directory.path().join("large").exists());

    let (fixture, _) = McpFixture::with_fault(FileFault::CutAfter(2));
    write_both(&fixture);
    fixture.write_file("large", &large);
    let error = fixture.call_err("apply_patch", both).await;
    let expected = "; some files may have been changed";
    assert!(error.ends_with(expected), "{error}");
}

#[tokio::test]
async fn concurrent_edits_of_one_file_are_all_applied() {
    let fixture = McpFixture::new();
    let lines: Vec<String> = (0..10).map(|line| format!("line {line};\n")).collect();
    fixture.write_file("f", lines.concat());
    let edits = (0..10).map(|line| {
        let edit =
            json!({"path": "f", "old": format!("line {line};"), "new": format!("new {line};")});
        fixture.call_ok("edit_file", edit)
    });
    join_all(edits).await;
    assert_eq!(
        fixture.read_file("f").unwrap(),
        lines.concat().replace("line", "new")
    );
}

#[tokio::test]
async fn only_one_of_concurrent_adds_succeeds() {
    let fixture = McpFixture::new();
    let patches = (0..5).map(|number| {
        let patch = format!("*** Begin Patch\n*** Add File: f\n+{number}\n*** End Patch\n");
        fixture.call("apply_patch", json!({"patch": patch}))
    });
    let results = join_all(patches).await;
    let done = |result: &&rmcp::model::CallToolResult| result.is_error == Some(false);
    assert_eq!(results.iter().filter(done).count(), 1);
}

#[tokio::test]
async fn concurrent_patch_and_write_are_serialized() {
    let fixture = McpFixture::new();
    fixture.write_file("f", "one\n");
    let patch =
        "*** Begin Patch\n*** Update File: f\n@@\n-one\n+two\n*** Add File: g\n+x\n*** End Patch\n";
    let patched = fixture.call("apply_patch", json!({"patch": patch}));
    let written = fixture.call_ok("write_file", json!({"path": "f", "content": "three\n"}));
    let (_, _) = tokio::join!(patched, written);
    assert_eq!(
        fixture.read_file("f").unwrap(),
        "three\n",
        "the write came last"
    );
}

/// Cancels a change of `f` during its write, makes another, and returns the content of `f`.
async fn content_after_cancelled_change(first: (&str, Value), second: (&str, Value)) -> String {
    let (fixture, files) = McpFixture::with_fault(FileFault::Blocked(1));
    fixture.write_file("f", "one\ntwo\n");
    tokio::select! {
        biased;
        () = files.wait_until_held() => {}
        answer = fixture.call_ok(first.0, first.1) => panic!("not cancelled: {answer}"),
    }
    let reads = files.reads();
    let second = fixture.call_ok(second.0, second.1);
    tokio::pin!(second);
    assert!(poll!(&mut second).is_pending());
    assert_eq!(files.reads(), reads, "it waits for the edit lock");
    files.open_gate();
    second.await;
    fixture.read_file("f").unwrap()
}

#[tokio::test]
async fn change_waits_for_a_cancelled_write_in_progress() {
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
        assert_eq!(content_after_cancelled_change(first, second).await, both);
    }
}
