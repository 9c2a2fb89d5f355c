//! Which files are searched, in which order, and the limits of the answer.

use std::{fs, os::unix::fs::PermissionsExt};

use grep_regex::RegexMatcher;
use grep_searcher::Searcher;

use super::{
    super::{LineCollector, MatchedLine},
    *,
};
use crate::test_dir::{Outcome, odd_name, outcome, text, unprivileged, within_seconds};

#[test]
fn matches_are_sorted_by_path_and_line() {
    let scratch = TestDir::new();
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
    let scratch = TestDir::new();
    let mut expected = Vec::new();
    for number in 0..1000 {
        // Some files take longer than others.
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
        let lines = displayed(&scratch, result);
        let files: Vec<_> = lines
            .iter()
            .filter_map(|line| line.split(':').next())
            .collect();
        assert_eq!(files[..wanted], expected[..wanted], "{wanted}");
    }
}

#[test]
fn ignored_hidden_and_linked_files_are_not_searched() {
    let scratch = TestDir::new();
    for name in ["a", ".b", "c.log", "node_modules/d"] {
        scratch.file(name, "x\n");
    }
    scratch.file(".gitignore", "*.log\nnode_modules\n");
    scratch.link("e", "a");
    scratch.link("f", "node_modules");
    assert_eq!(found(&scratch, "x"), ["a:1:1:x"]);
}

#[test]
fn single_file_is_searched_regardless_of_its_name() {
    let scratch = TestDir::new();
    scratch.file(".a.log", "x\n");
    scratch.file(".gitignore", "*.log\n");
    scratch.link("link", ".a.log");
    for name in [".a.log", "link"] {
        let mut request = request(&scratch, "x");
        request.path = uri(scratch.path(name));
        assert_eq!(
            displayed(&scratch, run(&request)),
            [format!("{name}:1:1:x")]
        );
        request.glob = Some("*.txt".to_owned());
        assert_eq!(displayed(&scratch, run(&request)), [""; 0]);
    }
}

#[test]
fn glob_selects_files() {
    let scratch = TestDir::new();
    for name in ["a.rs", "b/c.rs", "b/d.txt"] {
        scratch.file(name, "x\n");
    }
    let mut request = request(&scratch, "x");
    request.glob = Some("*.rs".to_owned());
    assert_eq!(
        displayed(&scratch, run(&request)),
        ["a.rs:1:1:x", "b/c.rs:1:1:x"]
    );
    request.glob = Some("b/*".to_owned());
    assert_eq!(
        displayed(&scratch, run(&request)),
        ["b/c.rs:1:1:x", "b/d.txt:1:1:x"]
    );
}

#[test]
fn binary_files_are_skipped() {
    let scratch = TestDir::new();
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
fn utf_16_with_byte_order_mark_is_text() {
    let scratch = one(b"\xff\xfea\0x\0\n\0");
    assert_eq!(found(&scratch, "x"), ["f:1:2:ax"]);
}

#[test]
fn names_need_not_be_utf8() {
    let scratch = TestDir::new();
    scratch.file(odd_name(), "x\n");
    assert_eq!(found(&scratch, "x"), ["odd%20%FF%3F%23%25:1:1:x"]);
}

#[test]
fn pipes_are_skipped_without_blocking() {
    let scratch = TestDir::new();
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
fn unreadable_files_are_skipped() {
    let scratch = TestDir::new();
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
fn missing_root_is_not_found() {
    let scratch = TestDir::new();
    scratch.link("dangling", "nowhere");
    for name in ["none", "dangling"] {
        let mut request = request(&scratch, "x");
        request.path = uri(scratch.path(name));
        assert_eq!(outcome(run(&request)), Outcome::NotFound);
    }
}

#[test]
fn limit_keeps_the_first_matches() {
    let scratch = TestDir::new();
    scratch.file("a", "x\nx\n");
    scratch.file("b", "x\n");
    let matches = |max_matches| {
        let mut request = request(&scratch, "x");
        request.max_matches = max_matches;
        displayed(&scratch, run(&request))
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
fn overlong_line_does_not_exhaust_memory() {
    let scratch = TestDir::new();
    scratch.file(
        "a",
        [&b"x\n"[..], &b"y".repeat(20 << 20), b"x\nx\n"].concat(),
    );
    scratch.file("b", "x\n");
    assert_eq!(found(&scratch, "x"), ["a:1:1:x", "b:1:1:x", "…"]);
}

#[test]
fn answer_size_is_bounded() {
    let scratch = TestDir::new();
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
fn collection_of_one_file_is_bounded() {
    let matcher = RegexMatcher::new("x").unwrap();
    let text = format!("{}\n", "x".repeat(4000)).repeat(3000);
    let mut lines = LineCollector::new(&matcher, 0);
    let searched = Searcher::new().search_slice(&matcher, text.as_bytes(), &mut lines);
    searched.unwrap();
    let bytes: usize = lines.into_matches().iter().map(MatchedLine::bytes).sum();
    assert!(bytes < limits::MAX_SEARCH_BYTES + 2 * 4000, "{bytes}");
}

#[test]
fn context_lines_count_towards_the_limit() {
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
fn cancelled_operation_returns_an_error() {
    let scratch = one("x\n");
    let stop = CancelFlag::default();
    stop.cancel();
    assert_eq!(
        outcome(search(&request(&scratch, "x"), &stop)),
        Outcome::Host
    );
}
