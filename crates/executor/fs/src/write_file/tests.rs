use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
};

use rustix::fs::CWD;

use super::*;
use crate::test_dir::{Outcome, TestDir, names, odd_name, outcome, text, uri, within_seconds};

fn request(path: &Path) -> WriteFile {
    WriteFile {
        path: uri(path),
        data_base64: None,
        follow_symlinks: None,
        create_parents: false,
        atomic: false,
        mode: None,
        sandbox: None,
    }
}

fn atomic(path: &Path) -> WriteFile {
    WriteFile {
        atomic: true,
        ..request(path)
    }
}

/// Returns requests for both ways of writing, which share most guarantees.
fn both(path: &Path) -> [WriteFile; 2] {
    [request(path), atomic(path)]
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn missing_file_is_created_with_default_mode() {
    let scratch = TestDir::new();
    let usual = scratch.file("usual", "");
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        let path = scratch.path(name);
        write_file(&both(&path)[index], b"content").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        assert_eq!(mode(&path), mode(&usual));
    }
}

#[test]
fn content_is_replaced_and_mode_is_kept() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "a long content");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).unwrap();
    for (write, data) in both(&path).iter().zip(["short", ""]) {
        write_file(write, data.as_bytes()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), data.as_bytes());
        assert_eq!(mode(&path), 0o751);
    }
    assert_eq!(names(scratch.root()), ["file"]);
}

#[test]
fn name_need_not_be_utf_8() {
    let scratch = TestDir::new();
    for write in both(&scratch.path(odd_name())) {
        write_file(&write, b"odd").unwrap();
        assert_eq!(names(scratch.root()), [odd_name()]);
    }
}

#[test]
fn name_may_have_the_maximum_length() {
    let scratch = TestDir::new();
    let name = "n".repeat(255);
    for write in both(&scratch.path(&name)) {
        write_file(&write, b"content").unwrap();
    }
    for write in both(&scratch.path("n".repeat(256))) {
        assert_eq!(outcome(write_file(&write, b"")), Outcome::Host);
    }
    assert_eq!(names(scratch.root()), [name.as_str()]);
}

#[test]
fn mode_is_set_regardless_of_the_umask() {
    let scratch = TestDir::new();
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        let path = scratch.path(name);
        // The last file is read-only, and not written again.
        for bits in [0o666, 0o7777, 0o600, 0o400] {
            let write = WriteFile {
                mode: Some(bits),
                ..both(&path)[index].clone()
            };
            write_file(&write, b"x").unwrap();
            assert_eq!(mode(&path), bits);
        }
    }
}

#[test]
fn mode_with_other_bits_is_rejected() {
    let scratch = TestDir::new();
    let path = scratch.path("file");
    for write in both(&path) {
        let refused = write_file(
            &WriteFile {
                mode: Some(0o100_644),
                ..write
            },
            b"x",
        );
        assert_eq!(outcome(refused), Outcome::Invalid);
    }
    assert!(!path.exists());
}

#[test]
fn parents_are_created_only_on_request() {
    let scratch = TestDir::new();
    for (index, name) in ["a/b/c/file", "x/y/z/file"].into_iter().enumerate() {
        let path = scratch.path(name);
        let write = both(&path)[index].clone();
        assert_eq!(outcome(write_file(&write, b"x")), Outcome::NotFound);
        let create_parents = true;
        let write = WriteFile {
            create_parents,
            ..write
        };
        write_file(&write, b"new").unwrap();
        write_file(&write, b"newer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
    }
}

#[test]
fn directories_are_not_created_through_a_file_or_a_dangling_link() {
    let scratch = TestDir::new();
    scratch.file("file", "");
    scratch.link("dangling", "nowhere");
    for name in ["file/a/b", "dangling/a/b"] {
        for write in both(&scratch.path(name)) {
            let create_parents = true;
            let refused = write_file(
                &WriteFile {
                    create_parents,
                    ..write
                },
                b"x",
            );
            assert_eq!(outcome(refused), Outcome::Host, "{name}");
        }
    }
    assert_eq!(names(scratch.root()), ["dangling", "file"]);
}

#[test]
fn directory_cannot_be_written() {
    let scratch = TestDir::new();
    let path = scratch.directory("directory");
    for path in [path.as_path(), Path::new("/")] {
        for write in both(path) {
            assert_eq!(outcome(write_file(&write, b"x")), Outcome::Host);
        }
    }
}

#[test]
fn fifo_without_reader_is_rejected_without_blocking() {
    let scratch = TestDir::new();
    let fifo = scratch.fifo("fifo");
    let [in_place, atomic] = both(&fifo);
    let written = within_seconds(move || outcome(write_file(&in_place, b"x")));
    assert_eq!(written, Outcome::Host, "it cannot even be opened");
    let written = within_seconds(move || outcome(write_file(&atomic, b"x")));
    assert_eq!(written, Outcome::Invalid);
    // With a reader it can be opened, but is rejected all the same.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let _reader = resolve::open_at(CWD, &fifo, flags, Mode::empty()).unwrap();
    let write = request(&fifo);
    let written = within_seconds(move || outcome(write_file(&write, b"x")));
    assert_eq!(written, Outcome::Invalid);
}

#[test]
fn device_is_rejected() {
    for write in both(Path::new("/dev/null")) {
        assert_eq!(outcome(write_file(&write, b"x")), Outcome::Invalid);
    }
}

#[test]
fn link_is_kept_and_its_target_written() {
    let scratch = TestDir::new();
    let target = scratch.file("below/target", "old");
    let link = scratch.link("link", "other");
    scratch.link("other", "below/target");
    for (write, data) in both(&link).iter().zip(["first", "second"]) {
        write_file(write, data.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), data);
    }
    assert!(link.is_symlink());
    assert_eq!(names(&scratch.path("below")), ["target"]);
}

