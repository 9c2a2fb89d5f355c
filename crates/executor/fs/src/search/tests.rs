//! Matches, their format, and rejected requests.

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{SearchMatch, SearchResult, SearchText},
    limits,
};

use super::search;
use crate::{
    cancel_flag::CancelFlag,
    test_dir::{TestDir, uri},
};

mod files;

fn request(scratch: &TestDir, pattern: &str) -> SearchText {
    SearchText {
        path: uri(scratch.root()),
        pattern: pattern.to_owned(),
        regex: true,
        case_sensitive: true,
        glob: None,
        max_matches: 100,
        context_lines: 0,
        sandbox: None,
    }
}

fn run(request: &SearchText) -> Result<SearchResult, FileError> {
    search(request, &CancelFlag::default())
}

/// Formats matches as `path:line:column:text`, with an ellipsis if truncated.
fn displayed(scratch: &TestDir, result: Result<SearchResult, FileError>) -> Vec<String> {
    let result = result.unwrap();
    let mut lines: Vec<String> = result
        .matches
        .iter()
        .map(|found| line(scratch, found))
        .collect();
    if result.truncated {
        lines.push("…".to_owned());
    }
    lines
}

fn line(scratch: &TestDir, found: &SearchMatch) -> String {
    let root = format!("{}/", uri(scratch.root()));
    let below = found.path.as_str().strip_prefix(&root).unwrap();
    format!("{below}:{}:{}:{}", found.line, found.column, found.text)
}

/// Searches for a regular expression.
fn found(scratch: &TestDir, pattern: &str) -> Vec<String> {
    displayed(scratch, run(&request(scratch, pattern)))
}

