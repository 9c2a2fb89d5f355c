//! Lines that match.

use std::path::Path;

use exec_wire::{
    fs::{Search, SearchMatch, SearchResult},
    limits,
};

use crate::{
    bounded_wait::{done, not_found, refused, unknown},
    difference::Difference,
    request::{search, search_regex},
    scratch_dir::Scratch,
    subject::{Subject, uri},
};

/// Where there is no `fs/search`, sees that it is refused.
async fn lacking(subject: &Subject) -> bool {
    let lacking = subject.differs(Difference::NoSearch);
    if lacking {
        let scratch = Scratch::new();
        unknown(subject.files.search(search(scratch.root(), "x"))).await;
    }
    lacking
}

async fn found(subject: &Subject, request: Search) -> SearchResult {
    done(subject.files.search(request)).await
}

/// The matches as `path:line:column:text`, by paths below the root.
async fn lines(subject: &Subject, scratch: &Scratch, request: Search) -> Vec<String> {
    let result = found(subject, request).await;
    assert!(!result.truncated);
    let line = |found: SearchMatch| {
        let path = found.path.to_native().unwrap();
        let name = path.strip_prefix(scratch.root()).unwrap().display();
        format!("{name}:{}:{}:{}", found.line, found.column, found.text)
    };
    result.matches.into_iter().map(line).collect()
}

pub async fn matching_lines_are_told_by_path_and_line(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
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

pub async fn a_single_file_is_searched(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.file("file", "one\ntwo\n");
    scratch.file("other", "two\n");
    let found = lines(subject, &scratch, search(&path, "two")).await;
    assert_eq!(found, ["file:2:1:two"]);
}

pub async fn plain_text_is_no_expression(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
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

pub async fn letters_match_either_case_on_request(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("file", "needle\nNEEDLE\nNeedle\n");
    let exact = lines(subject, &scratch, search(scratch.root(), "Needle")).await;
    assert_eq!(exact, ["file:3:1:Needle"]);
    let request = Search {
        case_sensitive: false,
        ..search(scratch.root(), "Needle")
    };
    let any = lines(subject, &scratch, request).await;
    assert_eq!(
        any,
        ["file:1:1:needle", "file:2:1:NEEDLE", "file:3:1:Needle"]
    );
}

pub async fn context_is_told_with_each_match(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.file("file", "1\n2 x\n3\n4\n5 x\n6 x\n7\n");
    let request = Search {
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

pub async fn a_glob_chooses_the_files(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    for name in ["a.rs", "b.txt", "src/c.rs", "src/d.txt"] {
        scratch.file(name, "x\n");
    }
    for (glob, expected) in [
        ("**/*.rs", vec!["a.rs:1:1:x", "src/c.rs:1:1:x"]),
        ("src/**", vec!["src/c.rs:1:1:x", "src/d.txt:1:1:x"]),
        ("**/none", vec![]),
    ] {
        let request = Search {
            glob: Some(glob.to_owned()),
            ..search(scratch.root(), "x")
        };
        assert_eq!(lines(subject, &scratch, request).await, expected, "{glob}");
    }
}

pub async fn a_broken_pattern_is_refused(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("file", "x\n");
    for pattern in ["(", "[", "*", "a{2", r"\p{NoSuch}"] {
        let request = search_regex(scratch.root(), pattern);
        refused(subject.files.search(request)).await;
    }
    let request = Search {
        glob: Some("[".to_owned()),
        ..search(scratch.root(), "x")
    };
    refused(subject.files.search(request)).await;
}

pub async fn a_search_ends_with_so_many_matches(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("a", "x\n".repeat(60));
    scratch.file("b", "x\n".repeat(60));
    for (max_matches, truncated) in [(5, true), (100, true), (1000, false)] {
        let request = Search {
            max_matches,
            ..search(scratch.root(), "x")
        };
        let result = found(subject, request).await;
        assert_eq!(result.matches.len(), max_matches.min(120));
        assert_eq!(result.truncated, truncated);
    }
}

pub async fn what_ignore_files_name_is_not_searched(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    scratch.directory(".git");
    scratch.file(".gitignore", "/target\n*.log\n");
    scratch.file(".ignore", "vendor/\n");
    for name in ["kept", "target/a", "b.log", "src/c.log", "vendor/d"] {
        scratch.file(name, "x\n");
    }
    let kept = lines(subject, &scratch, search(scratch.root(), "x")).await;
    assert_eq!(kept, ["kept:1:1:x"]);
}

pub async fn nothing_in_a_tree_holds_up_a_search(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("file", "x\n");
    scratch.fifo("pipe");
    scratch.link("turn", ".");
    scratch.link("dangling", "none");
    scratch.link("device", "/dev/zero");
    let result = found(subject, search(scratch.root(), "x")).await;
    assert_eq!(result.matches[0].path, uri(&scratch.path("file")));
}

pub async fn lines_that_are_not_text_or_too_long_are_shown_as_far_as_they_are(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
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

pub async fn the_answer_to_a_search_is_bounded(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    // Lines that cost nothing but their number, around each match.
    scratch.file("file", format!("x\n{}", "\n".repeat(100)).repeat(5000));
    let request = Search {
        max_matches: limits::MAX_SEARCH_MATCHES,
        context_lines: limits::MAX_CONTEXT_LINES,
        ..search(scratch.root(), "x")
    };
    let result = found(subject, request).await;
    assert!(!result.matches.is_empty());
    assert_eq!(result.truncated, result.matches.len() < 5000);
}

pub async fn a_search_begins_where_something_is(subject: &Subject) {
    if lacking(subject).await {
        return;
    }
    let scratch = Scratch::new();
    let none = scratch.path("none");
    let text = not_found(subject.files.search(search(&none, "x"))).await;
    assert!(text.contains(none.to_str().unwrap()), "{text}");
    let empty: &Path = &scratch.directory("empty");
    let nothing = SearchResult::default();
    assert_eq!(found(subject, search(empty, "x")).await, nothing);
}
