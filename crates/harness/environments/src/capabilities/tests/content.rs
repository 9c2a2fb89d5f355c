//! What is read of the files that were found.

use exec_wire::discovery::{CapabilityFile, DiscoveredRoot, PluginFiles, SkillFiles};

use super::{empty, uri};
use crate::capabilities::{RootCapabilities, Skill};

fn file(path: &str, contents: &str) -> CapabilityFile {
    CapabilityFile {
        path: uri(path),
        contents: contents.to_owned(),
    }
}

fn skill(path: &str, contents: &str) -> SkillFiles {
    SkillFiles {
        instructions: file(path, contents),
        metadata: None,
    }
}

#[test]
fn a_plugin_names_its_skills_and_a_nested_one_its_own() {
    let manifest = file(
        "/p/.codex-plugin/plugin.json",
        r#"{"name":"outer","description":"all"}"#,
    );
    let nested = file("/p/sub/.claude-plugin/plugin.json", r#"{"version":"1"}"#);
    let mcp = file("/p/.mcp.json", "{}");
    let found = RootCapabilities::from_discovered(DiscoveredRoot {
        path: uri("/p"),
        plugin: Some(PluginFiles {
            manifest: manifest.clone(),
            mcp_config: Some(mcp.clone()),
            apps_config: None,
        }),
        skills: vec![
            skill(
                "/p/skills/a/SKILL.md",
                "---\nname: alpha\ndescription: first\n---\nlong text",
            ),
            skill("/p/sub/skills/b/SKILL.md", "no head"),
            skill("/p/subway/SKILL.md", "---\ndescription: third\n---\n"),
        ],
        namespace_manifests: vec![manifest, nested],
        warnings: vec!["one left out".to_owned()],
        ..empty("p")
    });
    let plugin = found.plugin.unwrap();
    assert_eq!(
        (plugin.name.as_str(), plugin.description.as_deref()),
        ("outer", Some("all"))
    );
    assert_eq!(plugin.files.mcp_config, Some(mcp));
    let told = |skill: &Skill| (skill.qualified_name(), skill.description.clone());
    let told: Vec<_> = found.skills.iter().map(|skill| told(skill)).collect();
    let pair = |name: &str, description: &str| (name.to_owned(), description.to_owned());
    let expected = [
        pair("outer:alpha", "first"),
        pair("sub:b", ""),
        pair("outer:subway", "third"),
    ];
    assert_eq!(told, expected);
    assert_eq!(found.warnings, ["one left out"]);
}

#[test]
fn a_skill_outside_of_plugins_has_its_own_name() {
    let metadata = file("/s/x/agents/openai.yaml", "policy: {}");
    let mut files = skill("/s/x/SKILL.md", "");
    files.metadata = Some(metadata.clone());
    let found = RootCapabilities::from_discovered(DiscoveredRoot {
        skills: vec![files],
        ..empty("s")
    });
    assert_eq!(found.skills[0].qualified_name(), "x");
    assert_eq!(found.skills[0].namespace, None);
    assert_eq!(found.skills[0].path, uri("/s/x/SKILL.md"));
    assert_eq!(found.skills[0].metadata, Some(metadata));
    assert!(found.plugin.is_none());
}

#[test]
fn names_and_descriptions_have_a_bound() {
    let long = "é".repeat(5000);
    let text = format!("---\nname: {long}\ndescription: {long}\n---\n");
    let found = RootCapabilities::from_discovered(DiscoveredRoot {
        skills: vec![skill("/s/x/SKILL.md", &text)],
        ..empty("s")
    });
    assert_eq!(found.skills[0].name.chars().count(), 128);
    assert_eq!(found.skills[0].description.chars().count(), 1024);
}

#[test]
fn a_manifest_that_is_no_json_names_the_plugin_by_its_directory() {
    for contents in ["", "[]", "{\"name\": 7}", "{\"name\": \" \"}", "{"] {
        let found = RootCapabilities::from_discovered(DiscoveredRoot {
            path: uri("/plugins/mine"),
            plugin: Some(PluginFiles {
                manifest: file("/plugins/mine/.codex-plugin/plugin.json", contents),
                mcp_config: None,
                apps_config: None,
            }),
            ..empty("x")
        });
        assert_eq!(found.plugin.unwrap().name, "mine", "{contents:?}");
    }
}
