//! Unreadable directories, and changes during a walk.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{
    super::{PendingDirectory, TreeWalker},
    *,
};
use crate::{
    descent::DescentRoot, directory::InodeId, resolve::LinkPolicy, test_dir::open_directory,
};

#[test]
fn unreadable_directory_is_listed_and_reported_as_error() {
    let scratch = tree(&["a/x", "b/y", "c/z"]);
    scratch.link("l", "b/y");
    deny(&scratch.path("b"), 0);
    let result = unprivileged(&scratch, || run(scratch.root(), ALL)).unwrap();
    assert_eq!(shown(&scratch, &result), "a/ b/ c/ a/x c/z");
    let denied = ("b".to_owned(), "Permission denied (os error 13)".to_owned());
    assert_eq!(errors(&scratch, &result), [denied]);
}

#[test]
fn unreadable_root_is_an_error_of_the_result() {
    let scratch = tree(&["b/y/z"]);
    deny(&scratch.path("b"), 0);
    let result = unprivileged(&scratch, || run(scratch.path("b"), ALL)).unwrap();
    assert_eq!(result.entries, []);
    assert_eq!(errors(&scratch, &result).len(), 1);
    let hidden = unprivileged(&scratch, || run(scratch.path("b/y"), ALL));
    assert_eq!(outcome(hidden), Outcome::Invalid);
}

#[test]
fn names_that_cannot_be_inspected_are_reported_as_errors() {
    let scratch = tree(&["b/d/x", "b/y"]);
    scratch.link("b/l", "y");
    deny(&scratch.path("b"), 0o444);
    let result = unprivileged(&scratch, || run(scratch.root(), ALL)).unwrap();
    assert_eq!(shown(&scratch, &result), "b/");
    let errors = errors(&scratch, &result);
    let paths: Vec<_> = errors.iter().map(|error| error.0.as_str()).collect();
    assert_eq!(paths, ["b/d", "b/y"]);
}

#[test]
fn unreadable_directory_counts_as_one_directory() {
    let scratch = tree(&["a/x", "b/y"]);
    deny(&scratch.path("a"), 0);
    let options = WalkOptions {
        max_directories: 2,
        ..ALL
    };
    let result = unprivileged(&scratch, || run(scratch.root(), options)).unwrap();
    assert_eq!(shown(&scratch, &result), "a/ b/ …");
}

#[test]
fn very_deep_tree_is_listed_up_to_the_limit() {
    let scratch = TestDir::new();
    let top = scratch.deep("deep", 200);
    let result = run(top, ALL).unwrap();
    assert_eq!((result.entries.len(), result.truncated), (65, false));
}

#[test]
fn directories_read_in_parallel_are_listed_in_order() {
    let scratch = TestDir::new();
    for number in 0..150 {
        scratch.file(format!("{number:03}/x"), "");
        scratch.file(format!("{number:03}/y"), "");
    }
    let directories = (0..150).map(|number| format!("{number:03}/"));
    let files = (0..150).map(|number| format!("{number:03}/x {number:03}/y"));
    let all: Vec<String> = directories.chain(files).collect();
    let all = all.join(" ");
    assert_eq!(listed(&scratch, ALL), all);
    for max_entries in [149, 150, 151, 290, 449] {
        let options = WalkOptions { max_entries, ..ALL };
        let first: Vec<&str> = all.split(' ').take(max_entries).chain(["…"]).collect();
        assert_eq!(listed(&scratch, options), first.join(" "));
    }
}

#[test]
fn wide_tree_needs_few_descriptors() {
    let scratch = TestDir::new();
    for number in 0..400 {
        scratch.directory(format!("{number:03}/x"));
    }
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let is_done = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(open());
            }
            most
        });
        for options in [ALL, FOLLOW] {
            assert_eq!(run(scratch.root(), options).unwrap().entries.len(), 800);
        }
        is_done.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    });
    assert!(most < 100, "{most} descriptors were open");
}

#[test]
fn queued_directory_that_became_a_link_is_not_entered() {
    let scratch = tree(&["outside/secret/file", "tree/file"]);
    scratch.link("tree/a", "../outside");
    for below in ["a", "a/secret", "file", "gone"] {
        assert_eq!(
            queued(&scratch, below, None),
            WalkResult::default(),
            "{below}"
        );
    }
}

#[test]
fn queued_directory_that_was_replaced_is_not_entered() {
    let scratch = tree(&["outside/file", "tree/"]);
    scratch.link("tree/a", "../outside");
    let (then, now) = (scratch.path("tree"), scratch.path("outside"));
    let identity = |path: &Path| InodeId::of(open_directory(path)).ok();
    assert_eq!(
        queued(&scratch, "a", identity(&then)),
        WalkResult::default()
    );
    assert_eq!(queued(&scratch, "a", identity(&now)).entries.len(), 1);
}

/// Walks from a directory of `tree` that was queued before.
fn queued(scratch: &TestDir, below: &str, identity: Option<InodeId>) -> WalkResult {
    let (options, links) = match identity {
        Some(_) => (FOLLOW, LinkPolicy::Follow),
        None => (ALL, LinkPolicy::Refuse),
    };
    let path = scratch.path("tree");
    let mut walker = TreeWalker::new(options, DescentRoot::open(&path, links).unwrap());
    walker.queue.push_back(PendingDirectory {
        below: below.into(),
        uri: uri(path.join(below)),
        depth: 1,
        identity,
    });
    walker.run(&CancelFlag::default()).unwrap()
}

#[test]
fn missing_opaque_root_is_not_found() {
    let request = WalkTree {
        path: PathUri::from_native(Path::new("/C:/none")).unwrap(),
        options: ALL,
        sandbox: None,
    };
    assert_eq!(
        outcome(walk(&request, &CancelFlag::default())),
        Outcome::NotFound
    );
}

#[test]
fn opaque_directory_is_reported_as_error() {
    let scratch = tree(&["a", "b"]);
    let mut walker = TreeWalker::new(
        ALL,
        DescentRoot::open(scratch.root(), LinkPolicy::Refuse).unwrap(),
    );
    let opaque = PathUri::from_native(Path::new("/C:")).unwrap();
    walker.queue.push_back(PendingDirectory {
        below: Vec::new(),
        uri: opaque.clone(),
        depth: 0,
        identity: None,
    });
    let result = walker.run(&CancelFlag::default()).unwrap();
    let [error] = &result.errors[..] else {
        panic!("{result:?}");
    };
    assert_eq!((&error.path, result.entries.len()), (&opaque, 0));
}
