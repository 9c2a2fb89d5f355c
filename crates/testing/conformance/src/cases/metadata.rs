//! Metadata and canonicalisation of paths.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use exec_wire::fs::FileMetadata;

use crate::{
    bounded_wait::{done, host_fails, not_found},
    difference::Difference,
    request::{canonicalize, metadata},
    scratch_dir::ScratchDir,
    subject::{Subject, uri},
};

async fn told(subject: &Subject, path: &Path) -> FileMetadata {
    done(subject.files.metadata(metadata(path))).await
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

pub async fn metadata_reports_file_size_and_times(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "twelve bytes");
    let modified = UNIX_EPOCH + Duration::from_millis(1_234_567_890_123);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(modified).unwrap();
    let found = told(subject, &path).await;
    let created = fs::metadata(&path).unwrap().created();
    let created_at_ms = if subject.differs(Difference::NoCreationTime) {
        0
    } else {
        created.map_or(0, millis)
    };
    let expected = FileMetadata {
        is_directory: false,
        is_file: true,
        is_symlink: false,
        size: 12,
        created_at_ms,
        modified_at_ms: 1_234_567_890_123,
        // Older servers do not report it.
        mode: found.mode,
        ..FileMetadata::default()
    };
    assert_eq!(found, expected);
}

pub async fn metadata_identifies_a_directory(subject: &Subject) {
    let scratch = ScratchDir::new();
    let found = told(subject, scratch.root()).await;
    let kinds = (found.is_directory, found.is_file, found.is_symlink);
    assert_eq!(kinds, (true, false, false));
    let modified = fs::metadata(scratch.root()).unwrap().modified();
    assert_eq!(found.modified_at_ms, millis(modified.unwrap()));
}

pub async fn metadata_reports_a_fifo_as_neither_file_nor_directory(subject: &Subject) {
    let scratch = ScratchDir::new();
    let found = told(subject, &scratch.fifo("pipe")).await;
    let kinds = (found.is_directory, found.is_file, found.is_symlink);
    assert_eq!(kinds, (false, false, false));
}

pub async fn metadata_follows_a_symlink_and_reports_it(subject: &Subject) {
    let scratch = ScratchDir::new();
    let file = scratch.file("file", "content");
    let direct = told(subject, &file).await;
    scratch.link("link", "file");
    let found = told(subject, &scratch.link("again", "link")).await;
    let expected = FileMetadata {
        is_symlink: true,
        ..direct
    };
    assert_eq!(found, expected);
    scratch.directory("directory");
    let found = told(subject, &scratch.link("way", "directory")).await;
    assert!(found.is_directory && found.is_symlink && !found.is_file);
    // A symlink in a parent does not make the path itself a symlink.
    scratch.file("directory/inside", "");
    assert!(!told(subject, &scratch.path("way/inside")).await.is_symlink);
}

pub async fn metadata_of_a_missing_path_is_not_found(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("none");
    let text = not_found(subject.files.metadata(metadata(&path))).await;
    subject.assert_names(&text, path.to_str().unwrap());
    let dangling = scratch.link("dangling", "none");
    not_found(subject.files.metadata(metadata(&dangling))).await;
    let turn = scratch.link("turn", "turn");
    host_fails(subject.files.metadata(metadata(&turn))).await;
}

pub async fn canonicalize_resolves_symlinks(subject: &Subject) {
    let scratch = ScratchDir::new();
    let file = scratch.file("a/b/file", "");
    scratch.link("way", "a");
    scratch.link("a/here", scratch.path("a/b"));
    for path in [file.clone(), scratch.path("way/here/file")] {
        let found = done(subject.files.canonicalize(canonicalize(&path))).await;
        assert_eq!(found, uri(&file));
    }
    let root = done(subject.files.canonicalize(canonicalize(Path::new("/")))).await;
    assert_eq!(root, uri(Path::new("/")));
}

pub async fn canonicalize_of_a_dangling_path_fails(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("none");
    not_found(subject.files.canonicalize(canonicalize(&path))).await;
    let dangling = scratch.link("dangling", "none");
    not_found(subject.files.canonicalize(canonicalize(&dangling))).await;
    let turn = scratch.link("turn", "turn");
    host_fails(subject.files.canonicalize(canonicalize(&turn))).await;
    let below = scratch.file("file", "").join("below");
    host_fails(subject.files.canonicalize(canonicalize(&below))).await;
}