fn refused(request: &SearchText) -> String {
    match run(request) {
        Err(FileError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// Creates a directory with one file.
fn one(content: impl AsRef<[u8]>) -> TestDir {
    let scratch = TestDir::new();
    scratch.file("f", content);
    scratch
}

#[test]
fn each_matching_line_is_reported_once_with_its_first_column() {
    let scratch = one("one\n  two two\nthree\ntwo");
    assert_eq!(found(&scratch, "two"), ["f:2:3:  two two", "f:4:1:two"]);
    assert_eq!(found(&scratch, "^t.o$"), ["f:4:1:two"]);
    assert_eq!(found(&scratch, "é"), [""; 0]);
}

#[test]
fn columns_are_counted_in_bytes() {
    assert_eq!(found(&one("éa\n"), "a"), ["f:1:3:éa"]);
}

#[test]
fn line_ends_are_not_part_of_lines() {
    let scratch = one("a;\r\nb;\n\r\nc;");
    assert_eq!(found(&scratch, ";$"), ["f:1:2:a;", "f:2:2:b;", "f:4:2:c;"]);
    assert_eq!(found(&scratch, "^$"), ["f:3:1:"]);
}

#[test]
fn plain_text_is_not_a_regular_expression() {
    let scratch = one("a.c\nabc\n(\n");
    let mut request = request(&scratch, "a.c");
    request.regex = false;
    assert_eq!(displayed(&scratch, run(&request)), ["f:1:1:a.c"]);
    request.pattern = "(".to_owned();
    assert_eq!(displayed(&scratch, run(&request)), ["f:3:1:("]);
}

#[test]
fn case_sensitivity_is_optional() {
    let scratch = one("É\né\n");
    let mut request = request(&scratch, "é");
    assert_eq!(displayed(&scratch, run(&request)), ["f:2:1:é"]);
    request.case_sensitive = false;
    assert_eq!(displayed(&scratch, run(&request)), ["f:1:1:É", "f:2:1:é"]);
    request.regex = false;
    assert_eq!(displayed(&scratch, run(&request)).len(), 2);
}

#[test]
fn invalid_utf8_is_replaced() {
    let scratch = one(b"a\xffb\n");
    assert_eq!(found(&scratch, "b"), ["f:1:3:a\u{fffd}b"]);
}

#[test]
fn no_match_spans_several_lines() {
    let scratch = one("a\nb\n");
    assert_eq!(found(&scratch, r"a\s*b"), [""; 0]);
    assert_eq!(found(&scratch, r"(?s)a.*b"), [""; 0]);
    let mut request = request(&scratch, "a\nb");
    assert!(refused(&request).contains("line break"));
    request.regex = false;
    assert!(refused(&request).contains("line break"));
    request.regex = true;
    request.pattern = r"a\nb".to_owned();
    assert!(refused(&request).contains("pattern cannot be used"));
}

#[test]
fn context_lines_are_included() {
    let scratch = one("1\n2\n3 x\n4\n5\n6\n7\n8\n9 x");
    let mut request = request(&scratch, "x");
    request.context_lines = 2;
    let result = run(&request).unwrap();
    let [first, second] = &result.matches[..] else {
        panic!("{result:?}");
    };
    assert_eq!(
        (&first.before[..], &first.after[..]),
        (
            &["1", "2"].map(String::from)[..],
            &["4", "5"].map(String::from)[..]
        )
    );
    assert_eq!(
        (&second.before[..], &second.after[..]),
        (&["7", "8"].map(String::from)[..], &[][..])
    );
}

#[test]
fn match_can_be_context_of_another() {
    let scratch = one("a x\r\nb x\r\nc\r\nd x\r\n");
    let mut request = request(&scratch, "x");
    request.context_lines = 2;
    let result = run(&request).unwrap();
    let around: Vec<String> = result
        .matches
        .iter()
        .map(|found| {
            format!(
                "{} | {} | {}",
                found.before.join(","),
                found.text,
                found.after.join(",")
            )
        })
        .collect();
    assert_eq!(
        around,
        [" | a x | b x,c", "a x | b x | c,d x", "b x,c | d x | "]
    );
}

#[test]
fn the_last_match_wanted_has_its_lines_after() {
    let scratch = one("x\na\nx\nb\n");
    let mut request = request(&scratch, "x");
    request.context_lines = 3;
    request.max_matches = 1;
    let result = run(&request).unwrap();
    assert_eq!(result.matches[0].after, ["a", "x", "b"]);
    assert!(result.truncated);
}

#[test]
fn broken_patterns_are_refused_with_the_reason() {
    let scratch = one("");
    assert!(refused(&request(&scratch, "(a")).contains("unclosed group"));
    let long = "a".repeat(limits::MAX_PATTERN_BYTES + 1);
    assert!(refused(&request(&scratch, &long)).contains("longer than 16384 bytes"));
    let mut request = request(&scratch, "a");
    request.glob = Some("[b-a]".to_owned());
    assert!(refused(&request).starts_with("glob cannot be used: "));
}

#[test]
fn pattern_that_would_exhaust_memory_is_rejected() {
    for pattern in [r"(a{1000}){1000}", r"\pL{1000}{1000}", r"(\w{500}|b){500}"] {
        let text = refused(&request(&one(""), pattern));
        assert!(text.contains("size limit"), "{text}");
    }
}

#[test]
fn catastrophic_pattern_takes_linear_time() {
    let scratch = one(format!("{}\n", "a".repeat(200_000)));
    assert_eq!(found(&scratch, "(a*)*(a*)*b"), [""; 0]);
}

#[test]
fn numbers_out_of_range_are_rejected() {
    let scratch = one("x");
    for (max_matches, is_refused) in [(0, true), (1, false), (10_000, false), (10_001, true)] {
        let mut request = request(&scratch, "x");
        request.max_matches = max_matches;
        assert_eq!(run(&request).is_err(), is_refused, "{max_matches}");
    }
    for (context_lines, is_refused) in [(100, false), (101, true)] {
        let mut request = request(&scratch, "x");
        request.context_lines = context_lines;
        assert_eq!(run(&request).is_err(), is_refused, "{context_lines}");
    }
}
