//! Reading, writing, looking and waiting.

use std::{os::unix::fs::symlink, time::Duration};

use rmcp::model::ContentBlock;
use serde_json::json;
use tokio::time::timeout;

use super::Stage;
use crate::mcp::{Enclosure, tool};

#[tokio::test]
async fn lines_are_read_from_an_offset_and_the_rest_is_named() {
    let stage = Stage::new();
    stage.put("f", "one\ntwo\nthree\nfour");
    assert_eq!(
        stage.told("read_file", json!({"path": "f"})).await,
        "one\ntwo\nthree\nfour\n"
    );
    let part = json!({"path": "f", "offset": 2, "limit": 2, "line_numbers": true});
    assert_eq!(
        stage.told("read_file", part).await,
        "     2\ttwo\n     3\tthree\n[lines 2 to 3; go on with offset 4]\n"
    );
    let beyond = stage.refused("read_file", json!({"path": "f", "offset": 9}));
    assert_eq!(beyond.await, "the file has only 4 lines");
    stage.put("empty", "");
    let empty = stage.told("read_file", json!({"path": "empty"})).await;
    assert_eq!(empty, "[the file is empty]");
}

#[tokio::test]
async fn a_large_file_is_shown_in_parts_that_fit_together() {
    let stage = Stage::new();
    let lines: Vec<String> = (1..=700_000)
        .map(|line| format!("line {line} of many"))
        .collect();
    stage.put("large", lines.join("\n"));
    let last = json!({"path": "large", "offset": 699_999});
    assert_eq!(
        stage.told("read_file", last).await,
        "line 699999 of many\nline 700000 of many\n"
    );
    let first = json!({"path": "large", "limit": 1_000_000});
    let first = stage.told("read_file", first).await;
    assert!(first.len() < 130 << 10, "{}", first.len());
    let next = first
        .rsplit("offset ")
        .next()
        .unwrap()
        .trim_end_matches("]\n");
    let next: usize = next.parse().unwrap();
    let shown = first.lines().count() - 1;
    assert_eq!(next, shown + 1);
    let next = json!({"path": "large", "offset": next, "limit": 1});
    let next = stage.told("read_file", next).await;
    assert!(next.starts_with(&lines[shown]), "{next}");
}

#[tokio::test]
async fn a_line_that_is_too_long_is_cut_and_said_to_be() {
    let stage = Stage::new();
    stage.put("f", format!("{}\nnext\n", "x".repeat(100_000)));
    let text = stage.told("read_file", json!({"path": "f"})).await;
    assert!(
        text.contains("… [line of 100001 bytes]\nnext\n"),
        "{}",
        text.len()
    );
}

#[tokio::test]
async fn pictures_are_shown_and_other_binary_files_described() {
    let stage = Stage::new();
    stage.put("p.png", b"\x89PNG\r\n\x1a\nrest");
    let result = stage.call("read_file", json!({"path": "p.png"})).await;
    let [ContentBlock::Image(image)] = &result.content[..] else {
        panic!("no picture: {result:?}");
    };
    assert_eq!(
        (image.mime_type.as_str(), image.data.as_str()),
        ("image/png", "iVBORw0KGgpyZXN0")
    );
    stage.put("b", b"a\0b");
    let binary = stage.told("read_file", json!({"path": "b"})).await;
    assert_eq!(binary, "[binary file of 3 bytes: b]");
    stage.put("latin", b"caf\xe9\n");
    let latin = stage.told("read_file", json!({"path": "latin"})).await;
    assert_eq!(latin, "[binary file of 5 bytes: latin]");
}

#[tokio::test]
async fn a_file_is_written_whole_with_the_directories_above_it() {
    let stage = Stage::new();
    let arguments = json!({"path": "a/b/c.txt", "content": "héllo\n"});
    let told = stage.told("write_file", arguments.clone()).await;
    assert_eq!(told, "Created a/b/c.txt (7 bytes)");
    assert_eq!(stage.text("a/b/c.txt").unwrap(), "héllo\n");
    let told = stage.told("write_file", arguments).await;
    assert_eq!(told, "Replaced a/b/c.txt (7 bytes)");
    let refused = stage.refused("write_file", json!({"path": "a", "content": ""}));
    assert_eq!(refused.await, "`a` is a directory");
}

