//! The cached metadata of a root: enough to show a model which capabilities exist, and where.

use std::sync::Arc;

use exec_env::front_matter::FrontMatter;
use exec_wire::{
    discovery::{CapabilityFile, DiscoveredRoot, PluginFiles, SkillFiles},
    path_uri::PathUri,
};
use serde_json::Value;

/// Capabilities below a root. Excludes the instructions of skills, which are read on use.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RootCapabilities {
    /// The plugin, if the root is one.
    pub plugin: Option<Arc<PluginMetadata>>,
    /// Skills, ordered by the URI of their instructions.
    pub skills: Vec<Arc<SkillMetadata>>,
    /// Warnings about skipped files, for people.
    pub warnings: Vec<String>,
}

/// A plugin.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PluginMetadata {
    /// Name from the manifest, or the directory name.
    pub name: String,
    /// Description from the manifest.
    pub description: Option<String>,
    /// Its directory.
    pub path: PathUri,
    /// The files that declare it: manifest, MCP servers, apps.
    pub files: PluginFiles,
}

/// A skill.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SkillMetadata {
    /// Name from the front matter, or the directory name. At most 128 characters.
    pub name: String,
    /// Description, empty if absent. At most 1024 characters.
    pub description: String,
    /// Its `SKILL.md`.
    pub path: PathUri,
    /// The plugin that it belongs to.
    pub namespace: Option<String>,
    /// Its `agents/openai.yaml`.
    pub metadata: Option<CapabilityFile>,
}

impl SkillMetadata {
    /// Returns the name qualified by its plugin, `<plugin>:<skill>`, or the plain name.
    pub fn qualified_name(&self) -> String {
        self.namespace.as_ref().map_or_else(
            || self.name.clone(),
            |plugin| format!("{plugin}:{}", self.name),
        )
    }
}

impl RootCapabilities {
    /// Extracts the metadata of a discovered root.
    pub(super) fn from_discovered(root: DiscoveredRoot) -> Self {
        let namespaces: Vec<PluginNamespace> = root
            .namespace_manifests
            .iter()
            .filter_map(PluginNamespace::from_manifest)
            .collect();
        let skill = |files| Arc::new(SkillMetadata::from_files(files, &namespaces));
        let path = root.path;
        Self {
            plugin: root
                .plugin
                .map(|files| Arc::new(PluginMetadata::from_files(path, files))),
            skills: root.skills.into_iter().map(skill).collect(),
            warnings: root.warnings,
        }
    }

    /// Returns the approximate memory size.
    pub(super) fn bytes(&self) -> usize {
        let plugin = self.plugin.as_ref().map_or(0, |plugin| plugin.bytes());
        let skills: usize = self.skills.iter().map(|skill| skill.bytes()).sum();
        let warnings: usize = self
            .warnings
            .iter()
            .map(|text| ITEM_BYTES + text.len())
            .sum();
        ITEM_BYTES + plugin + skills + warnings
    }
}

impl PluginMetadata {
    fn from_files(path: PathUri, files: PluginFiles) -> Self {
        let manifest = PluginManifest::read(&files.manifest.contents);
        Self {
            name: manifest.name.unwrap_or_else(|| directory_name(&path)),
            description: manifest.description,
            path,
            files,
        }
    }

    fn bytes(&self) -> usize {
        let files = [&self.files.mcp_config, &self.files.apps_config];
        let optional: usize = files.into_iter().flatten().map(file_bytes).sum();
        let description = self.description.as_ref().map_or(0, String::len);
        let texts = self.name.len() + description + self.path.as_str().len();
        ITEM_BYTES + texts + file_bytes(&self.files.manifest) + optional
    }
}

impl SkillMetadata {
    fn from_files(files: SkillFiles, namespaces: &[PluginNamespace]) -> Self {
        let path = files.instructions.path;
        // A skill without valid front matter is still listed, by its directory.
        let head = FrontMatter::parse(&files.instructions.contents).unwrap_or_default();
        let name = head.name.unwrap_or_else(|| {
            path.parent()
                .as_ref()
                .map_or_else(String::new, directory_name)
        });
        let namespace = namespaces
            .iter()
            .filter(|namespace| namespace.root.contains(&path))
            .max_by_key(|namespace| namespace.root.as_str().len())
            .map(|namespace| namespace.name.clone());
        Self {
            name: truncate(name, MAX_NAME_CHARS),
            description: truncate(head.description.unwrap_or_default(), MAX_DESCRIPTION_CHARS),
            path,
            namespace,
            metadata: files.metadata,
        }
    }

    fn bytes(&self) -> usize {
        let namespace = self.namespace.as_ref().map_or(0, String::len);
        let metadata = self.metadata.as_ref().map_or(0, file_bytes);
        let texts = self.name.len() + self.description.len() + self.path.as_str().len();
        ITEM_BYTES + texts + namespace + metadata
    }
}

/// A plugin that qualifies the names of the skills below its directory.
#[derive(Debug)]
struct PluginNamespace {
    root: PathUri,
    name: String,
}

