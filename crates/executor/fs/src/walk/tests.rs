//! Walks: order, limits, links, and unreadable directories.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::Path,
};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{EntryKind, WalkOptions, WalkResult, WalkTree},
    limits,
    path_uri::PathUri,
};

use super::walk;
use crate::{
    cancel_flag::CancelFlag,
    test_dir::{Outcome, TestDir, odd_name, outcome, text, unprivileged, uri},
};

mod reading;

const ALL: WalkOptions = WalkOptions {
    max_depth: limits::MAX_WALK_DEPTH,
    max_directories: limits::MAX_WALK_DIRECTORIES,
    max_entries: limits::MAX_WALK_ENTRIES,
    follow_directory_symlinks: false,
    prune_hidden_directories: false,
};

const FOLLOW: WalkOptions = WalkOptions {
    follow_directory_symlinks: true,
    ..ALL
};

fn run(path: impl AsRef<Path>, options: WalkOptions) -> Result<WalkResult, FileError> {
    let request = WalkTree {
        path: uri(path),
        options,
        sandbox: None,
    };
    walk(&request, &CancelFlag::default())
}

/// Formats a walk relative to its root, directories with a slash, with an ellipsis if truncated.
fn listed(scratch: &TestDir, options: WalkOptions) -> String {
    let result = run(scratch.root(), options).unwrap();
    assert_eq!(result.errors, []);
    shown(scratch, &result)
}

fn shown(scratch: &TestDir, result: &WalkResult) -> String {
    let mut names: Vec<String> = Vec::new();
    for entry in &result.entries {
        let slash = match entry.kind {
            EntryKind::File => "",
            EntryKind::Directory => "/",
        };
        names.push(format!("{}{slash}", below(scratch, &entry.path)));
    }
    if result.truncated {
        names.push("…".to_owned());
    }
    names.join(" ")
}

fn below(scratch: &TestDir, path: &PathUri) -> String {
    let root = uri(scratch.root());
    let below = path.as_str().strip_prefix(root.as_str()).unwrap();
    below.trim_start_matches('/').to_owned()
}

/// Returns the errors of a walk as path and message.
fn errors(scratch: &TestDir, result: &WalkResult) -> Vec<(String, String)> {
    let error =
        |error: &exec_wire::fs::WalkError| (below(scratch, &error.path), error.message.clone());
    result.errors.iter().map(error).collect()
}

