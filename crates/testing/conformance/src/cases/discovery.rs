//! Discovery of plugins and skills on the executor's host.

use std::{fs, path::Path};

use exec_wire::{
    discovery::{
        CapabilityFile, DiscoverCapabilities, DiscoverRoots, DiscoveredRoot, DiscoveryRoot,
        PluginFiles,
    },
    limits,
    sandbox::SandboxPolicy,
};

use super::configuration::homes;
use crate::{
    bounded_wait::{done, invalid},
    difference::Difference,
    sandbox_policy::{PolicyBuilder, path},
    scratch_dir::ScratchDir,
    subject::{Subject, uri},
};

fn root(path: &Path, sandbox: Option<Box<SandboxPolicy>>) -> DiscoveryRoot {
    DiscoveryRoot {
        id: format!("root of {}", path.display()),
        path: uri(path),
        sandbox,
    }
}

async fn discovered(subject: &Subject, roots: Vec<DiscoveryRoot>) -> Vec<DiscoveredRoot> {
    let asked: Vec<_> = roots
        .iter()
        .map(|root| (root.id.clone(), root.path.clone()))
        .collect();
    let found = done(subject.catalog.discover_roots(DiscoverRoots { roots }))
        .await
        .roots;
    let told: Vec<_> = found
        .iter()
        .map(|root| (root.id.clone(), root.path.clone()))
        .collect();
    assert_eq!(told, asked);
    found
}

fn file(path: &Path, contents: &str) -> CapabilityFile {
    CapabilityFile {
        path: uri(path),
        contents: contents.to_owned(),
    }
}

/// Returns the instruction paths of the discovered skills.
fn skills(found: &DiscoveredRoot) -> Vec<&str> {
    let skills = found.skills.iter();
    skills
        .map(|skill| skill.instructions.contents.as_str())
        .collect()
}

pub async fn plugin_and_its_skills_are_discovered(subject: &Subject) {
    let scratch = ScratchDir::new();
    let text = r#"{"name":"p","mcpServers":"./conf/servers.json"}"#;
    let manifest = scratch.file("p/.codex-plugin/plugin.json", text);
    scratch.file("p/.claude-plugin/plugin.json", "{}");
    let servers = scratch.file("p/conf/servers.json", "servers");
    let apps = scratch.file("p/.app.json", "apps");
    let nested = scratch.file("p/below/.claude-plugin/plugin.json", "nested");
    scratch.file("p/skills/b/SKILL.md", "b");
    scratch.file("p/.hidden/SKILL.md", "hidden");
    let metadata = scratch.file("p/skills/b/agents/openai.yaml", "metadata");
    scratch.link("p/skills/link", scratch.path("elsewhere"));
    scratch.file("elsewhere/SKILL.md", "linked");
    let found = discovered(subject, vec![root(&scratch.path("p"), None)])
        .await
        .remove(0);
    assert_eq!((&found.warnings, &found.error), (&vec![], &None));
    let files = PluginFiles {
        manifest: file(&manifest, text),
        mcp_config: Some(file(&servers, "servers")),
        apps_config: Some(file(&apps, "apps")),
    };
    assert_eq!(found.plugin, Some(files));
    let manifests = [file(&manifest, text), file(&nested, "nested")];
    assert_eq!(found.namespace_manifests, manifests);
    assert_eq!(skills(&found), ["hidden", "b", "linked"]);
    let described = found
        .skills
        .iter()
        .filter_map(|skill| skill.metadata.clone());
    assert_eq!(described.collect::<Vec<_>>(), [file(&metadata, "metadata")]);
    // A root inside the plugin yields the same manifest.
    let inside = discovered(subject, vec![root(&scratch.path("p/skills"), None)]).await;
    assert_eq!(inside[0].plugin, None);
    assert_eq!(inside[0].namespace_manifests, [file(&manifest, text)]);
}

pub async fn failing_root_does_not_affect_other_roots(subject: &Subject) {
    let scratch = ScratchDir::new();
    let plain = scratch.file("file", "");
    scratch.file("good/SKILL.md", "good");
    scratch.file("bad/SKILL.md", b"\xff");
    scratch.sparse("large", limits::MAX_DISCOVERY_FILE_BYTES + 1);
    scratch.directory("big");
    fs::rename(scratch.path("large"), scratch.path("big/SKILL.md")).unwrap();
    let paths = ["none", "file", "good", "bad", "big"].map(|name| scratch.path(name));
    let found = discovered(subject, paths.iter().map(|path| root(path, None)).collect()).await;
    assert_eq!(paths[1], plain);
    let told: Vec<_> = found
        .iter()
        .map(|root| (root.error.is_some(), root.warnings.len(), root.skills.len()))
        .collect();
    let expected = [
        (true, 0, 0),
        (true, 0, 0),
        (false, 0, 1),
        (false, 1, 0),
        (false, 1, 0),
    ];
    assert_eq!(told, expected);
}

