//! File tools: reading, writing, searching and watching, and the paths and globs they accept.

use std::{os::unix::fs::symlink, time::Duration};

use rmcp::model::ContentBlock;
use serde_json::json;
use tokio::time::timeout;

use super::McpFixture;
use crate::mcp::{WorkspaceAccess, tool};

#[tokio::test]
async fn read_file_shows_lines_from_an_offset_and_the_next_offset() {
    let fixture = McpFixture::new();
    fixture.write_file("f", "one\ntwo\nthree\nfour");
    assert_eq!(
        fixture.call_ok("read_file", json!({"path": "f"})).await,
        "one\ntwo\nthree\nfour\n"
    );
    let part = json!({"path": "f", "offset": 2, "limit": 2, "line_numbers": true});
    assert_eq!(
        fixture.call_ok("read_file", part).await,
        "     2\ttwo\n     3\tthree\n[lines 2 to 3; go on with offset 4]\n"
    );
    let beyond = fixture.call_err("read_file", json!({"path": "f", "offset": 9}));
    assert_eq!(beyond.await, "the file has only 4 lines");
    fixture.write_file("empty", "");
    let empty = fixture.call_ok("read_file", json!({"path": "empty"})).await;
    assert_eq!(empty, "[the file is empty]");
}

#[tokio::test]
async fn large_file_is_shown_in_consecutive_parts() {
    let fixture = McpFixture::new();
    let lines: Vec<String> = (1..=700_000)
        .map(|line| format!("line {line} of many"))
        .collect();
    fixture.write_file("large", lines.join("\n"));
    let last = json!({"path": "large", "offset": 699_999});
    assert_eq!(
        fixture.call_ok("read_file", last).await,
        "line 699999 of many\nline 700000 of many\n"
    );
    let first = json!({"path": "large", "limit": 1_000_000});
    let first = fixture.call_ok("read_file", first).await;
    assert!(first.len() < 130 << 10, "{}", first.len());
    let next = first
        .rsplit("offset ")
        .next()
        .unwrap()
        .trim_end_matches("]\n");
    let next: usize = next.parse().unwrap();
    let line_count = first.lines().count() - 1;
    assert_eq!(next, line_count + 1);
    let next = json!({"path": "large", "offset": next, "limit": 1});
    let next = fixture.call_ok("read_file", next).await;
    assert!(next.starts_with(&lines[line_count]), "{next}");
}

#[tokio::test]
async fn overlong_line_is_truncated_with_a_note() {
    let fixture = McpFixture::new();
    fixture.write_file("f", format!("{}\nnext\n", "x".repeat(100_000)));
    let text = fixture.call_ok("read_file", json!({"path": "f"})).await;
    assert!(
        text.contains("… [line of 100001 bytes]\nnext\n"),
        "{}",
        text.len()
    );
}

#[tokio::test]
async fn images_are_shown_and_other_binary_files_described() {
    let fixture = McpFixture::new();
    fixture.write_file("p.png", b"\x89PNG\r\n\x1a\nrest");
    let result = fixture.call("read_file", json!({"path": "p.png"})).await;
    let [ContentBlock::Image(image)] = &result.content[..] else {
        panic!("no picture: {result:?}");
    };
    assert_eq!(
        (image.mime_type.as_str(), image.data.as_str()),
        ("image/png", "iVBORw0KGgpyZXN0")
    );
    fixture.write_file("b", b"a\0b");
    let binary = fixture.call_ok("read_file", json!({"path": "b"})).await;
    assert_eq!(binary, "[binary file of 3 bytes: b]");
    fixture.write_file("latin", b"caf\xe9\n");
    let latin = fixture.call_ok("read_file", json!({"path": "latin"})).await;
    assert_eq!(latin, "[binary file of 5 bytes: latin]");
}

#[tokio::test]
async fn write_file_creates_missing_directories() {
    let fixture = McpFixture::new();
    let arguments = json!({"path": "a/b/c.txt", "content": "héllo\n"});
    let answer = fixture.call_ok("write_file", arguments.clone()).await;
    assert_eq!(answer, "Created a/b/c.txt (7 bytes)");
    assert_eq!(fixture.read_file("a/b/c.txt").unwrap(), "héllo\n");
    let answer = fixture.call_ok("write_file", arguments).await;
    assert_eq!(answer, "Replaced a/b/c.txt (7 bytes)");
    let error = fixture.call_err("write_file", json!({"path": "a", "content": ""}));
    assert_eq!(error.await, "`a` is a directory");
}

