use std::{fs, os::unix::ffi::OsStrExt, path::Path};

use super::FilteredTree;
use crate::{
    cancel_flag::CancelFlag,
    test_dir::{Outcome, TestDir, odd_name, outcome, unprivileged, within_seconds},
};

/// Returns the entries below a directory, with an ellipsis if truncated.
fn found(root: &Path) -> String {
    found_of(root, 1000)
}

fn found_of(root: &Path, most: usize) -> String {
    let stop = CancelFlag::default();
    let mut tree = FilteredTree::open_with(root, most, &stop).unwrap();
    let mut names: Vec<_> = tree
        .by_ref()
        .map(|found| String::from_utf8_lossy(&found.below).into_owned())
        .collect();
    if tree.is_truncated() {
        names.push("…".to_owned());
    }
    names.join(" ")
}

fn tree(files: &[&str]) -> TestDir {
    let scratch = TestDir::new();
    for name in files {
        scratch.file(name, "");
    }
    scratch
}

#[test]
fn paths_come_in_the_order_of_their_bytes() {
    let files = ["a/b", "a.rs", "a-b/c", "a/b-c/d", "b"];
    let scratch = tree(&files);
    let order = "a a-b a-b/c a.rs a/b a/b-c a/b-c/d b";
    assert_eq!(found(scratch.root()), order);
    let mut sorted: Vec<_> = order.split(' ').collect();
    sorted.sort_unstable();
    assert_eq!(sorted.join(" "), order);
}

#[test]
fn hidden_files_links_and_pipes_are_skipped() {
    let scratch = tree(&["a", ".b", ".c/d"]);
    scratch.fifo("pipe");
    scratch.link("to-a", "a");
    scratch.link("to-c", ".c");
    assert_eq!(found(scratch.root()), "a");
    assert_eq!(found(&scratch.path(".c")), "d", "a root may be hidden");
    assert_eq!(found(&scratch.path("to-c")), "d", "and a link");
}

#[test]
fn ignored_files_are_skipped_outside_a_repository() {
    let scratch = tree(&[
        "a.log",
        "b.txt",
        "out/c.txt",
        "d/out",
        "d/e.log",
        "d/keep.log",
    ]);
    scratch.file(".gitignore", "*.log\nout/\n");
    scratch.file("d/.gitignore", "!keep.log\n");
    assert_eq!(found(scratch.root()), "b.txt d d/keep.log d/out");
}

#[test]
fn all_ignore_files_apply_and_the_more_specific_wins() {
    let scratch = tree(&["a", "b", "c", "d", "e"]);
    scratch.file(".git/info/exclude", "a\nb\n");
    scratch.file(".gitignore", "!b\nc\n");
    scratch.file(".ignore", "!c\nd\n");
    scratch.file(".rgignore", "!d\ne\n");
    assert_eq!(found(scratch.root()), "b c d");
}

#[test]
fn whitelisted_hidden_files_are_found() {
    let scratch = tree(&[".github/x", ".env"]);
    scratch.file(".gitignore", "!.github\n");
    assert_eq!(found(scratch.root()), ".github .github/x");
}

#[test]
fn rules_are_anchored_at_their_directory() {
    let scratch = tree(&["x", "d/x", "d/e/x", "d/y/z", "y/z"]);
    scratch.file("d/.gitignore", "/x\ny/z\n");
    assert_eq!(found(scratch.root()), "d d/e d/e/x d/y x y y/z");
}

#[test]
fn ignore_files_of_ancestors_apply() {
    let scratch = tree(&["d/e/x.log", "d/e/y", "d/e/z"]);
    scratch.file(".gitignore", "*.log\n/d/e/y\n");
    assert_eq!(found(&scratch.path("d/e")), "z");
    scratch.link("link", "d/e");
    assert_eq!(
        found(&scratch.path("link")),
        "z",
        "those above its real place"
    );
}

