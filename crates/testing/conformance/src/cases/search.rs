//! `fs/search`: lines that match a pattern.

use std::path::Path;

use exec_wire::{
    fs::{SearchMatch, SearchResult, SearchText},
    limits,
};

use crate::{
    bounded_wait::{done, not_found, refused, unknown},
    difference::Difference,
    request::{search, search_regex},
    scratch_dir::ScratchDir,
    subject::{Subject, uri},
};

/// Asserts that `fs/search` is refused and returns true if the subject does not support it.
async fn assert_unsupported(subject: &Subject) -> bool {
    let assert_unsupported = subject.differs(Difference::NoSearch);
    if assert_unsupported {
        let scratch = ScratchDir::new();
        unknown(subject.files.search(search(scratch.root(), "x"))).await;
    }
    assert_unsupported
}

async fn found(subject: &Subject, request: SearchText) -> SearchResult {
    done(subject.files.search(request)).await
}

/// Formats matches as `path:line:column:text`, with paths relative to the root.
async fn lines(subject: &Subject, scratch: &ScratchDir, request: SearchText) -> Vec<String> {
    let result = found(subject, request).await;
    assert!(!result.truncated);
    let line = |found: SearchMatch| {
        let path = found.path.to_native().unwrap();
        let name = path.strip_prefix(scratch.root()).unwrap().display();
        format!("{name}:{}:{}:{}", found.line, found.column, found.text)
    };
    result.matches.into_iter().map(line).collect()
}

pub async fn search_reports_path_and_line_of_each_match(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.file("b/file", "no\nthe needle\nneedle needle\nno");
    scratch.file("a", "needle\n");
    scratch.file("c", "nothing\n");
    scratch.file("b/empty", "");
    let found = lines(subject, &scratch, search(scratch.root(), "needle")).await;
    let expected = [
        "a:1:1:needle",
        "b/file:2:5:the needle",
        "b/file:3:1:needle needle",
    ];
    assert_eq!(found, expected);
}

pub async fn single_file_can_be_searched(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "one\ntwo\n");
    scratch.file("other", "two\n");
    let found = lines(subject, &scratch, search(&path, "two")).await;
    assert_eq!(found, ["file:2:1:two"]);
}

pub async fn plain_text_is_not_a_regular_expression(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.file("file", "a.c\nabc\n(\n");
    let root = scratch.root();
    let plain = lines(subject, &scratch, search(root, "a.c")).await;
    assert_eq!(plain, ["file:1:1:a.c"]);
    let broken = lines(subject, &scratch, search(root, "(")).await;
    assert_eq!(broken, ["file:3:1:("]);
    let regex = lines(subject, &scratch, search_regex(root, "a.c")).await;
    assert_eq!(regex, ["file:1:1:a.c", "file:2:1:abc"]);
    let anchored = lines(subject, &scratch, search_regex(root, r"^\w+$")).await;
    assert_eq!(anchored, ["file:2:1:abc"]);
}

pub async fn search_can_ignore_case(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.file("file", "needle\nNEEDLE\nNeedle\n");
    let exact = lines(subject, &scratch, search(scratch.root(), "Needle")).await;
    assert_eq!(exact, ["file:3:1:Needle"]);
    let request = SearchText {
        case_sensitive: false,
        ..search(scratch.root(), "Needle")
    };
    let any = lines(subject, &scratch, request).await;
    assert_eq!(
        any,
        ["file:1:1:needle", "file:2:1:NEEDLE", "file:3:1:Needle"]
    );
}

pub async fn search_returns_context_lines(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "1\n2 x\n3\n4\n5 x\n6 x\n7\n");
    let request = SearchText {
        context_lines: 2,
        ..search(scratch.root(), "x")
    };
    let line = |line, text: &str, before: &[&str], after: &[&str]| SearchMatch {
        path: uri(&path),
        line,
        column: 3,
        text: text.to_owned(),
        before: before.iter().map(|&line| line.to_owned()).collect(),
        after: after.iter().map(|&line| line.to_owned()).collect(),
    };
    let expected = [
        line(2, "2 x", &["1"], &["3", "4"]),
        line(5, "5 x", &["3", "4"], &["6 x", "7"]),
        line(6, "6 x", &["4", "5 x"], &["7"]),
    ];
    assert_eq!(found(subject, request).await.matches, expected);
}