fn deny(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn tree(files: &[&str]) -> TestDir {
    let scratch = TestDir::new();
    for name in files {
        match name.strip_suffix('/') {
            Some(directory) => scratch.directory(directory),
            None => scratch.file(name, ""),
        };
    }
    scratch
}

#[test]
fn tree_is_listed_breadth_first_and_sorted_by_name() {
    let scratch = tree(&["b/z", "b/y/x", "a-b", "a/c", ".x", "B"]);
    assert_eq!(listed(&scratch, ALL), ".x B a/ a-b b/ a/c b/y/ b/z b/y/x");
}

#[test]
fn names_are_percent_encoded_in_uris() {
    let scratch = TestDir::new();
    scratch.file(odd_name(), "");
    assert_eq!(listed(&scratch, ALL), "odd%20%FF%3F%23%25");
}

#[test]
fn trailing_slash_of_the_root_is_not_doubled() {
    let scratch = tree(&["a"]);
    let path = PathUri::parse(&format!("{}/", uri(scratch.root()))).unwrap();
    let request = WalkTree {
        path,
        options: ALL,
        sandbox: None,
    };
    let result = walk(&request, &CancelFlag::default()).unwrap();
    assert_eq!(result.entries[0].path, uri(scratch.path("a")));
}

#[test]
fn depth_limit_does_not_mark_the_result_truncated() {
    let scratch = tree(&["a/b/c/d"]);
    let depth = |max_depth| listed(&scratch, WalkOptions { max_depth, ..ALL });
    assert_eq!(depth(0), "a/");
    assert_eq!(depth(1), "a/ a/b/");
    assert_eq!(depth(3), "a/ a/b/ a/b/c/ a/b/c/d");
}

#[test]
fn entry_limit_applies_across_directories() {
    let scratch = tree(&["a", "b", "c/d", "c/e", "f/"]);
    let entries = |max_entries| {
        let options = WalkOptions { max_entries, ..ALL };
        listed(&scratch, options)
    };
    assert_eq!(entries(1), "a …");
    assert_eq!(entries(4), "a b c/ f/ …");
    assert_eq!(entries(5), "a b c/ f/ c/d …");
    assert_eq!(entries(6), "a b c/ f/ c/d c/e", "there is no more");
}

#[test]
fn unlisted_entries_count_unless_they_are_dangling_links() {
    let scratch = tree(&["a", "b"]);
    scratch.fifo("aa");
    scratch.link("ab", "a");
    scratch.link("ac", "nowhere");
    let entries = |max_entries| listed(&scratch, WalkOptions { max_entries, ..ALL });
    assert_eq!(entries(3), "a …");
    assert_eq!(entries(4), "a b");
}

#[test]
fn directories_beyond_the_limit_are_listed_but_not_entered() {
    let scratch = tree(&["a/x", "b/y", "c/z/q"]);
    let directories = |max_directories| {
        let options = WalkOptions {
            max_directories,
            ..ALL
        };
        listed(&scratch, options)
    };
    assert_eq!(directories(1), "a/ b/ c/ …");
    assert_eq!(directories(3), "a/ b/ c/ a/x b/y …");
    assert_eq!(directories(5), "a/ b/ c/ a/x b/y c/z/ c/z/q");
}

#[test]
fn directories_that_are_never_entered_do_not_count() {
    let scratch = tree(&[".h/x", "a/x/"]);
    let options = WalkOptions {
        prune_hidden_directories: true,
        max_directories: 2,
        max_depth: 1,
        ..ALL
    };
    assert_eq!(listed(&scratch, options), ".h/ a/ a/x/");
}

#[test]
fn hidden_directories_are_pruned_below_the_root_only() {
    let scratch = tree(&[".h/.i/x", ".h/j/y", ".h/.f"]);
    let options = WalkOptions {
        prune_hidden_directories: true,
        ..ALL
    };
    assert_eq!(listed(&scratch, options), ".h/");
    let result = run(scratch.path(".h"), options).unwrap();
    assert_eq!(shown(&scratch, &result), ".h/.f .h/.i/ .h/j/ .h/j/y");
}

#[test]
fn links_are_skipped() {
    let scratch = tree(&["d/x", "f"]);
    scratch.link("to-d", "d");
    scratch.link("to-f", "f");
    scratch.link("to-nowhere", "nowhere");
    assert_eq!(listed(&scratch, ALL), "d/ f d/x");
}

#[test]
fn followed_directory_links_are_entered_once_per_directory() {
    let scratch = tree(&["d/x", "e/", "f"]);
    scratch.link("a", "d");
    scratch.link("e/again", "../d");
    scratch.link("d/up", "..");
    scratch.link("to-f", "f");
    scratch.link("to-itself", "to-itself");
    assert_eq!(listed(&scratch, FOLLOW), "a/ d/ e/ f a/up/ a/x e/again/");
}

#[test]
fn repeated_directory_does_not_count_twice() {
    let scratch = tree(&["d/x"]);
    scratch.link("e", "d");
    let options = WalkOptions {
        max_directories: 2,
        ..FOLLOW
    };
    assert_eq!(listed(&scratch, options), "d/ e/ d/x");
}

#[test]
fn hidden_link_is_pruned_but_its_target_is_not() {
    let scratch = tree(&["d/x", ".h/y"]);
    scratch.link(".l", "d");
    scratch.link("v", ".h");
    let options = WalkOptions {
        prune_hidden_directories: true,
        ..FOLLOW
    };
    assert_eq!(listed(&scratch, options), ".h/ .l/ d/ v/ d/x v/y");
}

#[test]
fn root_that_is_not_a_directory_yields_nothing() {
    let scratch = tree(&["d/x", "f"]);
    scratch.link("l", "d");
    scratch.fifo("pipe");
    for name in ["f", "l", "pipe"] {
        let result = run(scratch.path(name), ALL);
        assert_eq!(result, Ok(WalkResult::default()), "{name}");
    }
    let followed = run(scratch.path("l"), FOLLOW).unwrap();
    assert_eq!(shown(&scratch, &followed), "l/x");
    scratch.link("d/up", "..");
    let through = run(scratch.path("d/up/d"), ALL).unwrap();
    assert_eq!(shown(&scratch, &through), "d/up/d/x", "a link on the way");
}

#[test]
fn missing_root_is_an_error() {
    let scratch = tree(&["f"]);
    scratch.link("dangling", "nowhere");
    scratch.link("loop", "loop");
    for options in [ALL, FOLLOW] {
        let root = |name| outcome(run(scratch.path(name), options));
        assert_eq!(root("none"), Outcome::NotFound);
        assert_eq!(root("dangling"), Outcome::NotFound);
        assert_eq!(root("loop"), Outcome::Host);
        assert_eq!(root("f/x"), Outcome::Host);
    }
}

#[test]
fn limits_out_of_range_are_rejected() {
    let table = [
        WalkOptions {
            max_directories: 0,
            ..ALL
        },
        WalkOptions {
            max_entries: 0,
            ..ALL
        },
        WalkOptions {
            max_depth: 65,
            ..ALL
        },
        WalkOptions {
            max_directories: 10_001,
            ..ALL
        },
        WalkOptions {
            max_entries: 50_001,
            ..ALL
        },
    ];
    for options in table {
        let result = run("/nowhere", options);
        assert_eq!(outcome(result.clone()), Outcome::Invalid, "{options:?}");
        assert!(text(result).starts_with("filesystem walk limits"));
    }
}

#[test]
fn foreign_root_is_rejected() {
    let request = WalkTree {
        path: PathUri::parse("file:///C:/x").unwrap(),
        options: ALL,
        sandbox: None,
    };
    assert_eq!(
        outcome(walk(&request, &CancelFlag::default())),
        Outcome::Invalid
    );
}

#[test]
fn answer_size_is_bounded() {
    let scratch = TestDir::new();
    let file = scratch.file("file", "");
    let directory = scratch.directory("d".repeat(200));
    // Names that count as one kibibyte each: most of their bytes take three in a URI.
    let name_bytes = 1024 - limits::WALK_ITEM_BYTES - uri(&directory).as_str().len() - 1;
    let (odd, plain) = (name_bytes / 3 - 2, name_bytes % 3 + 6);
    let count = limits::MAX_WALK_BYTES / 1024;
    for number in 0..count {
        let name = [
            &b"\xff".repeat(odd)[..],
            format!("{number:0plain$}").as_bytes(),
        ]
        .concat();
        fs::hard_link(&file, directory.join(OsStr::from_bytes(&name))).unwrap();
    }
    let result = run(&directory, ALL).unwrap();
    assert_eq!((result.entries.len(), result.truncated), (count, false));
    fs::hard_link(
        &file,
        directory.join(OsStr::from_bytes(b"\xff\xff\xff\xff")),
    )
    .unwrap();
    let result = run(&directory, ALL).unwrap();
    assert_eq!((result.entries.len(), result.truncated), (count, true));
}

#[test]
fn cancelled_operation_returns_an_error() {
    let scratch = tree(&["a"]);
    let stop = CancelFlag::default();
    stop.cancel();
    let request = WalkTree {
        path: uri(scratch.root()),
        options: ALL,
        sandbox: None,
    };
    assert_eq!(outcome(walk(&request, &stop)), Outcome::Host);
}
