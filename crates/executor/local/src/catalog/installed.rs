//! Installed capabilities of the account: its skills, and plugins with their skills.

mod plugin_cache;
mod skill_metadata;

use std::path::Path;

use exec_env::front_matter::{FrontMatter, FrontMatterError};
use exec_wire::{
    discovery::{
        CapabilityFile, DiscoveredCapabilities, DiscoveredRoot, InstalledPlugin, InstalledSkill,
        SkillFiles, SkillRoot,
    },
    limits,
    path_uri::PathUri,
    sandbox::SandboxPolicy,
};
use futures_util::stream::{self, StreamExt};

use self::{
    plugin_cache::CachedPlugin,
    skill_metadata::{SkillMetadata, one_line},
};
use crate::catalog::{
    CatalogConfig, CatalogReader, DiscoveryBudget,
    capability_root::{self, PluginManifest},
    json_len, run_blocking,
};

/// Lists installed skills and plugins. Unreadable ones are omitted with a warning.
pub(super) async fn discover(
    catalog: &CatalogConfig,
    sandbox: Option<Box<SandboxPolicy>>,
) -> DiscoveredCapabilities {
    let reader = CatalogReader::new(&catalog.files, sandbox);
    let budget = DiscoveryBudget::default();
    let mut capabilities = DiscoveredCapabilities::default();
    for (id, path) in skill_roots(catalog) {
        let Ok(path) = PathUri::from_native(&path) else {
            continue;
        };
        add_skills(&reader, budget.clone(), id, path, &mut capabilities).await;
    }
    add_plugins(&reader, &budget, &catalog.codex_home, &mut capabilities).await;
    capabilities
}

/// Returns the skill directories outside plugins, with the ids that clients know.
fn skill_roots(catalog: &CatalogConfig) -> Vec<(&'static str, std::path::PathBuf)> {
    let user = catalog.user_home.as_deref();
    let user = user.map(|home| ("user-agent-skills", home.join(".agents/skills")));
    let mut roots = vec![("codex-home-skills", catalog.codex_home.join("skills"))];
    roots.extend(user);
    roots.push(("system-skills", catalog.system.join("skills")));
    roots
}

async fn add_skills(
    reader: &CatalogReader,
    budget: DiscoveryBudget,
    id: &str,
    path: PathUri,
    capabilities: &mut DiscoveredCapabilities,
) {
    // Most accounts lack some of these directories.
    match reader.metadata(&path).await {
        Ok(metadata) if metadata.is_directory => {}
        Ok(_) | Err(_) => return,
    }
    let discovered =
        capability_root::discover_root(reader, budget.clone(), id.to_owned(), path.clone()).await;
    let root = SkillRoot {
        id: id.to_owned(),
        path,
    };
    let bytes = root_bytes(&discovered);
    let (skills, warning) = read_skills(discovered, Some(root)).await;
    budget.refund(bytes.saturating_sub(response_bytes(&skills)));
    capabilities.skills.extend(skills);
    capabilities.warnings.extend(warning);
}

async fn add_plugins(
    reader: &CatalogReader,
    budget: &DiscoveryBudget,
    codex_home: &Path,
    capabilities: &mut DiscoveredCapabilities,
) {
    let Ok(cache) = PathUri::from_native(&codex_home.join("plugins/cache")) else {
        return;
    };
    let (cached, warnings) = plugin_cache::cached_plugins(reader, &cache).await;
    capabilities.warnings.extend(warnings);
    let plugins = cached.into_iter().map(|cached| {
        let budget = budget.clone();
        async move { installed_plugin(reader, budget, cached).await }
    });
    let mut plugins = stream::iter(plugins).buffered(limits::DISCOVERY_ROOTS_AT_ONCE);
    while let Some((plugin, warnings)) = plugins.next().await {
        capabilities.plugins.extend(plugin);
        capabilities.warnings.extend(warnings);
    }
}

