//! `fs/search` and `fs/find`.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
};

use serde_json::{Value, json};

use crate::{fs_fixture::FsFixture, over_every_transport, over_one_transport, server::Transport};

over_every_transport!(matching_lines_are_found, names_are_found);

over_one_transport!(
    search_text_is_literal_unless_regex_is_set,
    search_is_case_sensitive_by_default,
    context_lines_surround_each_match,
    glob_selects_files,
    matches_are_limited,
    numeric_search_options_have_limits,
    invalid_patterns_are_invalid_parameters,
    patterns_run_in_linear_time,
    ignore_files_are_respected,
    special_files_do_not_stop_a_search,
    long_lines_are_truncated,
    one_file_can_be_searched,
    fields_with_defaults_must_not_be_null,
    globs_find_sorted_names,
    queries_return_the_best_match_first,
    find_needs_a_glob_or_a_query,
    find_results_are_limited,
    unsearchable_roots_are_refused,
);

/// Creates a tree to search.
async fn create_search_tree(transport: Transport) -> FsFixture {
    let fixture = FsFixture::new(transport).await;
    fs::create_dir_all(fixture.path("lib/src/deep")).unwrap();
    for (name, content) in [
        ("lib/a.txt", "one\nTwo needle two\nthree\n"),
        ("lib/b.md", "needle and needle\nNEEDLE\n"),
        ("lib/src/c.rs", "fn a.b() {}\r\nlet needle = 1;\r\nend"),
        ("lib/src/deep/d.txt", "x\ny\nneedle\nz\n"),
    ] {
        fs::write(fixture.path(name), content).unwrap();
    }
    fixture
}

/// Searches and returns file, line, column and text of each match.
async fn search(fixture: &mut FsFixture, extra: Value) -> Vec<(String, u64, u64, String)> {
    let result = fixture.call("fs/search", "lib", extra).await;
    assert_eq!(result["truncated"], false, "{result}");
    matches(fixture, &result)
}

fn matches(fixture: &FsFixture, result: &Value) -> Vec<(String, u64, u64, String)> {
    assert_eq!(result.as_object().unwrap().len(), 2, "{result}");
    let root = fixture.uri("lib/");
    let matches = result["matches"].as_array().unwrap().iter();
    let matches = matches.map(|found| {
        assert_eq!(found.as_object().unwrap().len(), 6, "{found}");
        let text = |name: &str| found[name].as_str().unwrap().to_owned();
        let number = |name: &str| found[name].as_u64().unwrap();
        let path = text("path");
        let path = path.strip_prefix(&root).unwrap_or(&path).to_owned();
        (path, number("line"), number("column"), text("text"))
    });
    matches.collect()
}

fn found(path: &str, line: u64, column: u64, text: &str) -> (String, u64, u64, String) {
    (path.to_owned(), line, column, text.to_owned())
}

async fn matching_lines_are_found(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    let result = fixture
        .call("fs/search", "lib", json!({"pattern": "needle"}))
        .await;
    assert_eq!(result["truncated"], false);
    assert_eq!(
        matches(&fixture, &result),
        [
            found("a.txt", 2, 5, "Two needle two"),
            found("b.md", 1, 1, "needle and needle"),
            found("src/c.rs", 2, 5, "let needle = 1;"),
            found("src/deep/d.txt", 3, 1, "needle"),
        ]
    );
    assert_eq!(result["matches"][0]["before"], json!([]));
    assert_eq!(result["matches"][0]["after"], json!([]));
    let nothing = fixture
        .call("fs/search", "lib", json!({"pattern": "absent"}))
        .await;
    assert_eq!(nothing, json!({"matches": [], "truncated": false}));
}

async fn search_text_is_literal_unless_regex_is_set(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    let plain = search(&mut fixture, json!({"pattern": "a.b()"})).await;
    assert_eq!(plain, [found("src/c.rs", 1, 4, "fn a.b() {}")]);
    let plain = search(&mut fixture, json!({"pattern": "n[e]+dle", "regex": false})).await;
    assert_eq!(plain, []);
    let regex = search(
        &mut fixture,
        json!({"pattern": "^n[e]+dle$", "regex": true}),
    )
    .await;
    assert_eq!(regex, [found("src/deep/d.txt", 3, 1, "needle")]);
    let regex = search(&mut fixture, json!({"pattern": r"1;$", "regex": true})).await;
    assert_eq!(regex, [found("src/c.rs", 2, 14, "let needle = 1;")]);
}

