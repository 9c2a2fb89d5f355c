//! The facts of a real host come to the same as those of a tree in memory.

use std::{fs, os::unix::fs::symlink};

use exec_wire::path_uri::PathUri;

use super::*;
use crate::facts::HostFacts;

#[test]
fn a_real_workspace_is_resolved() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    for path in ["ws/src", "store", "far/.git"] {
        fs::create_dir_all(root.join(path)).unwrap();
    }
    fs::write(root.join("ws/.git"), "gitdir: ../store\n").unwrap();
    fs::write(root.join("ws/src/.env"), "").unwrap();
    symlink("src/.env", root.join("ws/link.pem")).unwrap();
    symlink("../far", root.join("ws/far")).unwrap();
    let mut policy = sandbox("read :root\nwrite :roots\ndeny *.pem\nread :roots/far/none");
    let uri = |path: &str| PathUri::from_native(&root.join(path)).unwrap();
    policy.workspace_roots = vec![uri("ws"), uri("store")];
    policy.cwd = Some(uri("ws"));
    let Files::View(view) = resolve(&policy, &context(), &HostFacts).unwrap().files else {
        panic!("nothing is restricted");
    };
    let text = shown(&view).join("\n");
    let lines: Vec<_> = text
        .lines()
        .map(|line| line.replace(&format!("{}/", root.display()), ""))
        .filter(|line| !line.starts_with("no store/"))
        .collect();
    assert_eq!(
        lines,
        [
            "read",
            "write store",
            "write ws",
            "read ws/.git",
            "hide ws/src/.env",
            "no ws/.agents",
            "no ws/.aws",
            "no ws/.codex",
            "no ws/far",
            "no ws/link.pem",
        ]
    );
}
