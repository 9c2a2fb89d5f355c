//! Metadata below writable directories.

use super::*;

#[track_caller]
fn check_all(tree: &str, entries: &str, expected: &[&str]) {
    let view = view(tree, &sandbox(entries), &context()).unwrap();
    assert_eq!(describe(&view), expected, "{entries}");
}

const MISSING: [&str; 3] = ["no /ws/.agents", "no /ws/.aws", "no /ws/.codex"];

#[test]
fn metadata_is_read_only_or_cannot_be_created() {
    check_all(
        "/ws/.git/\n/ws/.codex\n/ws/a/.git/",
        "read :root\nwrite /ws",
        &[
            "read",
            "write /ws",
            "read /ws/.codex",
            "read /ws/.git",
            "no /ws/.agents",
            "no /ws/.aws",
        ],
    );
}

#[test]
fn entry_for_metadata_overrides_its_protection() {
    let tree = "/ws/.git/\n/ws/.aws/";
    check_all(
        tree,
        "write /ws\nwrite /ws/.git\nwrite /ws/.codex\nwrite :roots/.agents\ndeny /ws/.aws",
        &[
            "hide",
            "write /ws",
            "hide /ws/.aws",
            "no /ws/.git/.agents",
            "no /ws/.git/.aws",
            "no /ws/.git/.codex",
            "no /ws/.git/.git",
        ],
    );
    // A path below the metadata is not the metadata itself.
    check_all(
        "/ws/.git/hooks/",
        "write /ws\nwrite /ws/.git/hooks",
        &[
            "hide",
            "write /ws",
            "read /ws/.git",
            "write /ws/.git/hooks",
            "no /ws/.agents",
            "no /ws/.aws",
            "no /ws/.codex",
            "no /ws/.git/hooks/.agents",
            "no /ws/.git/hooks/.aws",
            "no /ws/.git/hooks/.codex",
            "no /ws/.git/hooks/.git",
        ],
    );
}

#[test]
fn files_have_no_metadata() {
    check_all("/ws/file", "write /ws/file", &["hide", "write /ws/file"]);
}

#[test]
fn metadata_link_is_protected_with_its_target() {
    let all = |lines: &[&'static str]| [lines, &MISSING, &["no /ws/.git"]].concat();
    check_all(
        "/ws/.git -> store\n/ws/store/",
        "write /ws",
        &all(&["hide", "write /ws", "read /ws/store"]),
    );
    check_all(
        "/ws/.git -> /far\n/far/",
        "read :root\nwrite /ws",
        &all(&["read", "write /ws"]),
    );
    let gone = &[
        "hide",
        "write /ws",
        "no /ws/.agents",
        "no /ws/.aws",
        "no /ws/.codex",
        "no /ws/.git",
        "no /ws/gone",
    ];
    check_all("/ws/.git -> gone/x", "write /ws", gone);
    check_all(
        "/ws/.git -> store\n/ws/store",
        "write /ws\nwrite /ws/.git",
        &[&["hide", "write /ws"], &MISSING[..]].concat(),
    );
}

#[test]
fn directory_named_by_a_git_file_is_protected() {
    let with = |layers: &[&'static str]| [&["hide", "write /ws"], layers, &MISSING].concat();
    check_all(
        "/ws/.git = gitdir: ./store/ws\\n\n/ws/store/ws/",
        "write /ws",
        &with(&["read /ws/.git", "read /ws/store/ws"]),
    );
    check_all(
        "/ws/.git = gitdir: /ws/store/ws\n/ws/store/ws/commondir = ../shared\\n\n/ws/store/shared/",
        "write /ws",
        &with(&[
            "read /ws/.git",
            "read /ws/store/shared",
            "read /ws/store/ws",
        ]),
    );
    check_all(
        "/ws/.git = gitdir: /far\n/far/",
        "write /ws",
        &with(&["read /ws/.git"]),
    );
    check_all("/ws/.git = nothing", "write /ws", &with(&["read /ws/.git"]));
    // A directory that does not exist yet must not be created.
    check_all(
        "/ws/.git = gitdir: later",
        "write /ws",
        &[&with(&["read /ws/.git"])[..], &["no /ws/later"]].concat(),
    );
    let behind_a_link = "/ws/.git -> file\n/ws/file = gitdir: store\n/ws/store/";
    check_all(
        behind_a_link,
        "write /ws",
        &[
            &with(&["read /ws/file", "read /ws/store"])[..],
            &["no /ws/.git"],
        ]
        .concat(),
    );
}

#[test]
fn replaceable_write_link_to_a_readable_directory_protects_its_git_directory() {
    // The link grants nothing, but its target still counts as a writable root: otherwise the plan
    // would allow more than the policy.
    check_all(
        "/ws/.git = gitdir: ../store\n/store/\n/link -> ws",
        "read /ws\nwrite /link\nwrite :root\ndeny /none",
        &[
            "read",
            "write /",
            "read /store",
            "read /ws",
            "no /.agents",
            "no /.aws",
            "no /.codex",
            "no /.git",
            "no /none",
        ],
    );
}

#[test]
fn each_writable_root_protects_its_metadata() {
    check_all(
        "/ws/a/.git/\n/ws/.git/\n/ws/.codex/\n/ws/.aws/\n/ws/.agents/",
        "write /ws\nwrite /ws/a",
        &[
            "hide",
            "write /ws",
            "read /ws/.agents",
            "read /ws/.aws",
            "read /ws/.codex",
            "read /ws/.git",
            "read /ws/a/.git",
            "no /ws/a/.agents",
            "no /ws/a/.aws",
            "no /ws/a/.codex",
        ],
    );
    // A root that another entry denies has no metadata.
    check_all(
        "/ws/",
        "read :root\nwrite /ws\ndeny /ws",
        &["read", "hide /ws"],
    );
}