#[tokio::test]
async fn a_string_is_replaced_where_it_is_the_only_one() {
    let stage = Stage::new();
    stage.put("f", "a\nb\na\n");
    let edit = |old: &str, new: &str| json!({"path": "f", "old": old, "new": new});
    let refused = stage.refused("edit_file", edit("a", "x")).await;
    assert!(
        refused.contains("occurs 2 times in `f`, at lines 1, 3"),
        "{refused}"
    );
    let refused = stage.refused("edit_file", edit("z", "x")).await;
    assert_eq!(refused, "`old` does not occur in `f`");
    let refused = stage.refused("edit_file", edit("", "x")).await;
    assert_eq!(refused, "`old` must not be empty");
    assert_eq!(stage.text("f").unwrap(), "a\nb\na\n");
    assert_eq!(
        stage.told("edit_file", edit("b\n", "B\n")).await,
        "Edited f at line 2"
    );
    let all = json!({"path": "f", "old": "a", "new": "x", "replace_all": true});
    assert!(stage.told("edit_file", all).await.contains("in 2 places"));
    assert_eq!(stage.text("f").unwrap(), "x\nB\nx\n");
}

#[tokio::test]
async fn directories_are_listed_names_found_and_lines_searched() {
    let stage = Stage::new();
    stage.put("src/main.rs", "fn main() {\n    start();\n}\n");
    stage.put("src/deep/x.rs", "fn Start() {}\n");
    stage.put("README", "start here\n");
    assert_eq!(
        stage.told("list_directory", json!({})).await,
        "README\nsrc/"
    );
    assert_eq!(
        stage
            .told("list_directory", json!({"path": ".", "depth": 3}))
            .await,
        "README\nsrc/\nsrc/deep/\nsrc/deep/x.rs\nsrc/main.rs"
    );
    let found = stage.told("find_files", json!({"glob": "**/*.rs"})).await;
    assert_eq!(found, "src/deep/x.rs\nsrc/main.rs");
    let refused = stage.refused("find_files", json!({})).await;
    assert_eq!(refused, "give either `glob` or `query`");
    let search = json!({"pattern": "start\\(", "context_lines": 1});
    assert_eq!(
        stage.told("search_files", search).await,
        "src/main.rs-1-fn main() {\nsrc/main.rs:2:    start();\nsrc/main.rs-3-}\n"
    );
    let search = json!({"pattern": "START", "ignore_case": true, "glob": "*.rs", "max_matches": 1});
    let found = stage.told("search_files", search).await;
    assert!(
        found.contains("[there are more than these 1 matches]"),
        "{found}"
    );
    let refused = stage.refused("search_files", json!({"pattern": "("})).await;
    assert!(refused.contains("pattern"), "{refused}");
}

#[tokio::test]
async fn a_search_shows_no_more_than_a_model_can_read() {
    let stage = Stage::new();
    stage.put("wide", format!("{}\n", "needle ".repeat(100)).repeat(1000));
    let search = json!({"pattern": "needle", "max_matches": 1000});
    let found = stage.told("search_files", search).await;
    assert!(found.len() < 130 << 10, "{}", found.len());
    assert!(
        found.contains("[there are more than these "),
        "{}",
        found.len()
    );
}