async fn search_is_case_sensitive_by_default(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    let pattern = |sensitive: bool| json!({"pattern": "TWO", "caseSensitive": sensitive});
    assert_eq!(search(&mut fixture, pattern(true)).await, []);
    assert_eq!(
        search(&mut fixture, pattern(false)).await,
        [found("a.txt", 2, 1, "Two needle two")]
    );
    let loud = search(&mut fixture, json!({"pattern": "NEEDLE"})).await;
    assert_eq!(loud, [found("b.md", 2, 1, "NEEDLE")]);
}

async fn context_lines_surround_each_match(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    let extra = json!({"pattern": "needle", "contextLines": 2, "glob": "d.txt"});
    let result = fixture.call("fs/search", "lib", extra).await;
    let found = &result["matches"][0];
    assert_eq!(found["before"], json!(["x", "y"]));
    assert_eq!(found["after"], json!(["z"]));
    let extra =
        json!({"pattern": "needle", "contextLines": 1, "glob": "*.md", "caseSensitive": false});
    let result = fixture.call("fs/search", "lib", extra).await;
    assert_eq!(result["matches"].as_array().unwrap().len(), 2, "{result}");
    assert_eq!(result["matches"][0]["after"], json!(["NEEDLE"]));
    assert_eq!(result["matches"][1]["before"], json!(["needle and needle"]));
}

async fn glob_selects_files(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    for (glob, files) in [
        (json!("*.txt"), vec!["a.txt", "src/deep/d.txt"]),
        (json!("src/**"), vec!["src/c.rs", "src/deep/d.txt"]),
        (json!("src/*"), vec!["src/c.rs"]),
        (json!("*.{md,rs}"), vec!["b.md", "src/c.rs"]),
        (json!("*.none"), vec![]),
        (
            json!(null),
            vec!["a.txt", "b.md", "src/c.rs", "src/deep/d.txt"],
        ),
    ] {
        let extra = json!({"pattern": "needle", "glob": glob});
        let found = search(&mut fixture, extra).await;
        let found: Vec<&str> = found.iter().map(|found| found.0.as_str()).collect();
        assert_eq!(found, files, "{glob}");
    }
}

async fn matches_are_limited(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    fs::write(fixture.path("lib/many"), "needle\n".repeat(12_000)).unwrap();
    for (limit, count, truncated) in [
        (json!({"maxMatches": 1}), 1, true),
        (json!({"maxMatches": 3}), 3, true),
        (json!({"maxMatches": 10_000}), 10_000, true),
        (json!({}), 1000, true),
        (json!({"glob": "*.txt", "maxMatches": 2}), 2, false),
    ] {
        let extra = crate::client::with(json!({"pattern": "needle"}), limit.clone());
        let result = fixture.call("fs/search", "lib", extra).await;
        let matches = result["matches"].as_array().unwrap();
        assert_eq!(
            (matches.len(), &result["truncated"]),
            (count, &json!(truncated)),
            "{limit}"
        );
    }
}

async fn numeric_search_options_have_limits(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    for (change, member) in [
        (json!({"maxMatches": 0}), "maxMatches"),
        (json!({"maxMatches": 10_001}), "maxMatches"),
        (json!({"contextLines": 101}), "contextLines"),
        (json!({"pattern": "x".repeat((16 << 10) + 1)}), "pattern"),
        (json!({"glob": "x".repeat((16 << 10) + 1)}), "glob"),
    ] {
        let extra = crate::client::with(json!({"pattern": "needle"}), change);
        let message = fixture.refused(-32602, "fs/search", "lib", extra).await;
        assert!(message.contains(member), "{message}");
    }
    let edge = json!({"pattern": "x".repeat(16 << 10), "maxMatches": 1, "contextLines": 100});
    assert_eq!(search(&mut fixture, edge).await, []);
}

async fn invalid_patterns_are_invalid_parameters(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    for pattern in [
        "(x",
        "[a",
        "a{2,1}",
        "*",
        r"\p{Nope}",
        "(?P<x",
        "a{100000}{100000}",
    ] {
        let extra = json!({"pattern": pattern, "regex": true});
        let message = fixture.refused(-32602, "fs/search", "lib", extra).await;
        assert!(message.contains("pattern"), "{message}");
        let extra = json!({"pattern": pattern});
        assert_eq!(search(&mut fixture, extra).await, [], "as text it is fine");
    }
    for glob in ["[a", "{a"] {
        let extra = json!({"pattern": "x", "glob": glob});
        let message = fixture.refused(-32602, "fs/search", "lib", extra).await;
        assert!(message.contains("glob"), "{message}");
        fixture
            .refused(-32602, "fs/find", "lib", json!({"glob": glob}))
            .await;
    }
}

