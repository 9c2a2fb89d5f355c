//! `edit`, with editors that are scripts.

use std::{fs, os::unix::fs::PermissionsExt};

use super::{Scene, names, write};
use crate::cast::{Ended, OutputSoon};

/// Edits a file with a script that finds it as `$1`, and keeps drafts in a directory of ours.
async fn edit(scene: &Scene, name: &str, script: &str) -> Ended {
    let file = scene.there(name);
    let drafts = scene.person.home().join("drafts");
    fs::create_dir_all(&drafts).unwrap();
    let editor = scene.person.home().join("editor");
    fs::write(&editor, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = scene
        .person
        .command(scene.line("edit", &[file.to_str().unwrap()]));
    command
        .env("EDITOR", &editor)
        .env("TMPDIR", &drafts)
        .env_remove("VISUAL");
    command.output_soon().await
}

fn drafts(scene: &Scene) -> Vec<String> {
    names(&scene.person.home().join("drafts"))
}

#[tokio::test]
async fn an_edit_replaces_the_file_and_keeps_its_mode() {
    let scene = Scene::new().await;
    write(&scene.there("notes.md"), "old\n");
    fs::set_permissions(scene.there("notes.md"), fs::Permissions::from_mode(0o600)).unwrap();
    let private = "test \"$(stat -c %a \"$(dirname \"$1\")\")\" = 700";
    let script =
        format!("{private} && test \"$(basename \"$1\")\" = notes.md && echo new >>\"$1\"");
    edit(&scene, "notes.md", &script).await.well();
    assert_eq!(fs::read(scene.there("notes.md")).unwrap(), b"old\nnew\n");
    let mode = fs::metadata(scene.there("notes.md")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    assert_eq!(names(scene.there.path()), ["notes.md"]);
    assert_eq!(drafts(&scene), [""; 0]);
}

#[tokio::test]
async fn a_file_that_is_not_there_is_made_and_one_left_alone_is_left_alone() {
    let scene = Scene::new().await;
    edit(&scene, "new", "echo first >\"$1\"").await.well();
    assert_eq!(fs::read(scene.there("new")).unwrap(), b"first\n");
    let before = fs::metadata(scene.there("new"))
        .unwrap()
        .modified()
        .unwrap();
    let ended = edit(&scene, "new", "touch \"$1\"").await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("is unchanged"), "{ended:?}");
    let after = fs::metadata(scene.there("new"))
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(before, after);
    edit(&scene, "never", "true").await;
    assert_eq!(names(scene.there.path()), ["new"]);
    assert_eq!(drafts(&scene), [""; 0]);
}

#[tokio::test]
async fn a_file_that_changed_there_is_left_alone_and_the_edit_is_kept_here() {
    let scene = Scene::new().await;
    write(&scene.there("shared"), "old");
    let theirs = scene.there("shared");
    let script = format!("printf mine >\"$1\"; printf new >'{}'", theirs.display());
    let ended = edit(&scene, "shared", &script).await;
    ended.failed(
        1,
        &[
            "was changed there meanwhile",
            "are kept in",
            "exec-server cp",
        ],
    );
    assert_eq!(fs::read(theirs).unwrap(), b"new");
    let kept = drafts(&scene);
    assert_eq!(kept.len(), 1, "{kept:?}");
    let kept = scene
        .person
        .home()
        .join("drafts")
        .join(&kept[0])
        .join("shared");
    assert_eq!(fs::read(&kept).unwrap(), b"mine");
    assert!(ended.stderr.contains(kept.to_str().unwrap()), "{ended:?}");
}

#[tokio::test]
async fn an_editor_that_fails_changes_nothing() {
    let scene = Scene::new().await;
    write(&scene.there("file"), "old");
    edit(&scene, "file", "exit 3")
        .await
        .failed(1, &["the editor failed", "EDITOR"]);
    assert_eq!(drafts(&scene), [""; 0]);
    edit(&scene, "file", "echo half >\"$1\"; exit 3")
        .await
        .failed(1, &["the editor failed", "are kept in"]);
    assert_eq!(fs::read(scene.there("file")).unwrap(), b"old");
    edit(&scene, "", "true")
        .await
        .failed(1, &["is a directory"]);
}