async fn installed_plugin(
    reader: &CatalogReader,
    budget: DiscoveryBudget,
    cached: CachedPlugin,
) -> (Option<InstalledPlugin>, Vec<String>) {
    let (remote_plugin_id, warning) = plugin_cache::remote_id(reader, &cached).await;
    let mut warnings: Vec<String> = warning.into_iter().collect();
    let root = cached.root.clone();
    let mut discovered =
        capability_root::discover_root(reader, budget.clone(), cached.id.clone(), root).await;
    let total_bytes = root_bytes(&discovered);
    let files = discovered.plugin.take();
    let parsed =
        files.and_then(|files| Some((PluginManifest::parse(&files.manifest.contents)?, files)));
    let Some((manifest, files)) = parsed else {
        budget.refund(total_bytes);
        warnings.push(format!("`{}` is not a plugin", cached.root));
        return (None, warnings);
    };
    let remaining_bytes = root_bytes(&discovered);
    let (skills, warning) = read_skills(discovered, None).await;
    let used = json_len(&files.manifest.contents) + response_bytes(&skills);
    budget.refund(remaining_bytes.saturating_sub(used));
    warnings.extend(warning);
    let plugin = InstalledPlugin {
        id: cached.id,
        display_name: Some(manifest.display_name(&cached.root)),
        remote_plugin_id,
        version: cached.version,
        root: cached.root,
        files,
        skills,
    };
    (Some(plugin), warnings)
}

/// Parses the skills of a root on the blocking pool, because their files are untrusted.
async fn read_skills(
    discovered: DiscoveredRoot,
    root: Option<SkillRoot>,
) -> (Vec<InstalledSkill>, Option<String>) {
    let path = discovered.path.clone();
    let read = run_blocking(move || parse_skills(&discovered, root.as_ref())).await;
    read.unwrap_or_else(|error| (Vec::new(), Some(format!("`{path}`: {error}"))))
}

/// Parses the skills of a root. Returns one warning for all failures.
fn parse_skills(
    discovered: &DiscoveredRoot,
    root: Option<&SkillRoot>,
) -> (Vec<InstalledSkill>, Option<String>) {
    let mut skills = Vec::new();
    let mut problems = discovered.warnings.clone();
    problems.extend(discovered.error.clone());
    let namespaces = SkillNamespaces::new(&discovered.namespace_manifests);
    for files in &discovered.skills {
        match parse_skill(files, &namespaces, root) {
            Ok(skill) => skills.push(skill),
            Err(error) => problems.push(format!("`{}`: {error}", files.instructions.path)),
        }
    }
    let warning = problems.first().map(|first| match problems.len() {
        1 => first.clone(),
        more => format!(
            "{first} (and {} more below `{}`)",
            more - 1,
            discovered.path
        ),
    });
    (skills, warning)
}

/// Returns the response size of a root's files.
fn root_bytes(discovered: &DiscoveredRoot) -> usize {
    let file = |file: &CapabilityFile| json_len(&file.contents);
    let optional = |file_option: &Option<CapabilityFile>| file_option.as_ref().map_or(0, file);
    let skill = |skill: &SkillFiles| file(&skill.instructions) + optional(&skill.metadata);
    let plugin = discovered.plugin.as_ref().map_or(0, |plugin| {
        optional(&plugin.mcp_config) + optional(&plugin.apps_config)
    });
    // Includes the plugin's own manifest, which counts once.
    let manifests: usize = discovered.namespace_manifests.iter().map(file).sum();
    discovered.skills.iter().map(skill).sum::<usize>() + plugin + manifests
}

/// Returns the response size of parsed skills.
fn response_bytes(skills: &[InstalledSkill]) -> usize {
    let bytes = |skill: &InstalledSkill| {
        let short = skill.short_description.as_deref().map_or(0, json_len);
        json_len(&skill.description) + short
    };
    skills.iter().map(bytes).sum()
}