async fn patterns_run_in_linear_time(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    fs::write(fixture.path("lib/evil"), "a".repeat(100_000)).unwrap();
    for pattern in ["(a+)+$b", "(a|aa)+b", "(a*)*b", "(.*)(.*)(.*)(.*)b$"] {
        let extra = json!({"pattern": pattern, "regex": true, "glob": "evil"});
        assert_eq!(search(&mut fixture, extra).await, []);
    }
}

async fn ignore_files_are_respected(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    fs::create_dir(fixture.path("lib/target")).unwrap();
    for (name, content) in [
        ("lib/.gitignore", "target/\n*.log\n"),
        ("lib/src/.ignore", "c.rs\n"),
        ("lib/target/out", "needle"),
        ("lib/x.log", "needle"),
        ("lib/.hidden", "needle"),
    ] {
        fs::write(fixture.path(name), content).unwrap();
    }
    let found = search(&mut fixture, json!({"pattern": "needle"})).await;
    let files: Vec<&str> = found.iter().map(|found| found.0.as_str()).collect();
    assert_eq!(files, ["a.txt", "b.md", "src/deep/d.txt"]);
    let result = fixture.call("fs/find", "lib", json!({"glob": "**"})).await;
    let paths = below(&fixture, &result);
    assert_eq!(
        paths,
        ["a.txt", "b.md", "src", "src/deep", "src/deep/d.txt"]
    );
}

async fn special_files_do_not_stop_a_search(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    fs::rename(fixture.path("fifo"), fixture.path("lib/fifo")).unwrap();
    fs::rename(fixture.path("socket"), fixture.path("lib/socket")).unwrap();
    symlink(".", fixture.path("lib/loop")).unwrap();
    symlink("a.txt", fixture.path("lib/link")).unwrap();
    fs::write(fixture.path("lib/binary"), b"needle\0\xff\n").unwrap();
    let odd = fixture.path("lib").join(OsStr::from_bytes(b"n\xff"));
    fs::write(odd, b"\xff\xfe needle \xff\n").unwrap();
    let extra = json!({"pattern": "needle", "glob": "[!abcd]*"});
    let result = fixture.call("fs/search", "lib", extra).await;
    assert_eq!(result["truncated"], false);
    let found = matches(&fixture, &result);
    assert!(found.iter().all(|found| found.0 == "n%FF"), "{found:?}");
    let all = search(&mut fixture, json!({"pattern": "needle"})).await;
    assert!(all.iter().any(|found| found.0 == "a.txt"), "{all:?}");
}

async fn long_lines_are_truncated(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    let line = format!("needle{}\n", "\u{e9}".repeat(100_000));
    fs::write(fixture.path("lib/long"), line).unwrap();
    let extra = json!({"pattern": "needle", "glob": "long"});
    let found = search(&mut fixture, extra).await;
    assert_eq!(found.len(), 1);
    assert!(found[0].3.len() <= 4096, "{} bytes", found[0].3.len());
    assert!(found[0].3.starts_with("needle\u{e9}"));
}

async fn one_file_can_be_searched(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    let extra = json!({"pattern": "needle"});
    let result = fixture.call("fs/search", "lib/b.md", extra.clone()).await;
    assert_eq!(
        matches(&fixture, &result),
        [found("b.md", 1, 1, "needle and needle")]
    );
    for (name, code) in [("none", -32004), ("lib/a.txt/x", -32603), ("fifo", -32600)] {
        fixture
            .refused(code, "fs/search", name, extra.clone())
            .await;
    }
}

async fn fields_with_defaults_must_not_be_null(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    for member in [
        "regex",
        "caseSensitive",
        "maxMatches",
        "contextLines",
        "pattern",
    ] {
        for value in [json!(null), json!([]), json!(1.5)] {
            let extra = crate::client::with(json!({"pattern": "x"}), json!({member: value}));
            let message = fixture.refused(-32602, "fs/search", "lib", extra).await;
            assert!(message.contains(member), "{message}");
        }
    }
    let message = fixture.refused(-32602, "fs/search", "lib", json!({})).await;
    assert!(message.contains("pattern"), "{message}");
    for value in [json!(null), json!(-1), json!("1")] {
        let extra = json!({"glob": "*", "maxResults": value});
        let message = fixture.refused(-32602, "fs/find", "lib", extra).await;
        assert!(message.contains("maxResults"), "{message}");
    }
}

