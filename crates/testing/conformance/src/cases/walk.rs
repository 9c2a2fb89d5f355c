//! Trees, listed breadth first.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use exec_wire::{
    fs::{EntryKind, WalkOptions, WalkResult},
    limits,
};

use crate::{
    bounded_wait::{done, invalid, not_found},
    difference::Difference,
    request::{FAR, read, walk},
    scratch_dir::{Scratch, set_mode},
    subject::{Subject, uri},
};

async fn walked(subject: &Subject, path: &Path, options: WalkOptions) -> WalkResult {
    done(subject.files.walk(walk(path, options))).await
}

/// The entries by their names below `root`; a directory's ends in a slash.
fn below(root: &Path, walked: &WalkResult) -> Vec<String> {
    let entry = |entry: &exec_wire::fs::WalkEntry| {
        let path = entry.path.to_native().unwrap();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        match entry.kind {
            EntryKind::File => name.to_owned(),
            EntryKind::Directory => format!("{name}/"),
        }
    };
    walked.entries.iter().map(entry).collect()
}

fn tree() -> Scratch {
    let scratch = Scratch::new();
    for name in ["b/2", "b/10", "b/c/d/e", "a/x", "Z", "z", ".h/i"] {
        scratch.file(name, "");
    }
    scratch
}

pub async fn a_walk_is_breadth_first_and_by_name(subject: &Subject) {
    let scratch = tree();
    let found = walked(subject, scratch.root(), FAR).await;
    let expected = [
        ".h/", "Z", "a/", "b/", "z", ".h/i", "a/x", "b/10", "b/2", "b/c/", "b/c/d/", "b/c/d/e",
    ];
    assert_eq!(below(scratch.root(), &found), expected);
    assert_eq!((found.errors.len(), found.truncated), (0, false));
    let empty = scratch.directory("empty");
    assert_eq!(walked(subject, &empty, FAR).await, WalkResult::default());
}

pub async fn a_walk_goes_as_deep_as_it_is_told(subject: &Subject) {
    let scratch = tree();
    let top = [".h/", "Z", "a/", "b/", "z"];
    let second = [".h/i", "a/x", "b/10", "b/2", "b/c/"];
    for (max_depth, expected) in [(0, top.to_vec()), (1, [top, second].concat())] {
        let options = WalkOptions { max_depth, ..FAR };
        let found = walked(subject, scratch.root(), options).await;
        assert_eq!(below(scratch.root(), &found), expected);
        assert!(!found.truncated);
    }
}

pub async fn a_walk_stops_after_so_many_entries(subject: &Subject) {
    let scratch = tree();
    let options = WalkOptions {
        max_entries: 7,
        ..FAR
    };
    let found = walked(subject, scratch.root(), options).await;
    let expected = [".h/", "Z", "a/", "b/", "z", ".h/i", "a/x"];
    assert_eq!(below(scratch.root(), &found), expected);
    assert!(found.truncated);
}

pub async fn a_walk_enters_so_many_directories(subject: &Subject) {
    let scratch = tree();
    let options = WalkOptions {
        max_directories: 2,
        ..FAR
    };
    let found = walked(subject, scratch.root(), options).await;
    let expected = [".h/", "Z", "a/", "b/", "z", ".h/i"];
    assert_eq!(below(scratch.root(), &found), expected);
    assert!(found.truncated);
}

pub async fn limits_of_a_walk_that_cannot_be_are_invalid(subject: &Subject) {
    let scratch = tree();
    let wrong = [
        WalkOptions {
            max_directories: 0,
            ..FAR
        },
        WalkOptions {
            max_entries: 0,
            ..FAR
        },
        WalkOptions {
            max_depth: limits::MAX_WALK_DEPTH + 1,
            ..FAR
        },
        WalkOptions {
            max_directories: limits::MAX_WALK_DIRECTORIES + 1,
            ..FAR
        },
        WalkOptions {
            max_entries: limits::MAX_WALK_ENTRIES + 1,
            ..FAR
        },
    ];
    for options in wrong {
        invalid(subject.files.walk(walk(scratch.root(), options))).await;
    }
}

pub async fn hidden_directories_are_listed_but_not_entered_on_request(subject: &Subject) {
    let scratch = tree();
    let options = WalkOptions {
        prune_hidden_directories: true,
        max_depth: 1,
        ..FAR
    };
    let found = walked(subject, scratch.root(), options).await;
    let expected = [".h/", "Z", "a/", "b/", "z", "a/x", "b/10", "b/2", "b/c/"];
    assert_eq!(below(scratch.root(), &found), expected);
    assert!(!found.truncated);
}