#[tokio::test]
async fn a_change_ends_a_watch_and_so_does_its_time() {
    let stage = Stage::new();
    let nothing = stage.told("watch_files", json!({"timeout_ms": 50})).await;
    assert_eq!(nothing, "Nothing has changed for 0.1 seconds.");
    let watch = stage.told("watch_files", json!({"timeout_ms": 60_000}));
    let change = async {
        // The watch may not have begun: changes go on until it tells one.
        for name in 0.. {
            stage.put(&format!("new-{name}"), "");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let told = timeout(Duration::from_secs(20), async {
        tokio::select! { told = watch => told, () = change => String::new() }
    });
    let told = told.await.unwrap();
    assert!(told.starts_with("created new-"), "{told}");
}

#[tokio::test]
async fn wrong_arguments_are_named() {
    let stage = Stage::new();
    for (tool, arguments, says) in [
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
        let refused = stage.refused(tool, arguments).await;
        assert!(refused.contains(says), "{tool}: {refused}");
    }
}

#[test]
fn tools_that_write_are_not_offered_where_nothing_can_be_written() {
    let names = |enclosure| -> Vec<String> {
        let tools = tool::tools(enclosure);
        tools
            .iter()
            .map(|tool| tool.definition().name.to_string())
            .collect()
    };
    let all = names(Enclosure::WorkspaceWrite);
    let few = names(Enclosure::ReadOnly);
    let missing: Vec<_> = all.iter().filter(|name| !few.contains(name)).collect();
    assert_eq!(missing, ["write_file", "edit_file", "apply_patch"]);
}

#[test]
fn schemas_use_words_that_every_client_knows() {
    for tool in tool::tools(Enclosure::Open) {
        let definition = tool.definition();
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
async fn an_edit_that_would_blow_a_file_up_is_refused() {
    let stage = Stage::new();
    let before = "a".repeat(1 << 20);
    stage.put("a.txt", &before);
    // All of it would be 64 GiB.
    let new = "b".repeat(1 << 16);
    let edit = json!({"path": "a.txt", "old": "a", "new": new, "replace_all": true});
    let refused = stage.refused("edit_file", edit).await;
    assert!(refused.contains("too large"), "{refused}");
    assert_eq!(stage.text("a.txt").unwrap(), before);
}

#[tokio::test]
async fn an_edit_keeps_the_line_ends_of_the_file() {
    let stage = Stage::new();
    stage.put("f", "one\r\ntwo\r\nthree\r\n");
    let edit = json!({"path": "f", "old": "one\ntwo\n", "new": "1\n2\n2b\n"});
    let told = stage.told("edit_file", edit).await;
    assert_eq!(told, "Edited f at line 1");
    assert_eq!(stage.text("f").unwrap(), "1\r\n2\r\n2b\r\nthree\r\n");
    let edit = json!({"path": "f", "old": "three", "new": "3\n4"});
    stage.told("edit_file", edit).await;
    assert_eq!(stage.text("f").unwrap(), "1\r\n2\r\n2b\r\n3\r\n4\r\n");
    // Whoever writes them as they are means them.
    let edit = json!({"path": "f", "old": "3\r\n4", "new": "5\r\n6"});
    stage.told("edit_file", edit).await;
    assert_eq!(stage.text("f").unwrap(), "1\r\n2\r\n2b\r\n5\r\n6\r\n");
    stage.put("g", "one\ntwo\r\n");
    let edit = json!({"path": "g", "old": "one", "new": "1\n1b"});
    stage.told("edit_file", edit).await;
    assert_eq!(stage.text("g").unwrap(), "1\n1b\ntwo\r\n");
}

#[tokio::test]
async fn a_search_that_gave_up_does_not_say_that_there_is_nothing() {
    let stage = Stage::new();
    stage.put("wide.json", "x".repeat(9 << 20));
    let told = stage
        .told("search_files", json!({"pattern": "needle"}))
        .await;
    assert!(told.contains("not everything could be searched"), "{told}");
}

#[tokio::test]
async fn a_binary_file_that_was_named_is_said_to_be_binary() {
    let stage = Stage::new();
    stage.put("b", b"a\0needle\n");
    stage.put("t", b"hay\n");
    let search = json!({"pattern": "needle", "path": "b"});
    let told = stage.told("search_files", search).await;
    assert!(told.contains("`b` is a binary file"), "{told}");
    let search = json!({"pattern": "needle", "path": "t"});
    assert_eq!(
        stage.told("search_files", search).await,
        "Nothing was found."
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_does_not_outlast_the_patience_of_its_client() {
    let stage = Stage::new();
    let watch = stage.told("watch_files", json!({"timeout_ms": 120_000}));
    let told = timeout(Duration::from_secs(60), watch).await.unwrap();
    assert_eq!(told, "Nothing has changed for 50.0 seconds.");
}

#[tokio::test]
async fn links_are_listed_and_names_begin_where_the_listing_does() {
    let stage = Stage::new();
    stage.put("top/dir/file", "");
    stage.put("top/plain", "");
    let at = |name: &str| stage.directory.path().join(name);
    symlink("plain", at("top/link")).unwrap();
    symlink("dir", at("top/ways")).unwrap();
    symlink("../plain", at("top/dir/back")).unwrap();
    assert_eq!(
        stage.told("list_directory", json!({"path": "top"})).await,
        "dir/\nlink@\nplain\nways@/"
    );
    assert_eq!(
        stage
            .told("list_directory", json!({"path": "top", "depth": 3}))
            .await,
        "dir/\ndir/back@\ndir/file\nlink@\nplain\nways@/"
    );
}

#[tokio::test]
async fn a_path_may_be_a_uri_and_is_never_taken_for_a_name() {
    let stage = Stage::new();
    stage.put("a b.txt", "here\n");
    let root = stage.directory.path().display().to_string();
    let uri = format!("file://{root}/a%20b.txt");
    assert_eq!(
        stage.told("read_file", json!({"path": uri})).await,
        "here\n"
    );
    let refused = stage.refused("write_file", json!({"path": "file://", "content": ""}));
    assert!(refused.await.contains("file://"));
    let refused = stage.refused("write_file", json!({"path": "https://x/y", "content": ""}));
    assert!(refused.await.contains("not a path"));
    assert!(stage.text("https:/x/y").is_none());
}

#[tokio::test]
async fn the_home_directory_is_told_or_refused() {
    let stage = Stage::new();
    let refused = stage.refused("write_file", json!({"path": "~/x", "content": ""}));
    let refused = refused.await;
    assert!(refused.contains("home directory is not known"), "{refused}");
    let refused = stage.refused("write_file", json!({"path": "~other/x", "content": ""}));
    let refused = refused.await;
    assert!(refused.contains("`~other`"), "{refused}");
    assert!(!stage.directory.path().join("~").exists());
    stage.put("~kept", "x\n");
    assert_eq!(
        stage.told("read_file", json!({"path": "./~kept"})).await,
        "x\n"
    );
}

#[tokio::test]
async fn a_directory_is_not_written_as_a_file() {
    let stage = Stage::new();
    for path in ["new/", "new/.", "new/.."] {
        let refused = stage.refused("write_file", json!({"path": path, "content": ""}));
        let refused = refused.await;
        assert!(refused.contains("names a directory"), "{refused}");
    }
    let patch = "*** Begin Patch\n*** Add File: new/\n+x\n*** End Patch\n";
    let refused = stage.refused("apply_patch", json!({"patch": patch})).await;
    assert!(refused.contains("names a directory"), "{refused}");
    assert!(!stage.directory.path().join("new").exists());
}

#[tokio::test]
async fn globs_are_understood_as_they_are_typed() {
    let stage = Stage::new();
    stage.put("src/a.rs", "needle\n");
    stage.put("src/deep/b.rs", "needle\n");
    let root = stage.directory.path().display().to_string();
    for (glob, found) in [
        ("./src/*.rs", "src/a.rs"),
        (&*format!("{root}/src/*.rs"), "src/a.rs"),
        ("src//*.rs", "src/a.rs"),
    ] {
        let told = stage.told("find_files", json!({"glob": glob})).await;
        assert_eq!(told, found, "{glob}");
        let search = json!({"pattern": "needle", "glob": glob});
        let told = stage.told("search_files", search).await;
        assert_eq!(told, format!("{found}:1:needle\n"), "{glob}");
    }
    let below = json!({"path": "src", "glob": format!("{root}/src/deep/*.rs")});
    assert_eq!(stage.told("find_files", below).await, "src/deep/b.rs");
    for glob in ["!*.rs", "/nowhere/*.rs", "../*.rs"] {
        let refused = stage.refused("find_files", json!({"glob": glob})).await;
        assert!(refused.contains("`glob`"), "{glob}: {refused}");
    }
}