pub async fn truncated_discovery_walk_is_reported_as_a_warning(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.hard_linked_files(
        (0..=limits::MAX_DISCOVERY_ENTRIES).map(|number| format!("root/{number:05}")),
    );
    scratch.file("deep/1/2/3/4/5/6/SKILL.md", "found");
    scratch.file("deep/1/2/3/4/5/6/7/SKILL.md", "not found");
    let roots = ["root", "deep"].map(|name| root(&scratch.path(name), None));
    let found = discovered(subject, roots.into()).await;
    assert_eq!(found[0].warnings.len(), 1, "{:?}", found[0].warnings);
    assert_eq!(
        (skills(&found[1]), found[1].warnings.len()),
        (vec!["found"], 0)
    );
}

pub async fn too_many_discovery_roots_are_refused(subject: &Subject) {
    let roots = vec![root(Path::new("/none"), None); limits::MAX_DISCOVERY_ROOTS];
    assert_eq!(discovered(subject, roots.clone()).await.len(), roots.len());
    let roots = [roots, vec![root(Path::new("/none"), None)]].concat();
    invalid(subject.catalog.discover_roots(DiscoverRoots { roots })).await;
}

pub async fn discovery_respects_the_sandbox_policy_of_its_root(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("allowed/SKILL.md", "allowed");
    scratch.file("forbidden/SKILL.md", "forbidden");
    scratch.link("allowed/link", scratch.path("forbidden"));
    let policy = PolicyBuilder::minimal().entry(path(&scratch.path("allowed")), "read");
    let sandbox = policy.sandbox();
    let roots = ["allowed", "forbidden"].map(|name| root(&scratch.path(name), sandbox.clone()));
    let found = discovered(subject, roots.into()).await;
    assert_eq!(skills(&found[0]), ["allowed"]);
    assert_eq!(
        (skills(&found[1]).len(), found[1].error.is_some()),
        (0, true)
    );
}

pub async fn installed_skills_and_plugins_are_listed(subject: &Subject) {
    let (home, codex) = homes(subject).await;
    let write = |path: &Path, text: &str| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let skill = |name: &str| format!("---\nname: {name}\ndescription: of {name}\n---\n");
    let own = codex.join("skills/own/SKILL.md");
    let shared = home.join(".agents/skills/shared/SKILL.md");
    let cache = codex.join("plugins/cache/market/tool");
    let of_plugin = cache.join("1.10.0/skills/use/SKILL.md");
    write(&own, &skill("own"));
    write(&shared, &skill("shared"));
    write(&of_plugin, &skill("use"));
    write(&codex.join("skills/broken/SKILL.md"), "no front matter");
    let manifest = r#"{"name":"tool","interface":{"displayName":"The Tool"}}"#;
    for version in ["1.10.0", "1.9.0"] {
        write(
            &cache.join(version).join(".codex-plugin/plugin.json"),
            manifest,
        );
    }
    let discover = DiscoverCapabilities {
        cwd: uri(Path::new("/")),
        sandbox: None,
    };
    let found = done(subject.catalog.discover(discover)).await;
    let told: Vec<_> = found
        .skills
        .iter()
        .map(|skill| {
            let root = skill.discovery_root.as_ref().unwrap();
            (
                &*skill.name,
                &*skill.description,
                skill.path.clone(),
                &*root.id,
            )
        })
        .collect();
    let expected = [
        ("own", "of own", uri(&own), "codex-home-skills"),
        ("shared", "of shared", uri(&shared), "user-agent-skills"),
    ];
    if subject.differs(Difference::InventoryOfTheStart) {
        let known = told.iter().all(|skill| expected.contains(skill));
        return assert!(known, "{told:?}");
    }
    assert_eq!(told, expected);
    let [plugin] = &*found.plugins else {
        panic!("one plugin is installed: {found:?}");
    };
    assert_eq!((&*plugin.id, &*plugin.version), ("tool@market", "1.10.0"));
    assert_eq!(plugin.display_name.as_deref(), Some("The Tool"));
    assert_eq!(
        (&*plugin.skills[0].name, plugin.skills.len()),
        ("tool:use", 1)
    );
    assert_eq!(plugin.skills[0].discovery_root, None);
    assert_eq!(plugin.files.manifest.contents, manifest);
    assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
}