#[test]
fn dangling_link_is_written_through() {
    let scratch = TestDir::new();
    scratch.directory("below");
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        let target = scratch.path("below").join(name);
        let link = scratch.link(name, &target);
        write_file(&both(&link)[index], b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert!(link.is_symlink());
    }
}

#[test]
fn circular_link_is_not_written() {
    let scratch = TestDir::new();
    let link = scratch.link("link", "link");
    for write in both(&link) {
        assert_eq!(outcome(write_file(&write, b"x")), Outcome::Host);
    }
}

#[test]
fn links_are_not_written_through_on_request() {
    let scratch = TestDir::new();
    let root = fs::canonicalize(scratch.root()).unwrap();
    let target = scratch.file("real/file", "old");
    scratch.link("last", "real/file");
    scratch.link("above", "real");
    scratch.link("dangling", "nowhere");
    for (name, errno) in [("last", 40), ("above/file", 20), ("dangling", 40)] {
        for write in both(&root.join(name)) {
            let follow_symlinks = Some(false);
            let create_parents = true;
            let refused = write_file(
                &WriteFile {
                    follow_symlinks,
                    create_parents,
                    ..write
                },
                b"x",
            );
            assert!(
                text(refused.clone()).contains(&format!("os error {errno}")),
                "{refused:?}"
            );
            assert_eq!(outcome(refused), Outcome::Host);
        }
    }
    assert_eq!(fs::read(&target).unwrap(), b"old");
    for write in both(&root.join("real/new/file")) {
        let write = WriteFile {
            follow_symlinks: Some(false),
            create_parents: true,
            ..write
        };
        write_file(&write, b"new").unwrap();
    }
    assert_eq!(fs::read(scratch.path("real/new/file")).unwrap(), b"new");
}

#[test]
fn failed_write_reports_possible_partial_content() {
    // The kernel rejects an invalid number on write, not on open.
    let refused = write_file(
        &request(Path::new("/proc/self/oom_score_adj")),
        b"no number",
    );
    assert!(
        text(refused.clone()).ends_with("the file may hold part of the new content"),
        "{refused:?}"
    );
    assert_eq!(outcome(refused), Outcome::Invalid);
}

#[test]
fn writing_in_place_keeps_other_names_and_replacing_leaves_them_the_old_content() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "old");
    let other = scratch.path("other");
    fs::hard_link(&path, &other).unwrap();
    write_file(&request(&path), b"new").unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"new");
    write_file(&atomic(&path), b"newest").unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"new");
    assert_eq!(fs::read(&path).unwrap(), b"newest");
    assert_ne!(
        fs::metadata(&path).unwrap().ino(),
        fs::metadata(&other).unwrap().ino()
    );
}

fn target(path: &Path) -> WriteTarget {
    WriteTarget {
        path: path.to_owned(),
        links: LinkPolicy::Follow,
        create_parents: false,
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
    let new = TemporaryFile::create(&place, NEW_FILE_MODE).unwrap();
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
    let new = TemporaryFile::create(&place, NEW_FILE_MODE).unwrap();
    assert_eq!(new.rename_into_place(), Err(Errno::ISDIR));
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
