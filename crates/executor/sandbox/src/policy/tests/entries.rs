//! Entries: which paths they name, and which of them applies.

use super::*;

const TREE: &str = "
    /ws/a/b/file
    /ws/c/
    /other/
    /tmp/own/
    /etc/
    /usr/bin/tool
    /lib/
";

#[test]
fn most_specific_entry_wins() {
    check(
        TREE,
        "read /ws\nwrite /ws/a",
        &["hide", "read /ws", "write /ws/a"],
    );
    check(
        TREE,
        "write /ws\nread /ws/a\nwrite /ws/a/b\ndeny /ws/a/b/file",
        &[
            "hide",
            "write /ws",
            "read /ws/a",
            "write /ws/a/b",
            "hide /ws/a/b/file",
        ],
    );
}

#[test]
fn deny_overrides_write_overrides_read() {
    check(TREE, "read /ws\nwrite /ws", &["hide", "write /ws"]);
    check(
        TREE,
        "read :root\nwrite /ws\ndeny /ws",
        &["read", "hide /ws"],
    );
    check(
        TREE,
        "read :root\nread /ws\ndeny /ws",
        &["read", "hide /ws"],
    );
    check(TREE, "deny :root\nread /ws", &["hide", "read /ws"]);
}

#[test]
fn unnamed_paths_are_hidden() {
    check(TREE, "", &["hide"]);
    check(TREE, "read /other", &["hide", "read /other"]);
    check(TREE, "deny /other", &["hide"]);
}

#[test]
fn redundant_layers_are_dropped() {
    check(
        TREE,
        "read :root\nread /ws\nwrite /ws/a\nwrite /ws/a/b\nread /ws/a/b/file\nread /other",
        &["read", "write /ws/a", "read /ws/a/b/file"],
    );
}

#[test]
fn restricted_writable_root_becomes_a_layer() {
    check(
        TREE,
        "write :root\nread /ws\ndeny /other",
        &["read", "write /", "hide /other", "read /ws"],
    );
}

#[test]
fn single_file_becomes_a_layer() {
    let tree = MemoryTree::of(TREE);
    let policy = sandbox("read :root\nwrite /ws/a/b/file");
    let FileAccess::View(view) = resolve(&policy, &context(), &tree).unwrap().files else {
        panic!("expected a view");
    };
    assert_eq!(describe(&view), ["read", "write /ws/a/b/file"]);
    assert_eq!(view.layers[0].kind, crate::plan::PathKind::File);
}

#[test]
fn special_paths_are_resolved() {
    check(
        TREE,
        "read :roots\nwrite :roots/c",
        &["hide", "read /ws", "write /ws/c"],
    );
    check(TREE, "read :roots/./c/", &["hide", "read /ws/c"]);
    check(TREE, "write :tmp", &["hide", "write /tmp"]);
    check("/ws/", "read :tmp\nwrite :root", &["read", "write /"]);
    check("/tmp -> gone", "read :tmp", &["hide"]);
    check(TREE, "read :unknown", &["hide"]);
    check(
        TREE,
        "read :minimal",
        &["hide", "read /etc", "read /lib", "read /usr"],
    );
}

#[test]
fn minimal_set_only_adds_access() {
    check(TREE, "read :root\nread :minimal", &["read"]);
    check(TREE, "deny :minimal", &["hide"]);
    check(TREE, "write :root\nread :minimal", &["read", "write /"]);
    check(
        TREE,
        "deny :root\nread :minimal\nwrite /usr\ndeny /etc",
        &["hide", "read /lib", "write /usr"],
    );
    let merged = "/usr/bin/\n/bin -> usr/bin";
    check(merged, "deny /usr\nread :minimal", &["hide"]);
}

#[test]
fn tmpdir_is_taken_from_the_command() {
    let with = |tmpdir: &str, entry: &str| {
        let context = ResolveContext {
            tmpdir: Some(tmpdir.into()),
            ..context()
        };
        view(TREE, &sandbox(entry), &context).map(|view| describe(&view).join(" "))
    };
    let full = "hide write /tmp/own no /tmp/own/.agents no /tmp/own/.aws no /tmp/own/.codex no /tmp/own/.git";
    assert_eq!(with("/tmp/own", "write :tmpdir").unwrap(), full);
    assert_eq!(with("", "write :tmpdir").unwrap(), "hide");
    assert_eq!(with("own", "write :tmpdir").unwrap(), "hide");
    check(TREE, "write :tmpdir", &["hide"]);
    let error = with("own", "deny :tmpdir").unwrap_err();
    assert_eq!(error, PolicyError::RelativeTmpdir { entry: 0 });
}

#[test]
fn missing_paths_are_skipped_or_forbidden() {
    check(TREE, "read /none\nwrite /nothing/at/all", &["hide"]);
    check(TREE, "read :root\ndeny /none", &["read"]);
    check(
        TREE,
        "write /ws\nread /ws/none\ndeny /ws/a/x/y\nwrite /ws/new",
        &["hide", "write /ws", "no /ws/none", "no /ws/a/x"],
    );
    check(
        TREE,
        "write /ws\nread /ws/new\nwrite /ws/new",
        &["hide", "write /ws"],
    );
    check(
        TREE,
        "write /ws\nwrite /ws/new\ndeny /ws/new",
        &["hide", "write /ws", "no /ws/new"],
    );
    check(
        TREE,
        "write /ws\nread /ws/a\ndeny /ws/a/none",
        &["hide", "write /ws", "read /ws/a"],
    );
    check(
        TREE,
        "write /ws\ndeny /ws/a/b/file/x",
        &["hide", "write /ws"],
    );
}

