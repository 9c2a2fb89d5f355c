//! Globs: existing matches are hidden.

use super::*;

const TREE: &str = "
    /ws/.env
    /ws/a/.env
    /ws/a/b/.env
    /ws/a/key.pem
    /ws/a/keys/one/two
    /ws/linked -> /out
    /ws/a/link.pem -> /out/real
    /out/.env
    /out/real
";

#[track_caller]
fn check_hidden(pattern: &str, hidden: &[&str]) {
    let entries = format!("read :root\ndeny glob:{pattern}");
    let hidden = hidden.iter().map(|path| format!("hide {path}"));
    let expected: Vec<_> = ["read".to_owned()].into_iter().chain(hidden).collect();
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    check(TREE, &entries, &expected);
}

#[test]
fn matches_are_hidden() {
    check_hidden("**/.env", &["/ws/.env", "/ws/a/.env", "/ws/a/b/.env"]);
    check_hidden("*/.env", &["/ws/a/.env"]);
    check_hidden("/ws/a/**/.env", &["/ws/a/.env", "/ws/a/b/.env"]);
    check_hidden("./a//.e?v/", &["/ws/a/.env"]);
    check_hidden("{a,b}/[.]env", &["/ws/a/.env"]);
    check_hidden("../out/*", &["/out/.env", "/out/real"]);
    check_hidden("none/*", &[]);
    check_hidden(".env/*", &[]);
    check_hidden(".env", &["/ws/.env"]);
    check_hidden("codex-project-roots://*/.env", &["/ws/a/.env"]);
}

#[test]
fn matching_directory_is_hidden_with_its_content() {
    check_hidden("a/keys/**", &["/ws/a/keys/one"]);
    check_hidden("*/key*", &["/ws/a/key.pem", "/ws/a/keys"]);
}

#[test]
fn matching_links_are_masked_with_their_targets() {
    check_hidden("**/*.pem", &["/out/real", "/ws/a/key.pem"]);
    check_hidden("link*", &["/out"]);
    check_hidden("linked/*", &["/out/.env", "/out/real"]);
    check_hidden("**/one", &["/ws/a/keys/one"]);
    check(
        TREE,
        "write /ws\ndeny **/*.pem",
        &[
            "hide",
            "write /ws",
            "hide /ws/a/key.pem",
            "no /ws/a/link.pem",
        ],
    );
    // The target of a link below a match is elsewhere.
    check_hidden(
        "a/**",
        &[
            "/out/real",
            "/ws/a/.env",
            "/ws/a/b",
            "/ws/a/key.pem",
            "/ws/a/keys",
        ],
    );
}

#[test]
fn glob_scan_respects_the_depth_limit() {
    for (depth, count) in [(1, 1), (2, 2), (3, 3), (9, 3)] {
        let mut policy = serde_json::to_value(sandbox("read :root\ndeny **/.env")).unwrap();
        policy["permissions"]["file_system"]["glob_scan_max_depth"] = json!(depth);
        let policy = serde_json::from_value(policy).unwrap();
        let view = view(TREE, &policy, &context()).unwrap();
        assert_eq!(view.layers.len(), count, "{depth}");
    }
}

#[test]
fn unlistable_directory_is_hidden() {
    let tree = "/ws/a\n/ws/closed !\n/ws/closed/.env";
    let expected = &["read", "write /ws", "hide /ws/closed"];
    check(tree, "read :root\nwrite /ws\ndeny **/.env", expected);
    check(tree, "read :root\nwrite /ws\ndeny closed/x/*", expected);
}

#[test]
fn globs_only_deny_and_start_below_the_root() {
    for (entries, expected) in [
        (
            "read :root\nread **/.env",
            "entries[1]: glob \"**/.env\" may only deny access",
        ),
        (
            "write :root\nwrite *",
            "entries[1]: glob \"*\" may only deny access",
        ),
        (
            "deny glob:/**/.env",
            "entries[0]: glob \"/**/.env\" has no fixed directory below the root",
        ),
        ("deny glob:../*", "has no fixed directory below the root"),
        ("deny glob:/top/*", "has no fixed directory below the root"),
        ("deny a/{b", "entries[0]: glob \"a/{b\" is invalid"),
        ("deny */../b", "has `.` or `..` after a wildcard"),
    ] {
        check_refused("/ws/\n/top -> .", entries, expected);
    }
}

#[test]
fn match_count_is_limited() {
    let tree = |count: usize| -> String {
        let lines = (0..count).map(|number| format!("/ws/d/{number}.x\n"));
        lines.collect()
    };
    let policy = sandbox("read :root\ndeny d/*.x\ndeny d/?.x");
    let plan = resolve(&policy, &context(), &MemoryTree::of(&tree(8192))).unwrap();
    let FileAccess::View(view) = plan.files else {
        panic!("expected a view");
    };
    assert_eq!(view.layers.len(), 8192);
    let error = resolve(&policy, &context(), &MemoryTree::of(&tree(8193))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "permissions.file_system.entries[1]: glob \"d/*.x\" matches more than 8192 files"
    );
    let globs: String = (0..257).map(|number| format!("deny {number}*\n")).collect();
    check_refused("/ws/", &globs, "more than 256 globs");
}

#[test]
fn allowed_path_below_a_match_is_denied_if_it_matches_too() {
    check("/ws/a/b/x", "read /ws/a/b\ndeny **/{a,b}", &["hide"]);
    check(
        "/ws/a/c/b/x",
        "read /ws/a/c\ndeny **/{a,b}",
        &["hide", "read /ws/a/c", "hide /ws/a/c/b"],
    );
}
