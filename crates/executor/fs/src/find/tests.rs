use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{FindPaths, FoundPaths},
    limits,
};

use super::find;
use crate::{
    cancel_flag::CancelFlag,
    test_dir::{Outcome, TestDir, odd_name, outcome, text, uri},
};

fn tree(files: &[&str]) -> TestDir {
    let scratch = TestDir::new();
    for name in files {
        scratch.file(name, "");
    }
    scratch
}

fn request(scratch: &TestDir) -> FindPaths {
    FindPaths {
        path: uri(scratch.root()),
        glob: None,
        query: None,
        max_results: 100,
        sandbox: None,
    }
}

fn by_glob(scratch: &TestDir, glob: &str) -> String {
    let mut request = request(scratch);
    request.glob = Some(glob.to_owned());
    shown(scratch, run(&request))
}

fn by_query(scratch: &TestDir, query: &str) -> String {
    let mut request = request(scratch);
    request.query = Some(query.to_owned());
    shown(scratch, run(&request))
}

fn run(request: &FindPaths) -> Result<FoundPaths, FileError> {
    find(request, &CancelFlag::default())
}

/// Formats the paths relative to the root, with an ellipsis if truncated.
fn shown(scratch: &TestDir, result: Result<FoundPaths, FileError>) -> String {
    let result = result.unwrap();
    let root = format!("{}/", uri(scratch.root()));
    let below = |path: &exec_wire::path_uri::PathUri| {
        let below = path.as_str().strip_prefix(&root).unwrap();
        below.to_owned()
    };
    let mut names: Vec<String> = result.paths.iter().map(below).collect();
    if result.truncated {
        names.push("…".to_owned());
    }
    names.join(" ")
}

