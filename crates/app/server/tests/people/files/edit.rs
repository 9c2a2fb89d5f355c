//! Tests of `edit`, with scripts as editors.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::{
    files::{CopyFixture, names, write},
    test_user::{CommandResult, OutputSoon},
};

/// Edits a file with a script that receives it as `$1`, with drafts in a directory of the test.
async fn edit(fixture: &CopyFixture, name: &str, script: &str) -> CommandResult {
    let file = fixture.remote_path(name);
    let drafts = fixture.user.home().join("drafts");
    fs::create_dir_all(&drafts).unwrap();
    let editor = fixture.user.home().join("editor");
    fs::write(&editor, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = fixture
        .user
        .command(fixture.line("edit", &[file.to_str().unwrap()]));
    command
        .env("EDITOR", &editor)
        .env("TMPDIR", &drafts)
        .env_remove("VISUAL");
    command.output_soon().await
}

fn drafts(fixture: &CopyFixture) -> Vec<String> {
    names(&fixture.user.home().join("drafts"))
}

#[tokio::test]
async fn edit_replaces_the_file_and_keeps_its_mode() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("notes.md"), "old\n");
    fs::set_permissions(
        fixture.remote_path("notes.md"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    let private = "test \"$(stat -c %a \"$(dirname \"$1\")\")\" = 700";
    let script =
        format!("{private} && test \"$(basename \"$1\")\" = notes.md && echo new >>\"$1\"");
    edit(&fixture, "notes.md", &script).await.expect_success();
    assert_eq!(
        fs::read(fixture.remote_path("notes.md")).unwrap(),
        b"old\nnew\n"
    );
    let mode = fs::metadata(fixture.remote_path("notes.md"))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    assert_eq!(names(fixture.remote_dir.path()), ["notes.md"]);
    assert_eq!(drafts(&fixture), [""; 0]);
}

#[tokio::test]
async fn missing_file_is_created_and_unchanged_file_is_not_written() {
    let fixture = CopyFixture::new().await;
    edit(&fixture, "new", "echo first >\"$1\"")
        .await
        .expect_success();
    assert_eq!(fs::read(fixture.remote_path("new")).unwrap(), b"first\n");
    let before = fs::metadata(fixture.remote_path("new"))
        .unwrap()
        .modified()
        .unwrap();
    let ended = edit(&fixture, "new", "touch \"$1\"").await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("is unchanged"), "{ended:?}");
    let after = fs::metadata(fixture.remote_path("new"))
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(before, after);
    edit(&fixture, "never", "true").await;
    assert_eq!(names(fixture.remote_dir.path()), ["new"]);
    assert_eq!(drafts(&fixture), [""; 0]);
}

#[tokio::test]
async fn concurrently_changed_file_is_kept_and_the_edit_saved_locally() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("shared"), "old");
    let remote_file = fixture.remote_path("shared");
    let script = format!(
        "printf mine >\"$1\"; printf new >'{}'",
        remote_file.display()
    );
    let ended = edit(&fixture, "shared", &script).await;
    ended.failed(
        1,
        &[
            "was changed there meanwhile",
            "are kept in",
            "exec-server cp",
        ],
    );
    assert_eq!(fs::read(remote_file).unwrap(), b"new");
    let draft = drafts(&fixture);
    assert_eq!(draft.len(), 1, "{draft:?}");
    let draft = fixture
        .user
        .home()
        .join("drafts")
        .join(&draft[0])
        .join("shared");
    assert_eq!(fs::read(&draft).unwrap(), b"mine");
    assert!(ended.stderr.contains(draft.to_str().unwrap()), "{ended:?}");
}

#[tokio::test]
async fn failed_editor_changes_nothing() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("file"), "old");
    edit(&fixture, "file", "exit 3")
        .await
        .failed(1, &["the editor failed", "EDITOR"]);
    assert_eq!(drafts(&fixture), [""; 0]);
    edit(&fixture, "file", "echo half >\"$1\"; exit 3")
        .await
        .failed(1, &["the editor failed", "are kept in"]);
    assert_eq!(fs::read(fixture.remote_path("file")).unwrap(), b"old");
    edit(&fixture, "", "true")
        .await
        .failed(1, &["is a directory"]);
}