/// Why a file is not a valid skill. Its author must act.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
enum SkillError {
    /// Caller: the front matter is invalid.
    #[error(transparent)]
    FrontMatter(#[from] FrontMatterError),
    /// Caller: the description is missing.
    #[error("its front matter has no description")]
    NoDescription,
    /// Caller: the name is too long.
    #[error("its name exceeds {MAX_NAME} characters, or {MAX_QUALIFIED_NAME} with the plugin name")]
    LongName,
}

/// Parses a skill. Its name is qualified with the enclosing plugin.
fn parse_skill(
    files: &SkillFiles,
    namespaces: &SkillNamespaces,
    root: Option<&SkillRoot>,
) -> Result<InstalledSkill, SkillError> {
    let path = &files.instructions.path;
    let front_matter = FrontMatter::parse(&files.instructions.contents)?;
    let description = front_matter.description.ok_or(SkillError::NoDescription)?;
    let name = front_matter.name.map(|name| one_line(&name));
    let name = name.unwrap_or_else(|| directory_name(path));
    if name.chars().count() > MAX_NAME {
        return Err(SkillError::LongName);
    }
    let name = match namespaces.enclosing(path) {
        Some(plugin) => format!("{plugin}:{name}"),
        None => name,
    };
    if name.chars().count() > MAX_QUALIFIED_NAME {
        return Err(SkillError::LongName);
    }
    let metadata = files.metadata.as_ref();
    let metadata = metadata.map(|file| SkillMetadata::parse(&file.contents));
    let SkillMetadata {
        dependencies,
        policy,
    } = metadata.unwrap_or_default();
    Ok(InstalledSkill {
        name,
        description: one_line(&description),
        short_description: front_matter.short_description.map(|text| one_line(&text)),
        path: path.clone(),
        discovery_root: root.cloned(),
        dependencies,
        policy,
    })
}

fn directory_name(instructions: &PathUri) -> String {
    let directory = instructions.parent();
    let name = directory.and_then(|directory| directory.file_name());
    String::from_utf8_lossy(&name.unwrap_or_default()).into_owned()
}

/// Enclosing and nested plugins of a root, by their directory.
#[derive(Debug)]
struct SkillNamespaces(Vec<(PathUri, String)>);

impl SkillNamespaces {
    fn new(manifests: &[CapabilityFile]) -> Self {
        let namespace = |file: &CapabilityFile| {
            let (root, _) = capability_root::plugin_root(&file.path)?;
            let name = capability_root::namespace(&file.contents, &root)?;
            Some((root, name))
        };
        Self(manifests.iter().filter_map(namespace).collect())
    }

    /// Returns the innermost plugin that encloses a path.
    fn enclosing(&self, path: &PathUri) -> Option<&str> {
        let enclosing = self.0.iter().filter(|(root, _)| root.contains(path));
        let innermost = enclosing.max_by_key(|(root, _)| root.as_str().len());
        innermost.map(|(_, name)| name.as_str())
    }
}

/// Maximum length of a skill name, as in the stock server.
const MAX_NAME: usize = 64;
/// Maximum length of a qualified skill name, as in the stock server.
const MAX_QUALIFIED_NAME: usize = 129;

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use super::*;
    use crate::filesystem::LocalFileSystem;

    fn parse(matter: &str) -> Result<InstalledSkill, SkillError> {
        let files = SkillFiles {
            instructions: CapabilityFile {
                path: PathUri::from_native(Path::new("/skills/s/SKILL.md")).unwrap(),
                contents: format!("---\n{matter}\n---\nbody"),
            },
            metadata: None,
        };
        parse_skill(&files, &SkillNamespaces::new(&[]), None)
    }

    #[test]
    fn multi_line_text_becomes_one_line() {
        for text in [">\n  a\n  b", "|\n\n  a\n\n  b", "a\n  b", "\" a \\n b \""] {
            let skill = parse(&format!("name: {text}\ndescription: {text}")).unwrap();
            assert_eq!((&*skill.name, &*skill.description), ("a b", "a b"));
        }
    }

    #[test]
    fn skill_without_description_is_invalid() {
        for matter in ["name: n", "description: ''"] {
            assert_eq!(parse(matter), Err(SkillError::NoDescription));
        }
        assert_eq!(parse("description: d").unwrap().name, "s");
    }

    #[tokio::test]
    async fn budget_counts_skill_descriptions_but_not_their_bodies() {
        let home = tempfile::tempdir().unwrap();
        let text = "---\ndescription: twelve bytes\n---\nmuch more than that";
        fs::write(home.path().join("SKILL.md"), text).unwrap();
        let reader = CatalogReader::new(&(Arc::new(LocalFileSystem::default()) as Arc<_>), None);
        let (budget, mut capabilities) = (
            DiscoveryBudget::default(),
            DiscoveredCapabilities::default(),
        );
        let root = PathUri::from_native(home.path()).unwrap();
        add_skills(&reader, budget.clone(), "r", root, &mut capabilities).await;
        assert_eq!(capabilities.skills.len(), 1);
        let bytes = capabilities.skills[0].description.len();
        assert!(!budget.take(limits::MAX_DISCOVERY_BYTES - bytes + 1));
        assert!(budget.take(limits::MAX_DISCOVERY_BYTES - bytes));
    }
}
