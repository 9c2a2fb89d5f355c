//! How much is answered.

use grep_regex::RegexMatcher;
use grep_searcher::Searcher;

use super::{
    super::lines::{Line, Lines},
    *,
};
use crate::scratch::{Outcome, outcome};

#[test]
fn the_matches_wanted_are_the_first_ones() {
    let scratch = Scratch::new();
    scratch.file("a", "x\nx\n");
    scratch.file("b", "x\n");
    let matches = |max_matches| {
        let mut request = request(&scratch, "x");
        request.max_matches = max_matches;
        shown(&scratch, run(&request))
    };
    assert_eq!(matches(1), ["a:1:1:x", "…"]);
    assert_eq!(matches(2), ["a:1:1:x", "a:2:1:x", "…"]);
    assert_eq!(matches(3), ["a:1:1:x", "a:2:1:x", "b:1:1:x"]);
}

#[test]
fn long_lines_are_cut_between_characters() {
    let most = limits::MAX_SEARCH_LINE_BYTES;
    let scratch = one(format!("x{}\n", "é".repeat(most)));
    let result = run(&request(&scratch, "x")).unwrap();
    assert_eq!(
        result.matches[0].text,
        format!("x{}", "é".repeat(most / 2 - 1))
    );
    let scratch = one([b"x".repeat(most), b"\xff".repeat(most)].concat());
    let result = run(&request(&scratch, "x$|\\x78")).unwrap();
    assert_eq!(result.matches[0].text, "x".repeat(most));
    let scratch = one([&b"\xff".repeat(most)[..], b"x"].concat());
    let found = &run(&request(&scratch, "x")).unwrap().matches[0];
    assert_eq!(
        found.text,
        "\u{fffd}".repeat(most / 3),
        "what replaces a byte has three"
    );
    assert_eq!(found.column, u64::try_from(most).unwrap() + 1);
}

#[test]
fn a_line_without_end_does_not_fill_memory() {
    let scratch = Scratch::new();
    scratch.file(
        "a",
        [&b"x\n"[..], &b"y".repeat(20 << 20), b"x\nx\n"].concat(),
    );
    scratch.file("b", "x\n");
    assert_eq!(found(&scratch, "x"), ["a:1:1:x", "b:1:1:x", "…"]);
}

#[test]
fn the_answer_is_bounded() {
    let scratch = Scratch::new();
    let content = format!("{}\n", "x".repeat(2000)).repeat(3000);
    for name in ["a", "b", "c"] {
        scratch.file(name, &content);
    }
    let mut request = request(&scratch, "x");
    request.max_matches = limits::MAX_SEARCH_MATCHES;
    let result = run(&request).unwrap();
    let each = 2000 + 32 + result.matches[0].path.as_str().len();
    assert_eq!(result.matches.len(), limits::MAX_SEARCH_BYTES / each);
    assert!(result.truncated);
    assert_eq!(result.matches[1].line, 2, "it has the first of them");
}

#[test]
fn no_file_is_gathered_beyond_what_an_answer_holds() {
    let matcher = RegexMatcher::new("x").unwrap();
    let text = format!("{}\n", "x".repeat(4000)).repeat(3000);
    let mut lines = Lines::new(&matcher, 0);
    let searched = Searcher::new().search_slice(&matcher, text.as_bytes(), &mut lines);
    searched.unwrap();
    let bytes: usize = lines.into_found().iter().map(Line::bytes).sum();
    assert!(bytes < limits::MAX_SEARCH_BYTES + 2 * 4000, "{bytes}");
}

#[test]
fn the_lines_around_count_too() {
    let scratch = one(format!("{}\n", "x".repeat(4000)).repeat(1000));
    let mut request = request(&scratch, "x");
    request.max_matches = 1000;
    request.context_lines = 100;
    let result = run(&request).unwrap();
    let bytes: usize = result
        .matches
        .iter()
        .flat_map(|found| found.before.iter().chain(&found.after).chain([&found.text]))
        .map(String::len)
        .sum();
    assert!(result.truncated);
    assert!((1..=limits::MAX_SEARCH_BYTES).contains(&bytes), "{bytes}");
}

#[test]
fn whoever_does_not_wait_gets_nothing() {
    let scratch = one("x\n");
    let stop = Stop::default();
    stop.ask();
    assert_eq!(
        outcome(search(&request(&scratch, "x"), &stop)),
        Outcome::Host
    );
}
