//! Table tests: a tree, a policy, and the expected view.

mod entries;
mod globs;
mod links;
mod metadata;
mod profiles;
mod random;

use std::{fs, os::unix::fs::symlink, sync::Arc};

use exec_wire::{path_uri::PathUri, sandbox::SandboxPolicy};
use serde_json::{Value, json};

use super::{PolicyError, PolicyPurpose, ResolveContext, reference_model, resolve};
use crate::{
    facts::{HostFacts, MemoryTree},
    plan::{FileAccess, FileView, PathAccess},
};

/// Builds a policy from lines such as `write /a`, `read :roots/sub` or `deny *.pem`.
///
/// `:root`, `:minimal`, `:roots`, `:tmpdir`, `:tmp` and `:unknown` are special paths. A name that
/// starts with neither a slash nor a colon is a glob, and so is the text after `glob:`.
fn sandbox(entries: &str) -> SandboxPolicy {
    let lines = entries.lines().map(str::trim);
    let entries: Vec<Value> = lines.filter(|line| !line.is_empty()).map(entry).collect();
    let files = json!({"type": "restricted", "entries": entries});
    let permissions = json!({"type": "managed", "file_system": files, "network": "restricted"});
    serde_json::from_value(json!({
        "permissions": permissions,
        "cwd": "file:///ws",
        "workspaceRoots": ["file:///ws"],
        "windowsSandboxLevel": "disabled",
    }))
    .unwrap()
}

fn entry(line: &str) -> Value {
    let (access, name) = line.split_once(' ').unwrap();
    let special = |value: Value| json!({"type": "special", "value": value});
    let path = match name {
        ":root" => special(json!({"kind": "root"})),
        ":minimal" => special(json!({"kind": "minimal"})),
        ":roots" => special(json!({"kind": "project_roots"})),
        ":tmpdir" => special(json!({"kind": "tmpdir"})),
        ":tmp" => special(json!({"kind": "slash_tmp"})),
        ":unknown" => special(json!({"kind": "unknown", "path": "/x"})),
        name => match name.strip_prefix(":roots/") {
            Some(below) => special(json!({"kind": "project_roots", "subpath": below})),
            None if name.starts_with('/') => {
                json!({"type": "path", "path": format!("file://{name}")})
            }
            None => {
                let pattern = name.strip_prefix("glob:").unwrap_or(name);
                json!({"type": "glob_pattern", "pattern": pattern})
            }
        },
    };
    json!({"path": path, "access": access})
}

fn context() -> ResolveContext {
    ResolveContext {
        purpose: PolicyPurpose::Process,
        cwd: "/ws".into(),
        tmpdir: None,
        always_readable: Vec::new(),
        protected: Arc::default(),
    }
}

/// Resolves a policy and compares it with the reference model.
fn view(
    tree: &str,
    sandbox: &SandboxPolicy,
    context: &ResolveContext,
) -> Result<FileView, PolicyError> {
    let tree = MemoryTree::of(tree);
    let plan = resolve(sandbox, context, &tree)?;
    reference_model::check(&plan, sandbox, context, &tree);
    match plan.files {
        FileAccess::View(view) => Ok(view),
        FileAccess::All => panic!("expected a view"),
    }
}

/// Describes a view: base, layers, `no` for forbidden names, and `link` for links.
fn describe(view: &FileView) -> Vec<String> {
    let word = |access| match access {
        PathAccess::Hidden => "hide",
        PathAccess::Read => "read",
        PathAccess::Write => "write",
    };
    let layers = view
        .layers
        .iter()
        .map(|layer| format!("{} {}", word(layer.access), layer.path.display()));
    let forbidden = view
        .forbidden
        .iter()
        .map(|name| format!("no {}", name.directory.join(&name.name).display()));
    let links = view
        .links
        .iter()
        .map(|(link, target)| format!("link {} -> {}", link.display(), target.display()));
    let base = [word(view.base).to_owned()];
    base.into_iter()
        .chain(layers)
        .chain(forbidden)
        .chain(links)
        .collect()
}

/// Checks the view of a policy, ignoring forbidden metadata names.
#[track_caller]
fn check(tree: &str, entries: &str, expected: &[&str]) {
    let view = view(tree, &sandbox(entries), &context()).unwrap();
    let metadata = [".git", ".agents", ".codex", ".aws"];
    let is_metadata = |line: &String| {
        line.starts_with("no ")
            && metadata
                .iter()
                .any(|name| line.ends_with(&format!("/{name}")))
    };
    let lines: Vec<_> = describe(&view)
        .into_iter()
        .filter(|line| !is_metadata(line))
        .collect();
    assert_eq!(lines, expected, "{entries}");
}

/// Checks why a policy is refused.
#[track_caller]
fn check_refused(tree: &str, entries: &str, expected: &str) {
    let error = view(tree, &sandbox(entries), &context()).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn real_workspace_is_resolved() {
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
    let FileAccess::View(view) = resolve(&policy, &context(), &HostFacts).unwrap().files else {
        panic!("expected a view");
    };
    let text = describe(&view).join("\n");
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