pub async fn glob_selects_the_searched_files(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    for name in ["a.rs", "b.txt", "src/c.rs", "src/d.txt"] {
        scratch.file(name, "x\n");
    }
    for (glob, expected) in [
        ("**/*.rs", vec!["a.rs:1:1:x", "src/c.rs:1:1:x"]),
        ("src/**", vec!["src/c.rs:1:1:x", "src/d.txt:1:1:x"]),
        ("**/none", vec![]),
    ] {
        let request = SearchText {
            glob: Some(glob.to_owned()),
            ..search(scratch.root(), "x")
        };
        assert_eq!(lines(subject, &scratch, request).await, expected, "{glob}");
    }
}

pub async fn invalid_pattern_is_refused(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.file("file", "x\n");
    for pattern in ["(", "[", "*", "a{2", r"\p{NoSuch}"] {
        let request = search_regex(scratch.root(), pattern);
        refused(subject.files.search(request)).await;
    }
    let request = SearchText {
        glob: Some("[".to_owned()),
        ..search(scratch.root(), "x")
    };
    refused(subject.files.search(request)).await;
}

pub async fn search_respects_the_match_limit(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.file("a", "x\n".repeat(60));
    scratch.file("b", "x\n".repeat(60));
    for (max_matches, truncated) in [(5, true), (100, true), (1000, false)] {
        let request = SearchText {
            max_matches,
            ..search(scratch.root(), "x")
        };
        let result = found(subject, request).await;
        assert_eq!(result.matches.len(), max_matches.min(120));
        assert_eq!(result.truncated, truncated);
    }
}

pub async fn search_respects_ignore_files(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.directory(".git");
    scratch.file(".gitignore", "/target\n*.log\n");
    scratch.file(".ignore", "vendor/\n");
    for name in ["kept", "target/a", "b.log", "src/c.log", "vendor/d"] {
        scratch.file(name, "x\n");
    }
    let kept = lines(subject, &scratch, search(scratch.root(), "x")).await;
    assert_eq!(kept, ["kept:1:1:x"]);
}

pub async fn special_files_do_not_block_a_search(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.file("file", "x\n");
    scratch.fifo("pipe");
    scratch.link("turn", ".");
    scratch.link("dangling", "none");
    scratch.link("device", "/dev/zero");
    let result = found(subject, search(scratch.root(), "x")).await;
    assert_eq!(result.matches[0].path, uri(&scratch.path("file")));
}

pub async fn non_utf8_and_long_lines_are_shown_truncated(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let path = scratch.file("file", b"a \xff needle\n");
    let result = found(subject, search(&path, "needle")).await;
    assert_eq!(result.matches[0].text, "a \u{fffd} needle");
    assert_eq!(result.matches[0].column, 5);
    let long = format!("needle {}\n", "x".repeat(100_000));
    let path = scratch.file("file", long);
    let result = found(subject, search(&path, "needle")).await;
    let text = &result.matches[0].text;
    assert!(text.starts_with("needle"), "{text}");
    assert!(
        text.len() <= limits::MAX_SEARCH_LINE_BYTES,
        "{}",
        text.len()
    );
}

pub async fn search_response_size_is_bounded(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    // Empty context lines around each match cost only their line numbers.
    scratch.file("file", format!("x\n{}", "\n".repeat(100)).repeat(5000));
    let request = SearchText {
        max_matches: limits::MAX_SEARCH_MATCHES,
        context_lines: limits::MAX_CONTEXT_LINES,
        ..search(scratch.root(), "x")
    };
    let result = found(subject, request).await;
    assert!(!result.matches.is_empty());
    assert_eq!(result.truncated, result.matches.len() < 5000);
}

pub async fn search_root_must_exist(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let none = scratch.path("none");
    let text = not_found(subject.files.search(search(&none, "x"))).await;
    assert!(text.contains(none.to_str().unwrap()), "{text}");
    let empty: &Path = &scratch.directory("empty");
    let nothing = SearchResult::default();
    assert_eq!(found(subject, search(empty, "x")).await, nothing);
}