#[test]
fn always_readable_paths_stay_readable() {
    let context = ResolveContext {
        always_readable: vec!["/usr/bin/tool".into(), "/none".into()],
        ..context()
    };
    let lines = |entries: &str| describe(&view(TREE, &sandbox(entries), &context).unwrap());
    assert_eq!(lines(""), ["hide", "read /usr/bin/tool"]);
    assert_eq!(lines("read :root"), ["read"]);
    assert_eq!(
        lines("read :root\ndeny /usr"),
        ["read", "hide /usr", "read /usr/bin/tool"]
    );
    assert_eq!(lines("read :root\ndeny /usr/bin/tool").len(), 2);
}

#[test]
fn protected_paths_stay_read_only_despite_write_entries() {
    let tree = "
        /home/me/.local/run/server.sock
        /home/me/.local/run/lock
        /home/me/.local/run/below/
        /home/me/link -> .local/run
        /tmp/
        /ws/own.sock
    ";
    let lines = |protected: &str, entries: &str| {
        let context = ResolveContext {
            protected: Arc::from([protected.into()]),
            ..context()
        };
        let metadata = |line: &String| {
            ![".git", ".agents", ".codex", ".aws"]
                .iter()
                .any(|name| line.ends_with(name))
        };
        let describe = describe(&view(tree, &sandbox(entries), &context).unwrap());
        describe.into_iter().filter(metadata).collect::<Vec<_>>()
    };
    let run = "/home/me/.local/run";
    for write in ["/home", "/home/me", "/home/me/.local"] {
        let entries = format!("read :root\nwrite {write}");
        let expected = [
            "read".to_owned(),
            format!("write {write}"),
            format!("read {run}"),
        ];
        assert_eq!(lines(run, &entries), expected, "{write}");
    }
    for write in [run, "/home/me/link", "/home/me/.local/run/server.sock"] {
        let entries = format!("read :root\nwrite {write}");
        assert_eq!(lines(run, &entries), ["read"], "{write}");
    }
    // Only direct children of a protected directory are protected.
    assert_eq!(
        lines(run, "read :root\nwrite /home/me/.local/run/below"),
        ["read", "write /home/me/.local/run/below"]
    );
    assert_eq!(
        lines("/ws/own.sock", "read :root\nwrite /ws\nwrite /ws/own.sock"),
        ["read", "write /ws", "read /ws/own.sock"]
    );
    assert_eq!(
        lines("/tmp/none/run", "read :root\nwrite /tmp"),
        ["read", "write /tmp", "no /tmp/none"]
    );
    assert_eq!(
        lines("/home/me/link", "read :root\nwrite /home/me"),
        [
            "read",
            "write /home/me",
            "read /home/me/.local/run",
            "no /home/me/link"
        ]
    );
}

#[test]
fn unsearchable_directory_is_capped_at_the_access_of_its_entry() {
    let tree = "/ws/closed !\n/ws/closed/x\n/shut !\n/shut/x";
    let write = "read :root\nwrite /ws\n";
    check(
        tree,
        &format!("{write}deny /shut/x"),
        &["read", "hide /shut", "write /ws"],
    );
    check(
        tree,
        &format!("{write}deny /ws/closed/x"),
        &["read", "write /ws", "hide /ws/closed"],
    );
    check(
        tree,
        &format!("{write}read /ws/closed/x\nread /shut/x"),
        &["read", "write /ws", "read /ws/closed"],
    );
    check(
        tree,
        &format!("{write}write /ws/closed/x"),
        &["read", "write /ws"],
    );
}

#[test]
fn foreign_path_is_refused_and_named() {
    check_refused(
        TREE,
        "read :root\nread /C:/x",
        "permissions.file_system.entries[1]: path URI `file:///C:/x` is not valid on this host",
    );
    for (below, index) in [("../x", 0), ("/etc", 0), ("a/../b", 0)] {
        let expected = format!("entries[{index}]: subpath \"{below}\"");
        check_refused(TREE, &format!("write :roots/{below}"), &expected);
    }
    let mut policy = sandbox("read /ws");
    policy.workspace_roots = vec!["file:///D:/ws".parse().unwrap()];
    let error = view(TREE, &policy, &context()).unwrap_err().to_string();
    assert!(error.starts_with("workspaceRoots[0]: "), "{error}");
    policy.cwd = Some("file:///C:/ws".parse().unwrap());
    let error = view(TREE, &policy, &context()).unwrap_err().to_string();
    assert!(error.starts_with("cwd: "), "{error}");
}

#[test]
fn policy_size_is_limited() {
    let many = |count: usize| sandbox(&"read /x\n".repeat(count));
    assert!(view(TREE, &many(4096), &context()).is_ok());
    let error = view(TREE, &many(4097), &context()).unwrap_err();
    assert_eq!(error, PolicyError::TooManyEntries(4097));
    let mut policy = sandbox(&"read :roots\n".repeat(2000));
    policy.workspace_roots = vec!["file:///ws".parse().unwrap(); 3];
    let error = view(TREE, &policy, &context()).unwrap_err();
    assert_eq!(error, PolicyError::TooManyTargets);
    policy.workspace_roots = vec!["file:///ws".parse().unwrap(); 257];
    let error = view(TREE, &policy, &context()).unwrap_err();
    assert_eq!(error, PolicyError::TooManyWorkspaceRoots(257));
}

#[test]
fn write_entry_for_proc_is_read_only_behind_links_and_unsearchable_directories() {
    check(
        "/ws/\n/proc/b/.git/a/\n/proc/b !",
        "write :root\nread /ws\nwrite /proc/b/.git",
        &["read", "write /", "read /ws", "read /proc/b"],
    );
    check(
        "/ws/\n/proc/a/\n/out -> /proc/.env",
        "write :root\nread /ws\nwrite /out",
        &["read", "write /", "read /ws", "no /proc/.env"],
    );
}