#[tokio::test]
async fn edit_file_replaces_a_unique_string() {
    let fixture = McpFixture::new();
    fixture.write_file("f", "a\nb\na\n");
    let edit = |old: &str, new: &str| json!({"path": "f", "old": old, "new": new});
    let error = fixture.call_err("edit_file", edit("a", "x")).await;
    assert!(
        error.contains("occurs 2 times in `f`, at lines 1, 3"),
        "{error}"
    );
    let error = fixture.call_err("edit_file", edit("z", "x")).await;
    assert_eq!(error, "`old` does not occur in `f`");
    let error = fixture.call_err("edit_file", edit("", "x")).await;
    assert_eq!(error, "`old` must not be empty");
    assert_eq!(fixture.read_file("f").unwrap(), "a\nb\na\n");
    assert_eq!(
        fixture.call_ok("edit_file", edit("b\n", "B\n")).await,
        "Edited f at line 2"
    );
    let all = json!({"path": "f", "old": "a", "new": "x", "replace_all": true});
    assert!(
        fixture
            .call_ok("edit_file", all)
            .await
            .contains("in 2 places")
    );
    assert_eq!(fixture.read_file("f").unwrap(), "x\nB\nx\n");
}

#[tokio::test]
async fn list_find_and_search_return_the_expected_text() {
    let fixture = McpFixture::new();
    fixture.write_file("src/main.rs", "fn main() {\n    start();\n}\n");
    fixture.write_file("src/deep/x.rs", "fn Start() {}\n");
    fixture.write_file("README", "start here\n");
    assert_eq!(
        fixture.call_ok("list_directory", json!({})).await,
        "README\nsrc/"
    );
    assert_eq!(
        fixture
            .call_ok("list_directory", json!({"path": ".", "depth": 3}))
            .await,
        "README\nsrc/\nsrc/deep/\nsrc/deep/x.rs\nsrc/main.rs"
    );
    let found = fixture
        .call_ok("find_files", json!({"glob": "**/*.rs"}))
        .await;
    assert_eq!(found, "src/deep/x.rs\nsrc/main.rs");
    let error = fixture.call_err("find_files", json!({})).await;
    assert_eq!(error, "give either `glob` or `query`");
    let search = json!({"pattern": "start\\(", "context_lines": 1});
    assert_eq!(
        fixture.call_ok("search_files", search).await,
        "src/main.rs-1-fn main() {\nsrc/main.rs:2:    start();\nsrc/main.rs-3-}\n"
    );
    let search = json!({"pattern": "START", "ignore_case": true, "glob": "*.rs", "max_matches": 1});
    let found = fixture.call_ok("search_files", search).await;
    assert!(
        found.contains("[there are more than these 1 matches]"),
        "{found}"
    );
    let error = fixture
        .call_err("search_files", json!({"pattern": "("}))
        .await;
    assert!(error.contains("pattern"), "{error}");
}

#[tokio::test]
async fn search_output_is_bounded() {
    let fixture = McpFixture::new();
    fixture.write_file("wide", format!("{}\n", "needle ".repeat(100)).repeat(1000));
    let search = json!({"pattern": "needle", "max_matches": 1000});
    let found = fixture.call_ok("search_files", search).await;
    assert!(found.len() < 130 << 10, "{}", found.len());
    assert!(
        found.contains("[there are more than these "),
        "{}",
        found.len()
    );
}