pub async fn a_walk_begins_only_at_a_directory(subject: &Subject) {
    let scratch = tree();
    let path = scratch.path("none");
    let text = not_found(subject.files.walk(walk(&path, FAR))).await;
    subject.assert_names(&text, path.to_str().unwrap());
    let empty = WalkResult::default();
    assert_eq!(walked(subject, &scratch.path("z"), FAR).await, empty);
    let pipe = scratch.fifo("pipe");
    assert_eq!(walked(subject, &pipe, FAR).await, empty);
    let link = scratch.link("link", "a");
    assert_eq!(walked(subject, &link, FAR).await, empty);
    let follow = WalkOptions {
        follow_directory_symlinks: true,
        ..FAR
    };
    let found = walked(subject, &link, follow).await;
    assert_eq!(below(&link, &found), ["x"]);
}

pub async fn links_and_pipes_are_passed_over(subject: &Subject) {
    let scratch = Scratch::new();
    scratch.file("directory/file", "");
    scratch.link("dangling", "none");
    scratch.link("file", "directory/file");
    scratch.link("way", "directory");
    scratch.fifo("pipe");
    let found = walked(subject, scratch.root(), FAR).await;
    let expected = ["directory/", "directory/file"];
    assert_eq!(below(scratch.root(), &found), expected);
    assert_eq!((found.errors.len(), found.truncated), (0, false));
}

pub async fn directories_behind_links_are_entered_once_on_request(subject: &Subject) {
    let scratch = Scratch::new();
    scratch.file("real/file", "");
    scratch.link("again", "real");
    scratch.link("dangling", "none");
    scratch.link("file", "real/file");
    scratch.link("turn", ".");
    scratch.link("real/up", "..");
    let follow = WalkOptions {
        follow_directory_symlinks: true,
        ..FAR
    };
    let found = walked(subject, scratch.root(), follow).await;
    let names = below(scratch.root(), &found);
    let (top, deeper) = names.split_at(3);
    assert_eq!(top, ["again/", "real/", "turn/"]);
    let through = if deeper[0].starts_with("again") {
        ["again/file", "again/up/"]
    } else {
        ["real/file", "real/up/"]
    };
    assert_eq!(deeper, through);
    assert!(!found.truncated);
}

pub async fn what_cannot_be_read_is_told_and_the_walk_goes_on(subject: &Subject) {
    let scratch = tree();
    let closed = scratch.path("a");
    set_mode(&closed, 0o000);
    // Who may read everything reads this, too.
    let readable = fs::read_dir(&closed).is_ok();
    let found = walked(subject, scratch.root(), FAR).await;
    set_mode(&closed, 0o755);
    let names = below(scratch.root(), &found);
    assert_eq!(names.contains(&"a/x".to_owned()), readable);
    assert!(names.contains(&"b/c/d/e".to_owned()));
    let failed: Vec<_> = found.errors.into_iter().map(|error| error.path).collect();
    let expected = if readable { vec![] } else { vec![uri(&closed)] };
    assert_eq!(failed, expected);
}

pub async fn names_that_are_not_text_can_be_followed(subject: &Subject) {
    let scratch = Scratch::new();
    let path = scratch.file(OsStr::from_bytes(b"a \xff?%41/\xfe#"), "content");
    let found = walked(subject, scratch.root(), FAR).await;
    if subject.differs(Difference::WalksKnowOnlyText) {
        return assert_eq!(found.entries, []);
    }
    assert_eq!(found.entries[1].path, uri(&path));
    let file = read(&found.entries[1].path);
    assert_eq!(done(subject.files.read_file(file)).await, "content");
}

pub async fn the_answer_to_a_walk_is_bounded(subject: &Subject) {
    let scratch = Scratch::new();
    scratch.crowd((0..16_000).map(|number| format!("{number:0240}")));
    let found = walked(subject, scratch.root(), FAR).await;
    assert!(found.truncated);
    let size =
        |entry: &exec_wire::fs::WalkEntry| entry.path.as_str().len() + limits::WALK_ITEM_BYTES;
    let size: usize = found.entries.iter().map(size).sum();
    assert!(size <= limits::MAX_WALK_BYTES, "{size}");
    // Nothing that fits is left out.
    assert!(size > limits::MAX_WALK_BYTES - 1024, "{size}");
}
