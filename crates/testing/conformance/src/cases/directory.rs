//! Creating and listing directories.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use exec_wire::{
    fs::{CreateDirectory, DirectoryEntry},
    limits,
};

use crate::{
    bounded_wait::{done, host_fails, not_found},
    request::{create, list},
    scratch_dir::{ScratchDir, mode},
    subject::Subject,
};

fn alone(path: &Path) -> CreateDirectory {
    CreateDirectory {
        recursive: Some(false),
        ..create(path)
    }
}

async fn listed(subject: &Subject, path: &Path) -> Vec<DirectoryEntry> {
    let mut entries = done(subject.files.read_directory(list(path))).await.entries;
    entries.sort();
    entries
}

fn entry(name: &str, is_directory: bool, is_file: bool) -> DirectoryEntry {
    DirectoryEntry {
        file_name: name.to_owned(),
        is_directory,
        is_file,
        ..DirectoryEntry::default()
    }
}

pub async fn create_directory_creates_parents(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("a/b/c");
    done(subject.files.create_directory(create(&path))).await;
    assert!(path.is_dir());
    assert_eq!(mode(&path), mode(&scratch.directory("model")));
    // Creating an existing directory succeeds.
    done(subject.files.create_directory(create(&path))).await;
    let link = scratch.link("link", "a");
    done(subject.files.create_directory(create(&link))).await;
    done(subject.files.create_directory(create(&link.join("b/d")))).await;
    assert!(scratch.path("a/b/d").is_dir());
}

pub async fn create_directory_fails_below_a_file(subject: &Subject) {
    let scratch = ScratchDir::new();
    let file = scratch.file("file", "content");
    host_fails(subject.files.create_directory(create(&file))).await;
    host_fails(subject.files.create_directory(alone(&file))).await;
    host_fails(subject.files.create_directory(create(&file.join("below")))).await;
    assert_eq!(fs::read_to_string(file).unwrap(), "content");
}

pub async fn create_directory_without_recursion_needs_its_parent(subject: &Subject) {
    let scratch = ScratchDir::new();
    not_found(subject.files.create_directory(alone(&scratch.path("a/b")))).await;
    assert!(!scratch.path("a").exists());
    let path = scratch.path("a");
    done(subject.files.create_directory(alone(&path))).await;
    assert!(path.is_dir());
    host_fails(subject.files.create_directory(alone(&path))).await;
}

pub async fn entries_are_listed_with_their_type(subject: &Subject) {
    let scratch = ScratchDir::new();
    assert_eq!(listed(subject, scratch.root()).await, []);
    scratch.file("file", "");
    scratch.file("directory/inside", "");
    scratch.file(".hidden", "");
    scratch.fifo("pipe");
    scratch.link("dangling", "none");
    scratch.link("to a file", "file");
    scratch.link("way", "directory");
    let expected = [
        entry(".hidden", false, true),
        entry("directory", true, false),
        entry("file", false, true),
        entry("pipe", false, false),
        entry("to a file", false, true),
        entry("way", true, false),
    ];
    assert_eq!(listed(subject, scratch.root()).await, expected);
    let inside = [entry("inside", false, true)];
    assert_eq!(listed(subject, &scratch.path("way")).await, inside);
}

pub async fn non_utf8_names_are_listed_lossily(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file(OsStr::from_bytes(b"a\xffb"), "");
    scratch.file("line\nfeed", "");
    let expected = [
        entry("a\u{fffd}b", false, true),
        entry("line\nfeed", false, true),
    ];
    assert_eq!(listed(subject, scratch.root()).await, expected);
}

pub async fn listing_a_non_directory_fails(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("none");
    let text = not_found(subject.files.read_directory(list(&path))).await;
    subject.assert_names(&text, path.to_str().unwrap());
    let file = scratch.file("file", "");
    host_fails(subject.files.read_directory(list(&file))).await;
    let pipe = scratch.fifo("pipe");
    host_fails(subject.files.read_directory(list(&pipe))).await;
}

pub async fn directory_above_the_entry_limit_is_refused(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.hard_linked_files((0..limits::MAX_DIRECTORY_ENTRIES).map(|number| number.to_string()));
    let listing = done(subject.files.read_directory(list(scratch.root()))).await;
    assert_eq!(listing.entries.len(), limits::MAX_DIRECTORY_ENTRIES);
    scratch.file("one more", "");
    host_fails(subject.files.read_directory(list(scratch.root()))).await;
}
