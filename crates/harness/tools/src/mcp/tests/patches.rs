//! Patches of several files: all or nothing.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use serde_json::json;

use super::stage::Stage;

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