#[test]
fn root_in_an_ignored_directory_is_traversed() {
    let scratch = tree(&["out/d/x"]);
    scratch.file(".gitignore", "out/\n");
    assert_eq!(found(scratch.root()), "");
    assert_eq!(found(&scratch.path("out/d")), "x");
}

#[test]
fn git_rules_above_a_repository_do_not_apply() {
    let scratch = tree(&["repo/x", "repo/y", "repo/d/x"]);
    scratch.directory("repo/.git");
    scratch.file(".gitignore", "x\n");
    scratch.file(".ignore", "y\n");
    assert_eq!(found(scratch.root()), "repo repo/d repo/d/x repo/x");
    assert_eq!(found(&scratch.path("repo/d")), "x");
}

#[test]
fn invalid_rules_are_ignored() {
    let scratch = tree(&["a", "b"]);
    scratch.file(".gitignore", b"\xef\xbb\xbfa\n[z-a]\n\xff\xfe\n");
    assert_eq!(found(scratch.root()), "b");
}

#[test]
fn special_or_linked_ignore_file_is_not_read() {
    let scratch = tree(&["a"]);
    scratch.fifo(".gitignore");
    scratch.link(".ignore", "/dev/zero");
    scratch.directory(".rgignore");
    let root = scratch.root().to_owned();
    assert_eq!(within_seconds(move || found(&root)), "a");
}

#[test]
fn huge_ignore_file_is_read_partly() {
    let scratch = tree(&["a", "b"]);
    let rules = format!("a\n{}b\n", "# nothing\n".repeat(100_000));
    scratch.file(".gitignore", rules);
    assert_eq!(found(scratch.root()), "b");
}

#[test]
fn names_need_not_be_utf8() {
    let scratch = TestDir::new();
    let name = odd_name();
    scratch.file(Path::new(name).join(name), "");
    scratch.file(".gitignore", "other\n");
    let stop = CancelFlag::default();
    let tree = FilteredTree::open(scratch.root(), &stop).unwrap();
    let paths: Vec<_> = tree.map(|found| found.below).collect();
    let name = name.as_bytes();
    assert_eq!(paths, [name.to_vec(), [name, b"/", name].concat()]);
}

#[test]
fn number_of_examined_names_is_bounded() {
    let scratch = tree(&["a/b", "a/c", "d/e"]);
    assert_eq!(found_of(scratch.root(), 5), "a a/b a/c d d/e");
    assert_eq!(found_of(scratch.root(), 4), "a a/b a/c d …");
    assert_eq!(found_of(scratch.root(), 3), "a a/b d …");
    assert_eq!(found_of(scratch.root(), 1), "a …");
}

#[test]
fn unreadable_directories_are_skipped() {
    let scratch = tree(&["a/b", "c"]);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o0);
    fs::set_permissions(scratch.path("a"), mode).unwrap();
    let listed = unprivileged(&scratch, || found(scratch.root()));
    assert_eq!(listed, "a c");
    let stop = CancelFlag::default();
    let root = scratch.path("a");
    let refused = unprivileged(&scratch, || FilteredTree::open(&root, &stop).map(drop));
    assert_eq!(outcome(refused), Outcome::Invalid);
}

#[test]
fn very_deep_tree_is_traversed_up_to_the_path_limit() {
    let scratch = TestDir::new();
    let top = scratch.deep("deep", 3000);
    let stop = CancelFlag::default();
    let mut tree = FilteredTree::open(&top, &stop).unwrap();
    let depth = tree.by_ref().count();
    assert!((2000..2100).contains(&depth), "{depth}");
    assert!(tree.is_truncated(), "there is more");
}

#[test]
fn cancelled_traversal_ends() {
    let scratch = tree(&["a", "b"]);
    let stop = CancelFlag::default();
    let mut tree = FilteredTree::open(scratch.root(), &stop).unwrap();
    assert!(tree.next().is_some());
    stop.cancel();
    assert_eq!(tree.next(), None);
}
