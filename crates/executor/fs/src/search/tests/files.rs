//! Which files are searched, and in which order.

use std::{fs, os::unix::fs::PermissionsExt};

use super::*;
use crate::scratch::{Outcome, odd_name, outcome, text, unprivileged, within_seconds};

#[test]
fn matches_are_sorted_by_path_and_line() {
    let scratch = Scratch::new();
    for name in ["b", "a.x", "a/c", "a-b/c"] {
        scratch.file(name, "x\nx\n");
    }
    let expected = [
        "a-b/c:1:1:x",
        "a-b/c:2:1:x",
        "a.x:1:1:x",
        "a.x:2:1:x",
        "a/c:1:1:x",
        "a/c:2:1:x",
        "b:1:1:x",
        "b:2:1:x",
    ];
    assert_eq!(found(&scratch, "x"), expected);
}

#[test]
fn many_files_are_searched_in_order() {
    let scratch = Scratch::new();
    let mut expected = Vec::new();
    for number in 0..1000 {
        // Some take longer than others.
        let filler = "filler\n".repeat(if number % 7 == 0 { 5000 } else { 1 });
        scratch.file(
            format!("{}/{number:04}", number / 100),
            format!("{filler}x\n"),
        );
        expected.push(format!("{}/{number:04}", number / 100));
    }
    for wanted in [1, 70, 999, 1000] {
        let mut request = request(&scratch, "x");
        request.max_matches = wanted;
        let result = run(&request).unwrap();
        assert_eq!(result.truncated, wanted < 1000, "{wanted}");
        let result = Ok(result);
        let lines = shown(&scratch, result);
        let files: Vec<_> = lines
            .iter()
            .filter_map(|line| line.split(':').next())
            .collect();
        assert_eq!(files[..wanted], expected[..wanted], "{wanted}");
    }
}

#[test]
fn ignored_hidden_and_linked_files_are_not_searched() {
    let scratch = Scratch::new();
    for name in ["a", ".b", "c.log", "node_modules/d"] {
        scratch.file(name, "x\n");
    }
    scratch.file(".gitignore", "*.log\nnode_modules\n");
    scratch.link("e", "a");
    scratch.link("f", "node_modules");
    assert_eq!(found(&scratch, "x"), ["a:1:1:x"]);
}

#[test]
fn a_single_file_is_searched_whatever_it_is_called() {
    let scratch = Scratch::new();
    scratch.file(".a.log", "x\n");
    scratch.file(".gitignore", "*.log\n");
    scratch.link("link", ".a.log");
    for name in [".a.log", "link"] {
        let mut request = request(&scratch, "x");
        request.path = uri(scratch.path(name));
        assert_eq!(shown(&scratch, run(&request)), [format!("{name}:1:1:x")]);
        request.glob = Some("*.txt".to_owned());
        assert_eq!(shown(&scratch, run(&request)), [""; 0]);
    }
}

#[test]
fn a_glob_chooses_files() {
    let scratch = Scratch::new();
    for name in ["a.rs", "b/c.rs", "b/d.txt"] {
        scratch.file(name, "x\n");
    }
    let mut request = request(&scratch, "x");
    request.glob = Some("*.rs".to_owned());
    assert_eq!(
        shown(&scratch, run(&request)),
        ["a.rs:1:1:x", "b/c.rs:1:1:x"]
    );
    request.glob = Some("b/*".to_owned());
    assert_eq!(
        shown(&scratch, run(&request)),
        ["b/c.rs:1:1:x", "b/d.txt:1:1:x"]
    );
}

#[test]
fn binary_files_are_passed_over() {
    let scratch = Scratch::new();
    scratch.file("a", b"x\n\0x\n");
    scratch.file("b", "x\n");
    assert_eq!(found(&scratch, "x"), ["b:1:1:x"]);
    let late = format!("x\n{}\0\nx\n", "a\n".repeat(200_000));
    scratch.file("c", late);
    assert_eq!(
        found(&scratch, "x"),
        ["b:1:1:x", "c:1:1:x"],
        "until it shows"
    );
}

#[test]
fn utf_16_is_text() {
    let scratch = one(b"\xff\xfea\0x\0\n\0");
    assert_eq!(found(&scratch, "x"), ["f:1:2:ax"]);
}

#[test]
fn names_need_not_be_text() {
    let scratch = Scratch::new();
    scratch.file(odd_name(), "x\n");
    assert_eq!(found(&scratch, "x"), ["odd%20%FF%3F%23%25:1:1:x"]);
}

#[test]
fn pipes_are_neither_searched_nor_waited_for() {
    let scratch = Scratch::new();
    scratch.file("a", "x\n");
    let pipe = scratch.fifo("pipe");
    let results = within_seconds(move || {
        let mut alone = request(&scratch, "x");
        alone.path = uri(pipe);
        let all = found(&scratch, "x");
        (run(&alone), all)
    });
    assert_eq!(results.1, ["a:1:1:x"]);
    assert!(text(results.0.clone()).contains("neither a file nor a directory"));
    assert_eq!(outcome(results.0), Outcome::Invalid);
}

#[test]
fn files_that_cannot_be_read_are_passed_over() {
    let scratch = Scratch::new();
    let secret = scratch.file("a", "x\n");
    scratch.file("b", "x\n");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o0)).unwrap();
    let lines = unprivileged(&scratch, || found(&scratch, "x"));
    assert_eq!(lines, ["b:1:1:x"]);
    let mut alone = request(&scratch, "x");
    alone.path = uri(&secret);
    let refused = unprivileged(&scratch, || run(&alone));
    assert_eq!(outcome(refused), Outcome::Invalid);
}

#[test]
fn a_missing_root_is_not_found() {
    let scratch = Scratch::new();
    scratch.link("dangling", "nowhere");
    for name in ["none", "dangling"] {
        let mut request = request(&scratch, "x");
        request.path = uri(scratch.path(name));
        assert_eq!(outcome(run(&request)), Outcome::NotFound);
    }
}
