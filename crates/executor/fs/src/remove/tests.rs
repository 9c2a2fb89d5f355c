use std::{ffi::OsString, fs, os::unix::net::UnixListener};

use super::*;
use crate::test_dir::{Outcome, TestDir, names, odd_name, open_directory, outcome, text, uri};

fn request(path: &Path) -> RemovePath {
    RemovePath {
        path: uri(path),
        recursive: None,
        force: None,
        follow_symlinks: None,
        sandbox: None,
    }
}

fn removed(remove: &RemovePath) -> Outcome {
    outcome(super::remove(remove, &CancelFlag::default()))
}

fn visit(name: &str) -> RemovalVisit {
    RemovalVisit {
        name: OsString::from(name),
        refilled: 0,
    }
}

#[test]
fn every_file_type_is_removed() {
    let scratch = TestDir::new();
    let _listener = UnixListener::bind(scratch.path("socket")).unwrap();
    let paths = [
        scratch.file("file", ""),
        scratch.file(odd_name(), ""),
        scratch.fifo("fifo"),
        scratch.directory("directory"),
        scratch.link("dangling", "nowhere"),
        scratch.path("socket"),
    ];
    for path in paths {
        assert_eq!(removed(&request(&path)), Outcome::Done, "{path:?}");
    }
    assert!(names(scratch.root()).is_empty());
}

#[test]
fn tree_is_removed_with_its_contents() {
    let scratch = TestDir::new();
    let tree = scratch.directory("tree");
    for index in 0..300 {
        scratch.file(format!("tree/{}/{}/file {index}", index % 3, index % 7), "");
    }
    scratch.file(Path::new("tree/x").join(odd_name()), "");
    scratch.fifo("tree/x/fifo");
    scratch.directory("tree/x/empty");
    assert_eq!(removed(&request(&tree)), Outcome::Done);
    assert!(!tree.exists());
}

#[test]
fn link_target_is_never_touched() {
    let scratch = TestDir::new();
    let kept = scratch.file("kept/file", "content");
    let link = scratch.link("link", "kept");
    scratch.directory("tree/a");
    scratch.link("tree/a/link", "../../kept");
    scratch.link("tree/file", "../kept/file");
    assert_eq!(removed(&request(&link)), Outcome::Done);
    assert_eq!(removed(&request(&scratch.path("tree"))), Outcome::Done);
    assert_eq!(names(scratch.root()), ["kept"]);
    assert_eq!(fs::read(kept).unwrap(), b"content");
}

#[test]
fn link_in_the_parent_path_is_followed() {
    let scratch = TestDir::new();
    scratch.file("real/a/file", "");
    scratch.link("link", "real");
    assert_eq!(removed(&request(&scratch.path("link/a"))), Outcome::Done);
    assert!(names(&scratch.path("real")).is_empty());
}

#[test]
fn missing_path_is_an_error_only_without_force() {
    let scratch = TestDir::new();
    for name in ["none", "none/below"] {
        let request = request(&scratch.path(name));
        assert_eq!(removed(&request), Outcome::Done);
        let force = Some(false);
        assert_eq!(removed(&RemovePath { force, ..request }), Outcome::NotFound);
    }
    let through_file = scratch.file("file", "").join("x");
    assert_eq!(removed(&request(&through_file)), Outcome::Host);
}

#[test]
fn only_empty_directory_is_removed_without_recursive() {
    let scratch = TestDir::new();
    let file = scratch.file("a/file", "");
    let recursive = Some(false);
    let alone = |path: &Path| RemovePath {
        recursive,
        ..request(path)
    };
    assert_eq!(removed(&alone(&scratch.path("a"))), Outcome::Host);
    assert_eq!(removed(&alone(&file)), Outcome::Done);
    assert_eq!(removed(&alone(&scratch.path("a"))), Outcome::Done);
}

#[test]
fn root_is_never_removed() {
    assert_eq!(removed(&request(Path::new("/"))), Outcome::Invalid);
}

#[test]
fn forbidden_removal_is_invalid() {
    // Not permitted, not even for root.
    assert_eq!(
        removed(&request(Path::new("/proc/version"))),
        Outcome::Invalid
    );
}

