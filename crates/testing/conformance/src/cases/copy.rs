//! `fs/copy` of files, symlinks and trees.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    bounded_wait::within,
    bounded_wait::{done, host_fails, invalid, not_found},
    difference::Difference,
    pattern,
    request::{copy, copy_tree},
    scratch_dir::{ScratchDir, mode, names, set_mode},
    subject::Subject,
};

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

pub async fn copy_preserves_permission_bits(subject: &Subject) {
    let scratch = ScratchDir::new();
    let content = pattern::bytes(3 << 20);
    let source = scratch.file("source", &content);
    set_mode(&source, 0o751);
    let destination = scratch.path("destination");
    done(subject.files.copy(copy(&source, &destination))).await;
    pattern::assert_same(&fs::read(&destination).unwrap(), &content);
    assert_eq!(mode(&destination), 0o751);
    // Overwrites a longer file with stricter permissions.
    let other = scratch.file("other", "other");
    set_mode(&other, 0o600);
    done(subject.files.copy(copy_tree(&other, &destination))).await;
    assert_eq!(
        (text(&destination).as_str(), mode(&destination)),
        ("other", 0o600)
    );
}

pub async fn copy_onto_itself_is_invalid_and_keeps_the_content(subject: &Subject) {
    let scratch = ScratchDir::new();
    let source = scratch.file("source", "content");
    scratch.directory("directory");
    let itself = [
        source.clone(),
        scratch.link("link", "source"),
        scratch.link("directory/link", "../source"),
    ];
    if subject.differs(Difference::CopiesEmptyThemselves) {
        for destination in itself {
            fs::write(&source, "content").unwrap();
            done(subject.files.copy(copy(&source, &destination))).await;
            assert_eq!(text(&source), "");
        }
        return;
    }
    for destination in itself {
        invalid(subject.files.copy(copy(&source, &destination))).await;
        assert_eq!(text(&source), "content");
    }
    let twin = scratch.path("twin");
    fs::hard_link(&source, &twin).unwrap();
    let copied = subject.files.copy(copy(&source, &twin));
    drop(within("response arrives", copied).await);
    assert_eq!(text(&source), "content");
    let directory = scratch.path("directory");
    invalid(subject.files.copy(copy_tree(&directory, &directory))).await;
}

pub async fn symlink_is_copied_as_a_symlink(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("kept/file", "content");
    scratch.directory("directory");
    for target in ["kept/file", "kept", "none"] {
        let source = scratch.link("source", target);
        let destination = scratch.path("directory/copy");
        done(subject.files.copy(copy(&source, &destination))).await;
        assert_eq!(fs::read_link(&destination).unwrap(), Path::new(target));
        host_fails(subject.files.copy(copy(&source, &destination))).await;
        fs::remove_file(source).unwrap();
        fs::remove_file(destination).unwrap();
    }
}

pub async fn directory_is_copied_only_with_recursive(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("source/file", "");
    let (source, destination) = (scratch.path("source"), scratch.path("destination"));
    invalid(subject.files.copy(copy(&source, &destination))).await;
    assert!(!destination.exists());
}

pub async fn directory_copy_merges_into_an_existing_directory(subject: &Subject) {
    let scratch = ScratchDir::new();
    for name in ["both", "a/b/deep", "a/mine"] {
        scratch.file(format!("source/{name}"), "mine");
    }
    for name in ["both", "a/yours", "other"] {
        scratch.file(format!("destination/{name}"), "yours");
    }
    set_mode(&scratch.path("source/a/mine"), 0o751);
    scratch.directory("source/empty");
    scratch.link("source/dangling", "none");
    scratch.link("source/way", "a");
    scratch.fifo("source/pipe");
    let (source, destination) = (scratch.path("source"), scratch.path("destination"));
    done(subject.files.copy(copy_tree(&source, &destination))).await;
    let expected = ["a", "both", "dangling", "empty", "other", "way"];
    assert_eq!(names(&destination), expected);
    assert_eq!(names(&destination.join("a")), ["b", "mine", "yours"]);
    assert_eq!(names(&destination.join("empty")), [""; 0]);
    for (name, content) in [
        ("both", "mine"),
        ("a/b/deep", "mine"),
        ("a/mine", "mine"),
        ("a/yours", "yours"),
        ("other", "yours"),
    ] {
        assert_eq!(text(destination.join(name)), content, "{name}");
    }
    assert_eq!(mode(&destination.join("a/mine")), 0o751);
    let target = |name: &str| fs::read_link(destination.join(name)).unwrap();
    assert_eq!(
        (target("dangling"), target("way")),
        ("none".into(), "a".into())
    );
}

pub async fn directory_copy_creates_parents_of_the_target(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("source/file", "content");
    let destination = scratch.path("a/b/destination");
    let request = copy_tree(&scratch.path("source"), &destination);
    done(subject.files.copy(request)).await;
    assert_eq!(text(destination.join("file")), "content");
}

pub async fn directory_is_not_copied_into_itself(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("source/inside/file", "content");
    scratch.link("way", "source/inside");
    let source = scratch.path("source");
    let inside: [PathBuf; 4] = [
        source.join("new"),
        source.join("inside"),
        source.join("inside/new"),
        scratch.path("way/new"),
    ];
    for destination in inside {
        invalid(subject.files.copy(copy_tree(&source, &destination))).await;
    }
    assert_eq!(names(&source), ["inside"]);
    assert_eq!(names(&source.join("inside")), ["file"]);
    // A sibling with the same name prefix is not inside the source.
    let beside = scratch.path("source2");
    done(subject.files.copy(copy_tree(&source, &beside))).await;
    assert_eq!(text(beside.join("inside/file")), "content");
}

pub async fn fifo_is_not_copied(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (pipe, destination) = (scratch.fifo("pipe"), scratch.path("destination"));
    invalid(subject.files.copy(copy(&pipe, &destination))).await;
    invalid(subject.files.copy(copy_tree(&pipe, &destination))).await;
    assert!(!destination.exists());
}

pub async fn copy_with_missing_or_mismatched_ends_fails(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (file, none) = (scratch.file("file", "content"), scratch.path("none"));
    let text = not_found(subject.files.copy(copy(&none, &file))).await;
    subject.assert_names(&text, none.to_str().unwrap());
    not_found(subject.files.copy(copy(&file, &none.join("file")))).await;
    let directory = scratch.directory("directory");
    host_fails(subject.files.copy(copy(&file, &directory))).await;
    host_fails(subject.files.copy(copy_tree(&directory, &file))).await;
    assert_eq!(fs::read_to_string(file).unwrap(), "content");
}
