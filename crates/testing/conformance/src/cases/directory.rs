//! Directories, made and listed.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use exec_wire::{
    fs::{CreateDirectory, DirectoryEntry},
    limits,
};

use crate::{
    bounded_wait::{done, host_fails, not_found},
    request::{create, list},
    scratch_dir::{Scratch, mode},
    subject::Subject,
};

fn alone(path: &Path) -> CreateDirectory {
    CreateDirectory {
        recursive: Some(false),
        ..create(path)
    }
}

async fn listed(subject: &Subject, path: &Path) -> Vec<DirectoryEntry> {
    let mut entries = done(subject.files.read_directory(list(path))).await;
    entries.sort();
    entries
}

fn entry(name: &str, is_directory: bool, is_file: bool) -> DirectoryEntry {
    DirectoryEntry {
        file_name: name.to_owned(),
        is_directory,
        is_file,
    }
}

pub async fn a_directory_is_made_with_those_above_it(subject: &Subject) {
    let scratch = Scratch::new();
    let path = scratch.path("a/b/c");
    done(subject.files.create_directory(create(&path))).await;
    assert!(path.is_dir());
    assert_eq!(mode(&path), mode(&scratch.directory("model")));
    // Once more: it is there.
    done(subject.files.create_directory(create(&path))).await;
    let link = scratch.link("link", "a");
    done(subject.files.create_directory(create(&link))).await;
    done(subject.files.create_directory(create(&link.join("b/d")))).await;
    assert!(scratch.path("a/b/d").is_dir());
}

pub async fn what_is_no_directory_is_in_the_way(subject: &Subject) {
    let scratch = Scratch::new();
    let file = scratch.file("file", "content");
    host_fails(subject.files.create_directory(create(&file))).await;
    host_fails(subject.files.create_directory(alone(&file))).await;
    host_fails(subject.files.create_directory(create(&file.join("below")))).await;
    assert_eq!(fs::read_to_string(file).unwrap(), "content");
}

pub async fn a_directory_alone_needs_the_one_above_it(subject: &Subject) {
    let scratch = Scratch::new();
    not_found(subject.files.create_directory(alone(&scratch.path("a/b")))).await;
    assert!(!scratch.path("a").exists());
    let path = scratch.path("a");
    done(subject.files.create_directory(alone(&path))).await;
    assert!(path.is_dir());
    host_fails(subject.files.create_directory(alone(&path))).await;
}

pub async fn entries_are_listed_with_what_they_are(subject: &Subject) {
    let scratch = Scratch::new();
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

pub async fn names_that_are_not_text_are_listed_as_far_as_they_are(subject: &Subject) {
    let scratch = Scratch::new();
    scratch.file(OsStr::from_bytes(b"a\xffb"), "");
    scratch.file("line\nfeed", "");
    let expected = [
        entry("a\u{fffd}b", false, true),
        entry("line\nfeed", false, true),
    ];
    assert_eq!(listed(subject, scratch.root()).await, expected);
}

pub async fn what_is_no_directory_is_not_listed(subject: &Subject) {
    let scratch = Scratch::new();
    let path = scratch.path("none");
    let text = not_found(subject.files.read_directory(list(&path))).await;
    subject.assert_names(&text, path.to_str().unwrap());
    let file = scratch.file("file", "");
    host_fails(subject.files.read_directory(list(&file))).await;
    let pipe = scratch.fifo("pipe");
    host_fails(subject.files.read_directory(list(&pipe))).await;
}

pub async fn a_directory_beyond_the_limit_is_not_listed(subject: &Subject) {
    let scratch = Scratch::new();
    scratch.crowd((0..limits::MAX_DIRECTORY_ENTRIES).map(|number| number.to_string()));
    let entries = done(subject.files.read_directory(list(scratch.root()))).await;
    assert_eq!(entries.len(), limits::MAX_DIRECTORY_ENTRIES);
    scratch.file("one more", "");
    host_fails(subject.files.read_directory(list(scratch.root()))).await;
}