impl PluginNamespace {
    /// Derives the namespace from a manifest, which lies in a hidden directory of the plugin.
    fn from_manifest(manifest: &CapabilityFile) -> Option<Self> {
        let root = manifest.path.parent()?.parent()?;
        let name = PluginManifest::read(&manifest.contents).name;
        let name = name.unwrap_or_else(|| directory_name(&root));
        Some(Self { root, name })
    }
}

/// Fields of a plugin's manifest.
#[derive(Debug, Default)]
struct PluginManifest {
    name: Option<String>,
    description: Option<String>,
}

impl PluginManifest {
    /// Parses a manifest. Invalid JSON yields no fields.
    fn read(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let member = |name: &str, max_chars| {
            let text = value.get(name)?.as_str()?.trim();
            (!text.is_empty()).then(|| truncate(text.to_owned(), max_chars))
        };
        Self {
            name: member("name", MAX_NAME_CHARS),
            description: member("description", MAX_DESCRIPTION_CHARS),
        }
    }
}

/// Returns the last component of a path as text.
fn directory_name(path: &PathUri) -> String {
    let name = path.file_name().unwrap_or_default();
    truncate(String::from_utf8_lossy(&name).into_owned(), MAX_NAME_CHARS)
}

/// Truncates a text to a number of characters.
fn truncate(mut text: String, max_chars: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(max_chars) {
        text.truncate(end);
    }
    text
}

fn file_bytes(file: &CapabilityFile) -> usize {
    ITEM_BYTES + file.path.as_str().len() + file.contents.len()
}

/// Maximum length of a name, because it appears in every prompt.
const MAX_NAME_CHARS: usize = 128;
/// Maximum length of a description, because it appears in every prompt.
const MAX_DESCRIPTION_CHARS: usize = 1024;
/// Overhead of one item beside its text.
const ITEM_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use exec_wire::discovery::{CapabilityFile, DiscoveredRoot, PluginFiles, SkillFiles};

    use super::{RootCapabilities, SkillMetadata};
    use crate::capabilities::tests::{empty, uri};

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
    fn skills_are_namespaced_by_the_nearest_plugin() {
        let manifest = file(
            "/p/.codex-plugin/plugin.json",
            r#"{"name":"outer","description":"all"}"#,
        );
        let nested = file("/p/sub/.claude-plugin/plugin.json", r#"{"version":"1"}"#);
        let mcp = file("/p/.mcp.json", "{}");
        let capabilities = RootCapabilities::from_discovered(DiscoveredRoot {
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
        let plugin = capabilities.plugin.unwrap();
        assert_eq!(
            (plugin.name.as_str(), plugin.description.as_deref()),
            ("outer", Some("all"))
        );
        assert_eq!(plugin.files.mcp_config, Some(mcp));
        let summarize = |skill: &SkillMetadata| (skill.qualified_name(), skill.description.clone());
        let summaries: Vec<_> = capabilities
            .skills
            .iter()
            .map(|skill| summarize(skill))
            .collect();
        let pair = |name: &str, description: &str| (name.to_owned(), description.to_owned());
        let expected = [
            pair("outer:alpha", "first"),
            pair("sub:b", ""),
            pair("outer:subway", "third"),
        ];
        assert_eq!(summaries, expected);
        assert_eq!(capabilities.warnings, ["one left out"]);
    }

    #[test]
    fn skill_outside_plugins_is_unqualified() {
        let metadata = file("/s/x/agents/openai.yaml", "policy: {}");
        let mut files = skill("/s/x/SKILL.md", "");
        files.metadata = Some(metadata.clone());
        let capabilities = RootCapabilities::from_discovered(DiscoveredRoot {
            skills: vec![files],
            ..empty("s")
        });
        assert_eq!(capabilities.skills[0].qualified_name(), "x");
        assert_eq!(capabilities.skills[0].namespace, None);
        assert_eq!(capabilities.skills[0].path, uri("/s/x/SKILL.md"));
        assert_eq!(capabilities.skills[0].metadata, Some(metadata));
        assert!(capabilities.plugin.is_none());
    }

    #[test]
    fn names_and_descriptions_are_truncated() {
        let long = "é".repeat(5000);
        let text = format!("---\nname: {long}\ndescription: {long}\n---\n");
        let capabilities = RootCapabilities::from_discovered(DiscoveredRoot {
            skills: vec![skill("/s/x/SKILL.md", &text)],
            ..empty("s")
        });
        assert_eq!(capabilities.skills[0].name.chars().count(), 128);
        assert_eq!(capabilities.skills[0].description.chars().count(), 1024);
    }

    #[test]
    fn invalid_manifest_falls_back_to_the_directory_name() {
        for contents in ["", "[]", "{\"name\": 7}", "{\"name\": \" \"}", "{"] {
            let capabilities = RootCapabilities::from_discovered(DiscoveredRoot {
                path: uri("/plugins/mine"),
                plugin: Some(PluginFiles {
                    manifest: file("/plugins/mine/.codex-plugin/plugin.json", contents),
                    mcp_config: None,
                    apps_config: None,
                }),
                ..empty("x")
            });
            assert_eq!(capabilities.plugin.unwrap().name, "mine", "{contents:?}");
        }
    }
}