#[tokio::test]
async fn watch_ends_at_a_change_or_at_its_timeout() {
    let fixture = McpFixture::new();
    let answer = fixture
        .call_ok("watch_files", json!({"timeout_ms": 50}))
        .await;
    assert_eq!(answer, "Nothing has changed for 0.1 seconds.");
    let watch = fixture.call_ok("watch_files", json!({"timeout_ms": 60_000}));
    let change = async {
        // The watch may not have started: keep changing files until it reports one.
        for name in 0.. {
            fixture.write_file(&format!("new-{name}"), "");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let answer = timeout(Duration::from_secs(20), async {
        tokio::select! { answer = watch => answer, () = change => String::new() }
    });
    let answer = answer.await.unwrap();
    assert!(answer.starts_with("created new-"), "{answer}");
}

#[tokio::test]
async fn invalid_arguments_are_named_in_the_error() {
    let fixture = McpFixture::new();
    for (tool, arguments, expected) in [
        (
            "read_file",
            json!({}),
            "arguments of read_file: missing field `path`",
        ),
        (
            "read_file",
            json!({"path": 1}),
            "argument `path` of read_file: invalid type: integer",
        ),
        (
            "read_file",
            json!({"file": "x"}),
            "argument `file` of read_file: unknown field `file`",
        ),
        ("read_file", json!({"path": "none"}), "none"),
        (
            "read_file",
            json!({"path": "."}),
            "is a directory: use list_directory",
        ),
        (
            "exec_command",
            json!({"cmd": " "}),
            "`cmd` must not be empty",
        ),
        (
            "exec_command",
            json!({"cmd": "true", "wait_for": {"pattern": "("}}),
            "`wait_for.pattern`: regex parse error",
        ),
        (
            "exec_command",
            json!({"cmd": "true", "wait_for": {"bytes": 1, "idle_ms": 1}}),
            "takes one of",
        ),
        (
            "exec_command",
            json!({"cmd": "true", "view": "film"}),
            "unknown variant `film`",
        ),
        ("write_stdin", json!({"session_id": 77}), "77"),
        ("terminate_process", json!({"session_id": 77}), "77"),
    ] {
        let error = fixture.call_err(tool, arguments).await;
        assert!(error.contains(expected), "{tool}: {error}");
    }
}

#[test]
fn writing_tools_are_hidden_in_a_read_only_workspace() {
    let names = |access| -> Vec<String> {
        let tools = tool::tools(access);
        tools
            .iter()
            .map(|tool| tool.definition.name.to_string())
            .collect()
    };
    let all = names(WorkspaceAccess::WorkspaceWrite);
    let read_only = names(WorkspaceAccess::ReadOnly);
    let missing: Vec<_> = all
        .iter()
        .filter(|name| !read_only.contains(name))
        .collect();
    assert_eq!(missing, ["write_file", "edit_file", "apply_patch"]);
}

#[test]
fn schemas_use_only_widely_supported_keywords() {
    for tool in tool::tools(WorkspaceAccess::Open) {
        let definition = &tool.definition;
        let schema = serde_json::to_string(&definition.input_schema).unwrap();
        assert_eq!(definition.input_schema["type"], "object", "{schema}");
        for word in ["\"null\"", "$ref", "anyOf", "format", "default\""] {
            assert!(
                !schema.contains(word),
                "{}: {word} in {schema}",
                definition.name
            );
        }
        let members = Some(&definition.input_schema["properties"]);
        for (name, member) in members
            .and_then(|members| members.as_object())
            .into_iter()
            .flatten()
        {
            let text = member["description"].as_str().unwrap_or("\n");
            assert!(!text.contains('\n'), "{}: {name}", definition.name);
        }
    }
}

#[tokio::test]
async fn edit_that_exceeds_the_size_limit_is_rejected() {
    let fixture = McpFixture::new();
    let before = "a".repeat(1 << 20);
    fixture.write_file("a.txt", &before);
    // The result would have 64 GiB.
    let new = "b".repeat(1 << 16);
    let edit = json!({"path": "a.txt", "old": "a", "new": new, "replace_all": true});
    let error = fixture.call_err("edit_file", edit).await;
    assert!(error.contains("too large"), "{error}");
    assert_eq!(fixture.read_file("a.txt").unwrap(), before);
}

#[tokio::test]
async fn edit_keeps_the_line_endings_of_the_file() {
    let fixture = McpFixture::new();
    fixture.write_file("f", "one\r\ntwo\r\nthree\r\n");
    let edit = json!({"path": "f", "old": "one\ntwo\n", "new": "1\n2\n2b\n"});
    let answer = fixture.call_ok("edit_file", edit).await;
    assert_eq!(answer, "Edited f at line 1");
    assert_eq!(fixture.read_file("f").unwrap(), "1\r\n2\r\n2b\r\nthree\r\n");
    let edit = json!({"path": "f", "old": "three", "new": "3\n4"});
    fixture.call_ok("edit_file", edit).await;
    assert_eq!(
        fixture.read_file("f").unwrap(),
        "1\r\n2\r\n2b\r\n3\r\n4\r\n"
    );
    // Explicit CR LF is used as it is.
    let edit = json!({"path": "f", "old": "3\r\n4", "new": "5\r\n6"});
    fixture.call_ok("edit_file", edit).await;
    assert_eq!(
        fixture.read_file("f").unwrap(),
        "1\r\n2\r\n2b\r\n5\r\n6\r\n"
    );
    fixture.write_file("g", "one\ntwo\r\n");
    let edit = json!({"path": "g", "old": "one", "new": "1\n1b"});
    fixture.call_ok("edit_file", edit).await;
    assert_eq!(fixture.read_file("g").unwrap(), "1\n1b\ntwo\r\n");
}

#[tokio::test]
async fn incomplete_search_is_reported() {
    let fixture = McpFixture::new();
    fixture.write_file("wide.json", "x".repeat(9 << 20));
    let answer = fixture
        .call_ok("search_files", json!({"pattern": "needle"}))
        .await;
    assert!(
        answer.contains("not everything could be searched"),
        "{answer}"
    );
}

#[tokio::test]
async fn search_in_a_binary_file_reports_it() {
    let fixture = McpFixture::new();
    fixture.write_file("b", b"a\0needle\n");
    fixture.write_file("t", b"hay\n");
    let search = json!({"pattern": "needle", "path": "b"});
    let answer = fixture.call_ok("search_files", search).await;
    assert!(answer.contains("`b` is a binary file"), "{answer}");
    let search = json!({"pattern": "needle", "path": "t"});
    assert_eq!(
        fixture.call_ok("search_files", search).await,
        "Nothing was found."
    );
}

#[tokio::test(start_paused = true)]
async fn watch_without_progress_support_ends_after_fifty_seconds() {
    let fixture = McpFixture::new();
    let watch = fixture.call_ok("watch_files", json!({"timeout_ms": 120_000}));
    let answer = timeout(Duration::from_secs(60), watch).await.unwrap();
    assert_eq!(answer, "Nothing has changed for 50.0 seconds.");
}

#[tokio::test]
async fn symlinks_are_listed_relative_to_the_directory() {
    let fixture = McpFixture::new();
    fixture.write_file("top/dir/file", "");
    fixture.write_file("top/plain", "");
    let at = |name: &str| fixture.directory.path().join(name);
    symlink("plain", at("top/link")).unwrap();
    symlink("dir", at("top/ways")).unwrap();
    symlink("../plain", at("top/dir/back")).unwrap();
    assert_eq!(
        fixture
            .call_ok("list_directory", json!({"path": "top"}))
            .await,
        "dir/\nlink@\nplain\nways@/"
    );
    assert_eq!(
        fixture
            .call_ok("list_directory", json!({"path": "top", "depth": 3}))
            .await,
        "dir/\ndir/back@\ndir/file\nlink@\nplain\nways@/"
    );
}

#[tokio::test]
async fn file_uris_are_accepted_and_other_schemes_rejected() {
    let fixture = McpFixture::new();
    fixture.write_file("a b.txt", "here\n");
    let root = fixture.directory.path().display().to_string();
    let uri = format!("file://{root}/a%20b.txt");
    assert_eq!(
        fixture.call_ok("read_file", json!({"path": uri})).await,
        "here\n"
    );
    let error = fixture.call_err("write_file", json!({"path": "file://", "content": ""}));
    assert!(error.await.contains("file://"));
    let error = fixture.call_err("write_file", json!({"path": "https://x/y", "content": ""}));
    assert!(error.await.contains("not a path"));
    assert!(fixture.read_file("https:/x/y").is_none());
}

#[tokio::test]
async fn unknown_home_directory_is_rejected() {
    let fixture = McpFixture::new();
    let error = fixture.call_err("write_file", json!({"path": "~/x", "content": ""}));
    let error = error.await;
    assert!(error.contains("home directory is not known"), "{error}");
    let error = fixture.call_err("write_file", json!({"path": "~other/x", "content": ""}));
    let error = error.await;
    assert!(error.contains("`~other`"), "{error}");
    assert!(!fixture.directory.path().join("~").exists());
    fixture.write_file("~kept", "x\n");
    assert_eq!(
        fixture
            .call_ok("read_file", json!({"path": "./~kept"}))
            .await,
        "x\n"
    );
}

#[tokio::test]
async fn directory_path_is_rejected_for_writes() {
    let fixture = McpFixture::new();
    for path in ["new/", "new/.", "new/.."] {
        let error = fixture.call_err("write_file", json!({"path": path, "content": ""}));
        let error = error.await;
        assert!(error.contains("names a directory"), "{error}");
    }
    let patch = "*** Begin Patch\n*** Add File: new/\n+x\n*** End Patch\n";
    let error = fixture
        .call_err("apply_patch", json!({"patch": patch}))
        .await;
    assert!(error.contains("names a directory"), "{error}");
    assert!(!fixture.directory.path().join("new").exists());
}

#[tokio::test]
async fn globs_accept_relative_absolute_and_doubled_slashes() {
    let fixture = McpFixture::new();
    fixture.write_file("src/a.rs", "needle\n");
    fixture.write_file("src/deep/b.rs", "needle\n");
    let root = fixture.directory.path().display().to_string();
    for (glob, found) in [
        ("./src/*.rs", "src/a.rs"),
        (&*format!("{root}/src/*.rs"), "src/a.rs"),
        ("src//*.rs", "src/a.rs"),
    ] {
        let answer = fixture.call_ok("find_files", json!({"glob": glob})).await;
        assert_eq!(answer, found, "{glob}");
        let search = json!({"pattern": "needle", "glob": glob});
        let answer = fixture.call_ok("search_files", search).await;
        assert_eq!(answer, format!("{found}:1:needle\n"), "{glob}");
    }
    let below = json!({"path": "src", "glob": format!("{root}/src/deep/*.rs")});
    assert_eq!(fixture.call_ok("find_files", below).await, "src/deep/b.rs");
    for glob in ["!*.rs", "/nowhere/*.rs", "../*.rs"] {
        let error = fixture.call_err("find_files", json!({"glob": glob})).await;
        assert!(error.contains("`glob`"), "{glob}: {error}");
    }
}
