//! Paths with `followSymlinks: false`.

use std::{fs, path::Path};

use bytes::Bytes;
use exec_env::filesystem::FileFuture;
use exec_wire::fs::{CreateDirectory, GetMetadata, ReadFile, RemovePath, WriteFile};

use crate::{
    bounded_wait::{done, host_fails, invalid, invalid_or_host_fails, not_found},
    request::{create, metadata, read, remove, write},
    scratch_dir::ScratchDir,
    subject::Subject,
};

fn strict_read(path: &Path) -> ReadFile {
    ReadFile {
        follow_symlinks: Some(false),
        ..read(path)
    }
}

fn strict_write(path: &Path) -> WriteFile {
    WriteFile {
        follow_symlinks: Some(false),
        ..write(path)
    }
}

fn strict_create(path: &Path) -> CreateDirectory {
    CreateDirectory {
        follow_symlinks: Some(false),
        ..create(path)
    }
}

fn strict_metadata(path: &Path) -> GetMetadata {
    GetMetadata {
        follow_symlinks: Some(false),
        ..metadata(path)
    }
}

fn strict_remove(path: &Path) -> RemovePath {
    RemovePath {
        follow_symlinks: Some(false),
        recursive: Some(false),
        ..remove(path)
    }
}

fn put(subject: &Subject, write: WriteFile) -> FileFuture<()> {
    subject.files.write_file(write, Bytes::from_static(b"new"))
}

pub async fn nofollow_accepts_paths_without_symlinks(subject: &Subject) {
    let scratch = ScratchDir::new();
    let files = &subject.files;
    let directory = scratch.path("a/b");
    done(files.create_directory(strict_create(&directory))).await;
    done(files.create_directory(strict_create(&directory))).await;
    let file = directory.join("file");
    done(put(subject, strict_write(&file))).await;
    fs::write(&file, "a longer content").unwrap();
    done(put(subject, strict_write(&file))).await;
    assert_eq!(done(files.read_file(strict_read(&file))).await, "new");
    let told = done(files.metadata(strict_metadata(&file))).await;
    assert_eq!((told.is_file, told.is_symlink, told.size), (true, false, 3));
    done(files.remove(strict_remove(&file))).await;
    done(files.remove(strict_remove(&directory))).await;
    assert!(!directory.exists());
}

pub async fn nofollow_rejects_a_final_symlink(subject: &Subject) {
    let scratch = ScratchDir::new();
    let files = &subject.files;
    let file = scratch.file("file", "old");
    for link in [
        scratch.link("link", "file"),
        scratch.link("dangling", "none"),
    ] {
        host_fails(files.read_file(strict_read(&link))).await;
        host_fails(put(subject, strict_write(&link))).await;
        invalid(files.metadata(strict_metadata(&link))).await;
        invalid(files.remove(strict_remove(&link))).await;
        assert!(link.is_symlink());
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "old");
    assert!(!scratch.path("none").exists());
}

pub async fn nofollow_rejects_a_symlink_in_a_parent(subject: &Subject) {
    let scratch = ScratchDir::new();
    let files = &subject.files;
    let file = scratch.file("directory/file", "old");
    scratch.link("way", "directory");
    let path = scratch.path("way/file");
    host_fails(files.read_file(strict_read(&path))).await;
    host_fails(put(subject, strict_write(&path))).await;
    host_fails(files.metadata(strict_metadata(&path))).await;
    host_fails(files.remove(strict_remove(&path))).await;
    for recursive in [true, false] {
        let request = CreateDirectory {
            recursive: Some(recursive),
            ..strict_create(&scratch.path("way/new"))
        };
        host_fails(files.create_directory(request)).await;
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "old");
    assert!(!scratch.path("directory/new").exists());
}

pub async fn nofollow_reports_missing_paths_as_missing(subject: &Subject) {
    let scratch = ScratchDir::new();
    let files = &subject.files;
    for path in [scratch.path("none"), scratch.path("no/such")] {
        not_found(files.read_file(strict_read(&path))).await;
        not_found(files.metadata(strict_metadata(&path))).await;
        done(files.remove(strict_remove(&path))).await;
        let request = RemovePath {
            force: Some(false),
            ..strict_remove(&path)
        };
        not_found(files.remove(request)).await;
    }
    not_found(put(subject, strict_write(&scratch.path("no/such")))).await;
}

pub async fn nofollow_opens_only_regular_files(subject: &Subject) {
    let scratch = ScratchDir::new();
    let files = &subject.files;
    let pipe = scratch.fifo("pipe");
    invalid(files.read_file(strict_read(&pipe))).await;
    invalid(files.read_file(strict_read(scratch.root()))).await;
    invalid_or_host_fails(put(subject, strict_write(&pipe))).await;
    invalid_or_host_fails(put(subject, strict_write(scratch.root()))).await;
}

pub async fn nofollow_rejects_recursive_remove(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("directory/file", "content");
    for recursive in [None, Some(true)] {
        let request = RemovePath {
            recursive,
            ..strict_remove(&scratch.path("directory"))
        };
        host_fails(subject.files.remove(request)).await;
    }
    assert!(path.exists());
}