fn below(fixture: &FsFixture, result: &Value) -> Vec<String> {
    assert_eq!(result.as_object().unwrap().len(), 2, "{result}");
    let root = fixture.uri("lib/");
    let paths = result["paths"].as_array().unwrap().iter();
    let paths = paths.map(|path| {
        path.as_str()
            .unwrap()
            .strip_prefix(&root)
            .unwrap()
            .to_owned()
    });
    paths.collect()
}

async fn names_are_found(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    let result = fixture
        .call("fs/find", "lib", json!({"glob": "*.txt"}))
        .await;
    assert_eq!(
        result,
        json!({
            "paths": [fixture.uri("lib/a.txt"), fixture.uri("lib/src/deep/d.txt")],
            "truncated": false,
        })
    );
}

async fn globs_find_sorted_names(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    for (glob, expected) in [
        (
            "*",
            &[
                "a.txt",
                "b.md",
                "src",
                "src/c.rs",
                "src/deep",
                "src/deep/d.txt",
            ][..],
        ),
        ("src/*", &["src/c.rs", "src/deep"]),
        ("**/*.txt", &["a.txt", "src/deep/d.txt"]),
        ("[ab].*", &["a.txt", "b.md"]),
        ("?.rs", &["src/c.rs"]),
        ("none", &[]),
    ] {
        let result = fixture.call("fs/find", "lib", json!({"glob": glob})).await;
        assert_eq!(below(&fixture, &result), expected, "{glob}");
        assert_eq!(result["truncated"], false);
    }
}

async fn queries_return_the_best_match_first(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    for name in [
        "lib/src/main_window.rs",
        "lib/src/mxaxixn.rs",
        "lib/src/main.rs",
    ] {
        fs::write(fixture.path(name), "").unwrap();
    }
    let result = fixture
        .call("fs/find", "lib", json!({"query": "main.rs"}))
        .await;
    let paths = below(&fixture, &result);
    assert_eq!(paths[0], "src/main.rs", "{paths:?}");
    assert!(
        paths.contains(&"src/main_window.rs".to_owned()),
        "{paths:?}"
    );
    let result = fixture
        .call("fs/find", "lib", json!({"query": "zzz"}))
        .await;
    assert_eq!(below(&fixture, &result), Vec::<String>::new());
}

async fn find_needs_a_glob_or_a_query(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    for extra in [
        json!({}),
        json!({"glob": null, "query": null}),
        json!({"glob": "*", "query": "a"}),
    ] {
        let message = fixture.refused(-32602, "fs/find", "lib", extra).await;
        assert!(
            message.contains("glob") && message.contains("query"),
            "{message}"
        );
    }
    let extra = json!({"glob": "*.md", "query": null, "sandbox": null});
    let result = fixture.call("fs/find", "lib", extra).await;
    assert_eq!(below(&fixture, &result), ["b.md"]);
}

async fn find_results_are_limited(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    for number in 0..1100 {
        fs::write(fixture.path(&format!("lib/src/deep/n{number:04}")), "").unwrap();
    }
    for (extra, count, truncated) in [
        (json!({"glob": "n*"}), 1000, true),
        (json!({"glob": "n*", "maxResults": 1099}), 1099, true),
        (json!({"glob": "n*", "maxResults": 1100}), 1100, false),
        (json!({"query": "n0", "maxResults": 5}), 5, true),
        (json!({"glob": "n*", "maxResults": 10_000}), 1100, false),
    ] {
        let result = fixture.call("fs/find", "lib", extra.clone()).await;
        let paths = result["paths"].as_array().unwrap();
        assert_eq!(
            (paths.len(), &result["truncated"]),
            (count, &json!(truncated)),
            "{extra}"
        );
    }
    for most in [0, 10_001] {
        let extra = json!({"glob": "*", "maxResults": most});
        let message = fixture.refused(-32602, "fs/find", "lib", extra).await;
        assert!(message.contains("maxResults"), "{message}");
    }
}

async fn unsearchable_roots_are_refused(transport: Transport) {
    let mut fixture = create_search_tree(transport).await;
    for (name, code) in [
        ("none", -32004),
        ("to-none", -32004),
        ("file", -32600),
        ("fifo", -32600),
        ("file/x", -32603),
        ("file:///C:/x", -32600),
    ] {
        fixture
            .refused(code, "fs/find", name, json!({"glob": "*"}))
            .await;
    }
}
