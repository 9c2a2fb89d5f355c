use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
};

use super::*;
use crate::{
    test_dir::{Outcome, TestDir, names, outcome},
    write_file::ParentPolicy,
};

fn target(path: &Path) -> WriteTarget {
    WriteTarget {
        path: path.to_owned(),
        links: LinkPolicy::Follow,
        parents: ParentPolicy::Expect,
        mode: None,
    }
}

#[test]
fn open_reader_sees_the_old_content() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "old");
    let reader = File::open(&path).unwrap();
    replace(&target(&path), b"new").unwrap();
    assert_eq!(std::io::read_to_string(reader).unwrap(), "old");
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn owner_is_kept_on_replace() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "old");
    // Only root may change the owner; for others the file stays their own.
    let given = chown(&path, Some(1234), Some(2345)).is_ok();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let before = fs::metadata(&path).unwrap();
    replace(&target(&path), b"new").unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(given, after.uid() == 1234);
    assert_eq!(
        (before.uid(), before.gid(), before.mode()),
        (after.uid(), after.gid(), after.mode())
    );
}

#[test]
fn abandoned_temporary_file_is_removed() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "old");
    let place = EntryLocation::open_parent(&path, LinkPolicy::Follow).unwrap();
    let new = TemporaryFile::create(&place, NEW_FILE).unwrap();
    (&new.file).write_all(b"new").unwrap();
    assert_eq!(names(scratch.root()).len(), 2);
    drop(new);
    assert_eq!(names(scratch.root()), ["file"]);
    assert_eq!(fs::read(&path).unwrap(), b"old");
}

#[test]
fn temporary_file_is_removed_when_rename_fails() {
    let scratch = TestDir::new();
    let path = scratch.directory("taken");
    let place = EntryLocation::open_parent(&path, LinkPolicy::Follow).unwrap();
    let new = TemporaryFile::create(&place, NEW_FILE).unwrap();
    assert_eq!(new.take_name(), Err(Errno::ISDIR));
    assert_eq!(names(scratch.root()), ["taken"]);
}

#[test]
fn rejected_target_leaves_no_temporary_file() {
    let scratch = TestDir::new();
    let fifo = scratch.fifo("fifo");
    assert_eq!(outcome(replace(&target(&fifo), b"x")), Outcome::Invalid);
    scratch.directory("directory");
    for text in ["directory/", "directory/.", "directory", "..", "/"] {
        let link = scratch.link("link", text);
        let refused = outcome(replace(&target(&link), b"x"));
        assert_eq!(refused, Outcome::Host, "{text}");
        fs::remove_file(link).unwrap();
    }
    assert_eq!(names(scratch.root()), ["directory", "fifo"]);
    assert!(names(&scratch.path("directory")).is_empty());
}

#[test]
fn relative_link_is_followed_from_its_directory() {
    let scratch = TestDir::new();
    scratch.directory("a/b");
    scratch.link("a/b/first", "../second");
    scratch.link("a/second", scratch.path("a/b/../third"));
    replace(&target(&scratch.path("a/b/first")), b"new").unwrap();
    assert_eq!(fs::read(scratch.path("a/third")).unwrap(), b"new");
}

#[test]
fn temporary_names_differ() {
    let some: std::collections::BTreeSet<_> = (0..1000).map(|_| temporary_name()).collect();
    assert_eq!(some.len(), 1000);
}
