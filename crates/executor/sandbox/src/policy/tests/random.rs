//! Random trees and random policies, compared with the reference model.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

const NAMES: [&str; 6] = ["a", "b", ".env", ".git", ".codex", "data"];
const TOPS: [&str; 6] = ["ws", "tmp", "usr", "proc", "out", "bin"];

fn path() -> impl Strategy<Value = String> {
    (select(&TOPS[..]), vec(select(&NAMES[..]), 0..4)).prop_map(|(top, below)| {
        let below = below.into_iter().map(|name| format!("/{name}"));
        format!("/{top}{}", below.collect::<String>())
    })
}

fn node() -> impl Strategy<Value = String> {
    let target = prop_oneof![
        path(),
        select(&["..", "a", "../b", ".", "../../out", "/", "/ws", "gone/x"][..])
            .prop_map(str::to_owned),
    ];
    prop_oneof![
        4 => path().prop_map(|path| format!("{path}/")),
        3 => path(),
        3 => (path(), target.clone()).prop_map(|(path, target)| format!("{path} -> {target}")),
        1 => path().prop_map(|path| format!("{path} !")),
        1 => (path(), target).prop_map(|(path, target)| format!("{path} = gitdir: {target}")),
    ]
}

/// A tree in which only directories have children.
fn tree() -> impl Strategy<Value = String> {
    vec(node(), 0..14).prop_map(|lines| {
        let path_of = |line: &str| {
            let (path, _) = line.split_once(' ').unwrap_or((line, ""));
            path.trim_end_matches('/').to_owned()
        };
        let is_directory =
            |line: &str| line.ends_with(" !") || line.ends_with('/') && !line.contains(' ');
        let mut kept: Vec<String> = vec!["/ws/".to_owned()];
        for line in lines {
            let own_path = path_of(&line);
            let clashes = kept.iter().any(|other| {
                let other_path = path_of(other);
                let (below, above) = (format!("{other_path}/"), format!("{own_path}/"));
                own_path == other_path
                    || own_path.starts_with(&below) && !is_directory(other)
                    || other_path.starts_with(&above) && !is_directory(&line)
            });
            if !clashes {
                kept.push(line);
            }
        }
        kept.join("\n")
    })
}

fn rule() -> impl Strategy<Value = String> {
    let access = select(&["read", "write", "deny"][..]);
    let special = &[
        ":root",
        ":minimal",
        ":roots",
        ":roots/.git",
        ":roots/data",
        ":tmp",
        ":tmpdir",
    ];
    let glob = &[
        "**/.env",
        "*/a",
        "data/**",
        "**/{a,b}",
        "codex-project-roots://*",
        "glob:/out/*/b",
    ];
    prop_oneof![
        6 => (access.clone(), path()).prop_map(|(access, path)| format!("{access} {path}")),
        3 => (access, select(&special[..])).prop_map(|(access, path)| format!("{access} {path}")),
        1 => select(&glob[..]).prop_map(|glob| format!("deny {glob}")),
    ]
}

fn context_of(files: bool) -> ResolveContext {
    let purpose = if files {
        PolicyPurpose::Files
    } else {
        PolicyPurpose::Process
    };
    ResolveContext {
        purpose,
        tmpdir: Some("/tmp/data".into()),
        always_readable: vec!["/usr/a".into()],
        protected: Arc::from(["/ws/a".into(), "/tmp/b".into()]),
        ..context()
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn plan_never_exceeds_its_policy(
        tree in tree(), rules in vec(rule(), 0..8), files in any::<bool>(),
    ) {
        let (tree, sandbox, context) = (MemoryTree::of(&tree), sandbox(&rules.join("\n")), context_of(files));
        if let Ok(plan) = resolve(&sandbox, &context, &tree) {
            reference_model::check(&plan, &sandbox, &context, &tree);
        }
    }

    #[test]
    fn order_of_entries_does_not_matter(
        tree in tree(), rules in vec(rule(), 0..8).prop_shuffle(), files in any::<bool>(),
    ) {
        let (tree, context) = (MemoryTree::of(&tree), context_of(files));
        let plan = |rules: &[String]| resolve(&sandbox(&rules.join("\n")), &context, &tree).ok();
        let mut sorted = rules.clone();
        sorted.sort();
        prop_assert_eq!(plan(&rules), plan(&rules));
        prop_assert_eq!(plan(&rules), plan(&sorted));
    }

    #[test]
    fn plan_equals_its_policy_without_defaults_and_links(
        tree in tree(), rules in vec(rule(), 0..8),
    ) {
        let tree: Vec<_> = tree.lines().filter(|line| !line.contains(['>', '=', '!'])).collect();
        let rules: Vec<_> = rules.into_iter().filter(|rule| !rule.contains(":minimal")).collect();
        let (tree, sandbox) = (MemoryTree::of(&tree.join("\n")), sandbox(&rules.join("\n")));
        let plan = resolve(&sandbox, &context(), &tree);
        let reference = reference_model::ReferenceModel::of(&sandbox, &context(), &tree);
        if let (Ok(FileAccess::View(view)), Some(reference)) = (plan.map(|plan| plan.files), reference) {
            for path in tree.paths() {
                prop_assert_eq!(view.access(path), reference.access(path), "{:?}", path);
            }
        }
    }
}