#[test]
fn tree_removal_without_links_is_unsupported_and_links_are_rejected() {
    let scratch = TestDir::new();
    let root = fs::canonicalize(scratch.root()).unwrap();
    scratch.file("real/file", "");
    scratch.link("last", "real/file");
    scratch.link("above", "real");
    let whole = RemovePath {
        follow_symlinks: Some(false),
        ..request(&root.join("real"))
    };
    let unsupported = super::remove(&whole, &CancelFlag::default());
    assert!(text(unsupported.clone()).contains("unsupported"));
    assert_eq!(outcome(unsupported), Outcome::Host);

    let alone = |name: &str| {
        let remove = RemovePath {
            recursive: Some(false),
            follow_symlinks: Some(false),
            ..request(&root.join(name))
        };
        super::remove(&remove, &CancelFlag::default())
    };
    assert!(text(alone("last")).contains("path contains a symbolic link"));
    assert_eq!(outcome(alone("last")), Outcome::Invalid);
    assert!(text(alone("above/file")).contains("os error 20"));
    assert_eq!(outcome(alone("above/file")), Outcome::Host);
    assert_eq!(outcome(alone("none")), Outcome::Done);
    assert_eq!(outcome(alone("real")), Outcome::Host);
    assert_eq!(outcome(alone("real/file")), Outcome::Done);
    assert_eq!(outcome(alone("real")), Outcome::Done);
}

#[test]
fn tree_deeper_than_the_path_limit_is_removed() {
    let scratch = TestDir::new();
    let tree = scratch.deep("tree", 3000);
    assert_eq!(removed(&request(&tree)), Outcome::Done);
    assert!(names(scratch.root()).is_empty());
}

#[test]
fn directory_that_became_a_link_is_removed_but_not_followed() {
    let scratch = TestDir::new();
    let kept = scratch.file("kept/file", "content");
    scratch.link("tree", "kept");
    let stop = CancelFlag::default();
    let path = scratch.path("tree");
    let tree = TreeRemoval::new(&path, open_directory(scratch.root()), &stop);
    tree.remove(OsString::from("tree")).unwrap();
    assert_eq!(names(scratch.root()), ["kept"]);
    assert!(kept.exists());
}

#[test]
fn vanished_directory_counts_as_removed() {
    let scratch = TestDir::new();
    let stop = CancelFlag::default();
    let path = scratch.path("tree");
    let tree = TreeRemoval::new(&path, open_directory(scratch.root()), &stop);
    assert_eq!(tree.remove(OsString::from("tree")), Ok(()));
}

#[test]
fn refilled_directory_is_emptied_again_a_limited_number_of_times() {
    let scratch = TestDir::new();
    let path = scratch.directory("tree");
    let stop = CancelFlag::default();
    let mut tree = TreeRemoval::new(&path, open_directory(scratch.root()), &stop);
    let mut next = visit("tree");
    for refilled in 1..=MAX_REFILLED {
        tree.enter(next).unwrap();
        scratch.file("tree/added", "");
        let entered = tree.entered.pop().unwrap();
        next = tree.leave(entered.visit).unwrap().unwrap();
        assert_eq!(next.refilled, refilled);
    }
    tree.enter(next).unwrap();
    assert!(names(&path).is_empty());
    scratch.file("tree/added", "");
    let entered = tree.entered.pop().unwrap();
    assert_eq!(outcome(tree.leave(entered.visit)), Outcome::Host);
}

#[test]
fn error_names_the_entry_that_could_not_be_removed() {
    let scratch = TestDir::new();
    scratch.directory("tree/a/b");
    let path = scratch.path("tree");
    let stop = CancelFlag::default();
    let mut tree = TreeRemoval::new(&path, open_directory(scratch.root()), &stop);
    for name in ["tree", "a", "b"] {
        tree.enter(visit(name)).unwrap();
    }
    let error = tree.host_error(OsStr::new("c"), Errno::IO);
    let named = format!("cannot remove `{}`: ", path.join("a/b/c").display());
    assert!(error.to_string().starts_with(&named), "{error}");
}

#[test]
fn cancelled_operation_stops() {
    let scratch = TestDir::new();
    let file = scratch.file("tree/file", "");
    let stop = CancelFlag::default();
    stop.cancel();
    let stopped = super::remove(&request(&scratch.path("tree")), &stop);
    assert_eq!(outcome(stopped), Outcome::Host);
    assert!(file.exists());
}
