//! `fs/rename`.

use std::{fs, path::Path};

use exec_env::filesystem::FileFuture;
use exec_wire::fs::RenamePath;

use crate::{
    bounded_wait::{done, host_fails, invalid, not_found, unknown},
    difference::Difference,
    request::rename,
    scratch_dir::{ScratchDir, names},
    subject::Subject,
};

/// Asserts that `fs/rename` is refused and returns true if the subject does not support it.
async fn assert_unsupported(subject: &Subject) -> bool {
    let assert_unsupported = subject.differs(Difference::NoRename);
    if assert_unsupported {
        let scratch = ScratchDir::new();
        let (one, two) = (scratch.file("one", ""), scratch.path("two"));
        unknown(subject.files.rename(rename(&one, &two))).await;
        assert!(one.exists() && !two.exists());
    }
    assert_unsupported
}

/// Renames with `replace`.
fn replace(subject: &Subject, source: &Path, destination: &Path) -> FileFuture<()> {
    subject.files.rename(RenamePath {
        overwrite: true,
        ..rename(source, destination)
    })
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

pub async fn rename_works_for_every_file_type(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.directory("elsewhere");
    let file = scratch.file("file", "content");
    let moved = scratch.path("elsewhere/moved");
    done(subject.files.rename(rename(&file, &moved))).await;
    assert!(!file.exists());
    assert_eq!(text(&moved), "content");
    let directory = scratch.path("elsewhere");
    done(
        subject
            .files
            .rename(rename(&directory, &scratch.path("here"))),
    )
    .await;
    assert_eq!(text(scratch.path("here/moved")), "content");
    let link = scratch.link("link", "here/moved");
    done(
        subject
            .files
            .rename(rename(&link, &scratch.path("here/link"))),
    )
    .await;
    let target = fs::read_link(scratch.path("here/link"));
    assert_eq!(target.unwrap(), Path::new("here/moved"));
    assert_eq!(names(scratch.root()), ["here"]);
}

pub async fn rename_does_not_replace_by_default(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let source = scratch.file("source", "source");
    let taken = [
        scratch.file("file", "taken"),
        scratch.directory("directory"),
        scratch.link("dangling", "none"),
        source.clone(),
    ];
    for destination in taken {
        let text = host_fails(subject.files.rename(rename(&source, &destination))).await;
        assert!(text.contains(source.to_str().unwrap()), "{text}");
    }
    assert_eq!(text(&source), "source");
    assert_eq!(text(scratch.path("file")), "taken");
    let all = ["dangling", "directory", "file", "source"];
    assert_eq!(names(scratch.root()), all);
}

pub async fn rename_replaces_on_request(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let source = scratch.file("source", "source");
    let taken = scratch.file("taken", "taken");
    done(replace(subject, &source, &taken)).await;
    assert_eq!(text(&taken), "source");
    let (directory, empty) = (scratch.directory("directory"), scratch.directory("empty"));
    scratch.file("directory/file", "");
    done(replace(subject, &directory, &empty)).await;
    assert_eq!(names(scratch.root()), ["empty", "taken"]);
    done(replace(subject, &taken, &scratch.path("free"))).await;
    assert_eq!(names(scratch.root()), ["empty", "free"]);
}

pub async fn rename_keeps_a_target_it_cannot_replace(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let file = scratch.file("file", "file");
    scratch.file("full/inside", "inside");
    let (full, empty) = (scratch.path("full"), scratch.directory("empty"));
    host_fails(replace(subject, &empty, &full)).await;
    host_fails(replace(subject, &file, &full)).await;
    host_fails(replace(subject, &full, &file)).await;
    assert_eq!(text(full.join("inside")), "inside");
    assert_eq!(text(&file), "file");
}

pub async fn rename_needs_a_source_and_a_target_directory(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let (file, none) = (scratch.file("file", "content"), scratch.path("none"));
    for overwrite in [false, true] {
        let request = |source: &Path, destination: &Path| RenamePath {
            overwrite,
            ..rename(source, destination)
        };
        let text = not_found(subject.files.rename(request(&none, &scratch.path("new")))).await;
        assert!(text.contains(none.to_str().unwrap()), "{text}");
        not_found(subject.files.rename(request(&file, &none.join("file")))).await;
    }
    assert_eq!(text(&file), "content");
}

pub async fn directory_is_not_renamed_into_itself(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.file("directory/file", "");
    let directory = scratch.path("directory");
    let inside = directory.join("inside");
    invalid(subject.files.rename(rename(&directory, &inside))).await;
    invalid(replace(subject, &directory, &inside)).await;
    assert_eq!(names(&directory), ["file"]);
}