fn refused(request: &FindPaths) -> String {
    match run(request) {
        Err(FileError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn glob_without_a_slash_matches_names_at_any_depth() {
    let scratch = tree(&["a.rs", "b/c.rs", "b/d/e.rs", "b.rs/f.txt"]);
    assert_eq!(by_glob(&scratch, "*.rs"), "a.rs b.rs b/c.rs b/d/e.rs");
    assert_eq!(by_glob(&scratch, "/*.rs"), "a.rs b.rs", "from the root");
}

#[test]
fn glob_with_a_slash_matches_the_relative_path() {
    let scratch = tree(&["a/x.rs", "a/b/x.rs", "c/a/x.rs"]);
    assert_eq!(by_glob(&scratch, "a/*.rs"), "a/x.rs");
    assert_eq!(by_glob(&scratch, "a/**/*.rs"), "a/b/x.rs a/x.rs");
    assert_eq!(by_glob(&scratch, "**/a/*.rs"), "a/x.rs c/a/x.rs");
    assert_eq!(by_glob(&scratch, "{a,c}/?"), "a/b c/a", "directories, too");
}

#[test]
fn glob_returns_the_first_paths() {
    let scratch = tree(&["a/x", "a.x", "b.x", "c.x"]);
    let mut request = request(&scratch);
    request.glob = Some("*.x".to_owned());
    request.max_results = 2;
    assert_eq!(shown(&scratch, run(&request)), "a.x b.x …");
    request.max_results = 3;
    assert_eq!(shown(&scratch, run(&request)), "a.x b.x c.x");
}

#[test]
fn non_utf8_names_are_found() {
    let scratch = TestDir::new();
    scratch.file(odd_name(), "");
    scratch.file(OsStr::from_bytes(b"\xfe.rs"), "");
    assert_eq!(by_glob(&scratch, "odd ??#%"), "odd%20%FF%3F%23%25");
    assert_eq!(by_glob(&scratch, "odd *"), "odd%20%FF%3F%23%25");
    assert_eq!(by_glob(&scratch, "*.rs"), "%FE.rs");
    assert_eq!(by_query(&scratch, "od#"), "odd%20%FF%3F%23%25");
}

#[test]
fn ignored_and_hidden_files_are_not_found() {
    let scratch = tree(&["a.x", "b.x", ".c.x"]);
    scratch.file(".gitignore", "b.x\n");
    assert_eq!(by_glob(&scratch, "*"), "a.x");
    assert_eq!(by_query(&scratch, "x"), "a.x");
}

#[test]
fn query_matches_letters_in_order() {
    let scratch = tree(&["src/main.rs", "niam.rs", "src/lib.rs"]);
    assert_eq!(by_query(&scratch, "srcmn"), "src/main.rs");
    assert_eq!(by_query(&scratch, "src mn"), "src/main.rs");
    assert_eq!(by_query(&scratch, "mn src"), "");
}

#[test]
fn capital_in_a_query_is_case_sensitive() {
    let scratch = tree(&["Readme", "readme"]);
    assert_eq!(by_query(&scratch, "readme"), "Readme readme");
    assert_eq!(by_query(&scratch, "Readme"), "Readme");
}

#[test]
fn best_match_comes_first() {
    let scratch = tree(&["f/o/o", "xfxoxo", "foo", "src/foo"]);
    let found = by_query(&scratch, "foo");
    assert!(found.starts_with("foo src/foo "), "{found}");
    assert!(found.ends_with("xfxoxo"), "{found}");
}

#[test]
fn shorter_path_comes_first_among_equal_scores() {
    let scratch = tree(&["ab-long", "ab-c", "ab-b", "ab"]);
    assert_eq!(by_query(&scratch, "ab"), "ab ab-b ab-c ab-long");
}

#[test]
fn query_keeps_the_best_matches() {
    let names: Vec<String> = (0..50).map(|number| format!("a{number:02}b")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.push("z/ab");
    let scratch = tree(&names);
    let mut request = request(&scratch);
    request.query = Some("ab".to_owned());
    request.max_results = 2;
    assert_eq!(shown(&scratch, run(&request)), "z/ab a00b …");
    request.max_results = 51;
    assert!(!run(&request).unwrap().truncated);
}

#[test]
fn empty_query_returns_everything_shortest_first() {
    let scratch = tree(&["aaa", "b/c"]);
    assert_eq!(by_query(&scratch, " "), "b aaa b/c");
}

#[test]
fn exactly_one_of_glob_and_query_is_needed() {
    let mut request = request(&TestDir::new());
    assert!(refused(&request).contains("exactly one"));
    request.glob = Some("a".to_owned());
    request.query = Some("a".to_owned());
    assert!(refused(&request).contains("exactly one"));
}

#[test]
fn result_limit_out_of_range_is_rejected() {
    let scratch = TestDir::new();
    let mut request = request(&scratch);
    request.query = Some("a".to_owned());
    for (max_results, is_refused) in [(0, true), (1, false), (10_000, false), (10_001, true)] {
        request.max_results = max_results;
        assert_eq!(run(&request).is_err(), is_refused, "{max_results}");
    }
}

#[test]
fn invalid_globs_and_queries_are_rejected() {
    let mut request = request(&TestDir::new());
    for glob in [
        "[a",
        "{a",
        "[b-a]",
        &"a".repeat(limits::MAX_PATTERN_BYTES + 1),
    ] {
        request.glob = Some(glob.to_owned());
        assert!(refused(&request).starts_with("glob "), "{glob}");
    }
    request.glob = None;
    request.query = Some("a".repeat(limits::MAX_PATTERN_BYTES + 1));
    assert!(refused(&request).starts_with("query "));
}

#[test]
fn root_that_is_not_a_directory_is_an_error() {
    let scratch = tree(&["file"]);
    let mut request = request(&scratch);
    request.glob = Some("*".to_owned());
    request.path = uri(scratch.path("file"));
    assert_eq!(outcome(run(&request)), Outcome::Invalid);
    request.path = uri(scratch.path("none"));
    assert_eq!(outcome(run(&request)), Outcome::NotFound);
    assert!(text(run(&request)).contains("none"));
}

#[test]
fn cancelled_operation_returns_an_error() {
    let scratch = tree(&["file"]);
    let mut request = request(&scratch);
    request.glob = Some("*".to_owned());
    let stop = CancelFlag::default();
    stop.cancel();
    assert_eq!(outcome(find(&request, &stop)), Outcome::Host);
}
