//! What is told of a path, and where it leads.

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
    scratch_dir::Scratch,
    subject::{Subject, uri},
};

async fn told(subject: &Subject, path: &Path) -> FileMetadata {
    done(subject.files.metadata(metadata(path))).await
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

pub async fn a_file_tells_its_size_and_its_times(subject: &Subject) {
    let scratch = Scratch::new();
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
        // Older servers do not tell it.
        mode: found.mode,
    };
    assert_eq!(found, expected);
}

pub async fn a_directory_is_told_as_one(subject: &Subject) {
    let scratch = Scratch::new();
    let found = told(subject, scratch.root()).await;
    let kinds = (found.is_directory, found.is_file, found.is_symlink);
    assert_eq!(kinds, (true, false, false));
    let modified = fs::metadata(scratch.root()).unwrap().modified();
    assert_eq!(found.modified_at_ms, millis(modified.unwrap()));
}

pub async fn a_pipe_is_neither_file_nor_directory(subject: &Subject) {
    let scratch = Scratch::new();
    let found = told(subject, &scratch.fifo("pipe")).await;
    let kinds = (found.is_directory, found.is_file, found.is_symlink);
    assert_eq!(kinds, (false, false, false));
}

pub async fn a_link_is_followed_and_told_as_one(subject: &Subject) {
    let scratch = Scratch::new();
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
    // A link on the way is none of the path's own.
    scratch.file("directory/inside", "");
    assert!(!told(subject, &scratch.path("way/inside")).await.is_symlink);
}

pub async fn what_is_missing_tells_nothing(subject: &Subject) {
    let scratch = Scratch::new();
    let path = scratch.path("none");
    let text = not_found(subject.files.metadata(metadata(&path))).await;
    subject.assert_names(&text, path.to_str().unwrap());
    let dangling = scratch.link("dangling", "none");
    not_found(subject.files.metadata(metadata(&dangling))).await;
    let turn = scratch.link("turn", "turn");
    host_fails(subject.files.metadata(metadata(&turn))).await;
}

pub async fn a_path_is_resolved_to_where_it_leads(subject: &Subject) {
    let scratch = Scratch::new();
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

pub async fn what_leads_nowhere_is_not_resolved(subject: &Subject) {
    let scratch = Scratch::new();
    let path = scratch.path("none");
    not_found(subject.files.canonicalize(canonicalize(&path))).await;
    let dangling = scratch.link("dangling", "none");
    not_found(subject.files.canonicalize(canonicalize(&dangling))).await;
    let turn = scratch.link("turn", "turn");
    host_fails(subject.files.canonicalize(canonicalize(&turn))).await;
    let below = scratch.file("file", "").join("below");
    host_fails(subject.files.canonicalize(canonicalize(&below))).await;
}
